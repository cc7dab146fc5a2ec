//! Maps database errors to Souk's errors.

use std::io;
use std::path::Path;

use souk_io::error::{Cause, Error};

/// Failure of a SQLite file. The low byte of the code is the error class.
pub(super) fn of_file(file: &Path, action: &'static str, failure: sqlx::Error) -> Error {
    let code = failure.as_database_error().and_then(|e| e.code()).and_then(|code| code.parse::<u32>().ok());
    let kind = match code.map(|code| code & 0xff) {
        Some(3 | 8 | 23) => io::ErrorKind::PermissionDenied,
        Some(13) => io::ErrorKind::StorageFull,
        Some(10 | 14) => io::ErrorKind::Other,
        Some(5 | 6) => {
            let problem = format!("{}: another process has locked the database for too long", file.display());
            return Error::Busy { problem };
        }
        Some(11 | 26) => {
            let problem = "is not a valid SQLite database: restore a backup or use another file";
            return Error::data(file, None, problem).because(cause(failure));
        }
        Some(1) => return unlike(file.display(), action, failure),
        _ if matches!(failure, sqlx::Error::PoolTimedOut) => {
            let problem = format!("{}: too many writes are waiting", file.display());
            return Error::Busy { problem };
        }
        _ => io::ErrorKind::Other,
    };
    Error::Store { file: file.into(), action, source: io::Error::new(kind, cause(failure)) }
}

/// Failure of a PostgreSQL server or of the connection to it.
pub(super) fn of_server(server: &str, action: &str, failure: sqlx::Error) -> Error {
    let code = failure.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
    let configured = |problem: &str| Error::config(server, problem);
    let refused = match code.as_str() {
        "28P01" | "28000" => Some("the user or the password was refused: correct the URL, or PGPASSWORD"),
        "3D000" => Some("there is no such database: create it with createdb, or correct the URL"),
        "42501" => Some("this user lacks a right: grant it (to migrate: CREATE on the schema)"),
        _ => None,
    };
    if let Some(problem) = refused {
        return configured(problem).because(cause(failure));
    }
    match &failure {
        sqlx::Error::Configuration(_) => {
            return configured("is not a PostgreSQL URL").because(cause(failure));
        }
        _ if code.starts_with("42") => return unlike(server, action, failure),
        _ => {}
    }
    let problem = match &failure {
        sqlx::Error::Io(_) => "cannot be reached: is the server running, is the address right?".to_owned(),
        sqlx::Error::Tls(_) => "the TLS connection failed".to_owned(),
        sqlx::Error::PoolTimedOut => "timed out waiting for a connection".to_owned(),
        _ => format!("cannot {action}"),
    };
    let cut = matches!(
        failure,
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed
    );
    // 08: connection, 40: serialization and deadlock, 53: resources, 55P03: lock, 57: the operator, 25006: a standby
    let passing = ["08", "40", "53", "55P03", "57", "25006"].iter().any(|class| code.starts_with(class));
    let retryable = passing || cut;
    Error::Upstream { service: server.into(), problem, retryable, source: Some(cause(failure)) }
}

/// Failure of a statement on tables of another version.
fn unlike(place: impl ToString, action: &str, failure: sqlx::Error) -> Error {
    let problem = format!("cannot {action}: its tables are not Souk's, or not of this version; see souk db migrate");
    Error::config(place, problem).because(cause(failure))
}

/// The database's message, without wrappers that repeat it.
fn cause(failure: sqlx::Error) -> Cause {
    match failure {
        sqlx::Error::Database(said) => said.into_error(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::super::database::{Database, OpenMode};
    use super::super::{changes, migration};
    use super::*;
    use souk_io::address::Address;
    use souk_io::catalogue_stream::Mutation;
    use souk_io::domain::Item;

    async fn open(folder: &tempfile::TempDir) -> Database {
        let url = format!("sqlite:{}", folder.path().join("shop.db").display());
        let database = Database::open(&Address::new(url), OpenMode::Create).await.unwrap();
        migration::apply(&database, migration::ALL).await.unwrap();
        database
    }

    async fn tell(database: &Database, pragma: &'static str) {
        sqlx::raw_sql(pragma).execute(&database.writes).await.unwrap();
    }

    fn put(title: String) -> Mutation {
        Mutation::Put(Item { id: "a".into(), title, text: String::new(), fields: Map::new() })
    }

    fn large_item() -> Mutation {
        put("x".repeat(1 << 19))
    }

    #[tokio::test]
    async fn a_full_disk_and_a_read_only_file_are_named_and_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let database = open(&folder).await;
        let small = put("desk".into());
        changes::append(&database, std::slice::from_ref(&small), None).await.unwrap();
        for (pragma, expected) in [
            ("PRAGMA max_page_count = 1", io::ErrorKind::StorageFull),
            ("PRAGMA query_only = ON", io::ErrorKind::PermissionDenied),
        ] {
            tell(&database, pragma).await;
            let error = changes::append(&database, &[large_item()], None).await.unwrap_err();
            let Error::Store { file, source, .. } = &error else { panic!("{error:?}") };
            assert!(file.ends_with("shop.db") && source.kind() == expected, "{error:?}");
        }
        assert_eq!(changes::page(&database, 0, 10).await.unwrap(), [(1, small)]);
    }

    #[tokio::test]
    async fn a_database_that_another_process_holds_is_busy() {
        let folder = tempfile::tempdir().unwrap();
        let (database, other) = (open(&folder).await, open(&folder).await);
        tell(&database, "PRAGMA busy_timeout = 1").await;
        let held = other.begin().await.unwrap();
        let error = changes::append(&database, &[large_item()], None).await.unwrap_err();
        assert!(matches!(&error, Error::Busy { problem } if problem.contains("shop.db")), "{error:?}");
        held.rollback().await.unwrap();
        changes::append(&database, &[large_item()], None).await.unwrap();
    }
}
