//! Databases that are unreachable, wrong, damaged or of another program: each is an error that says who must act, and none
//! shows a password.

use std::path::Path;

use souk_io::address::Address;
use souk_io::error::Error;
use souk_store::{Ledger, SqlLedger, VoteVerdict};
use sqlx::any::install_default_drivers;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, PgConnection};

use crate::ledgers::{put, vote};
use souk_testing::databases::{ledger, runtime};

async fn open(url: &str) -> Error {
    let error = SqlLedger::open(&Address::new(url)).await.err().unwrap_or_else(|| panic!("{url} was opened"));
    assert!(!format!("{error:?} {error}").contains("secret"), "{error:?}");
    error
}

fn is_config(error: Error, says: &str) {
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains(says), "{error:?}");
}

pub async fn another_program(url: String) {
    let sql = async |sql: &str| {
        install_default_drivers();
        let mut connection = AnyConnection::connect(&url.replace("sqlite:", "sqlite://")).await.unwrap();
        connection.execute(AssertSqlSafe(sql)).await.unwrap();
    };
    is_config(open(&url).await, "souk db migrate");
    drop(ledger(&url).await);
    sql("INSERT INTO migrations (number, name, checksum, applied_at) VALUES (9999, '9999_future', 'x', 0)").await;
    is_config(open(&url).await, "migration 9999 (`9999_future`)");
    is_config(SqlLedger::migrate(&Address::new(&url)).await.unwrap_err(), "use a newer Souk");
    sql("DELETE FROM migrations WHERE number = 9999").await;
    sql("UPDATE migrations SET checksum = 'x' WHERE number = 1").await;
    is_config(open(&url).await, "`0001_ledger` was edited");
    sql("DELETE FROM migrations").await;
    is_config(SqlLedger::migrate(&Address::new(&url)).await.unwrap_err(), "not Souk's, or not of this version");
}

pub async fn wrong_addresses(url: String) {
    let (_, rest) = url.split_once('@').expect("DATABASE_URL names a user");
    is_config(open(&format!("postgres://souk_nobody:secret@{rest}")).await, "was refused");
    let (server, _) = url.split_once('?').unwrap();
    let (server, _) = server.rsplit_once('/').unwrap();
    is_config(open(&format!("{server}/souk_no_such_database")).await, "no such database");
}

pub async fn cut_connections(url: String) {
    let ledger = ledger(&url).await;
    for round in 0..3 {
        ledger.append_changes(&[put("a", "")]).await.unwrap();
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()";
        assert!(connection.execute(sql).await.unwrap().rows_affected() > 0);
        assert_eq!(ledger.append_votes(&[vote(&round.to_string(), VoteVerdict::Same)]).await.unwrap(), 1);
    }
}

#[test]
fn a_server_that_is_away_or_silent_is_worth_another_try() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for port in [1, silent.local_addr().unwrap().port()] {
        let error = runtime().block_on(open(&format!("postgres://souk:secret@127.0.0.1:{port}/souk?password=secret")));
        assert!(matches!(error, Error::Upstream { retryable: true, .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}/souk: ")), "{error}");
    }
}

#[test]
fn invalid_addresses_are_errors() {
    for url in [
        "mysql://shop:secret@db/shop",
        "sqlite:",
        "sqlite::memory:",
        "sqlite:a.db?mode=ro",
        "sqlite:a.db?key=secret",
        "postgres://a:secret@:b",
    ] {
        assert!(matches!(runtime().block_on(open(url)), Error::Config { .. }), "{url}");
    }
}

#[test]
fn unknown_parameters_are_named() {
    let at = "postgres://souk@127.0.0.1:1/souk";
    for (url, says) in [
        (format!("{at}?sslpassword=secret"), "unknown parameter `sslpassword`"),
        (format!("{at}?sslmode=disable&pass%77ord=secret"), "unknown parameter `pass%77ord`"),
        (format!("{at}?password=a&secret"), "unknown parameter ``"),
        (format!("{at}?options[x=secret"), "unknown parameter `options[x`"),
        (format!("{at}?password=a@secret"), "%40"),
        ("postgres://souk:a?secret=b@127.0.0.1:1/souk".into(), "%3F"),
        ("postgres://souk:1/secret@127.0.0.1:1/souk".into(), "%2F"),
        ("postgres:souk:secret@127.0.0.1:1/souk".into(), "postgres://USER"),
        ("postgres:souk:://secret@127.0.0.1:1/souk".into(), "postgres://USER"),
        ("postgres://souk:se'secret@127.0.0.1:x/souk".into(), "not a PostgreSQL URL"),
    ] {
        is_config(runtime().block_on(open(&url)), says);
    }
    for known in ["sslmode=disable&application_name=a", "options[search_path]=x", "options%5Bsearch_path%5D=x"] {
        let error = runtime().block_on(open(&format!("{at}?{known}")));
        assert!(matches!(error, Error::Upstream { .. }), "{known}: {error:?}");
    }
}

#[test]
fn a_file_that_is_missing_or_broken_is_named() {
    let home = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("sqlite:{}", home.path().join(name).display());
    runtime().block_on(async {
        is_config(open(&url("none.db")).await, "souk db migrate");
        assert!(!home.path().join("none.db").exists(), "to look is not to make");
        is_config(open(&url("")).await, "is a folder");
        let nowhere = SqlLedger::migrate(&Address::new(url("no/folder/shop.db"))).await.unwrap_err();
        assert!(matches!(nowhere, Error::Store { .. }), "{nowhere:?}");

        std::fs::write(home.path().join("noise.db"), "x".repeat(5000)).unwrap();
        is_broken(open(&url("noise.db")).await, "noise.db");

        let whole = ledger(&url("shop.db")).await;
        let items: Vec<_> = (0..3000).map(|n| put(&format!("item-{n:05}"), &"x".repeat(200))).collect();
        whole.append_changes(&items).await.unwrap();
        drop(whole);
        overwrite(&home.path().join("shop.db")).await;
        let torn = SqlLedger::open(&Address::new(url("shop.db"))).await.unwrap();
        is_broken(torn.page_changes(0, 10_000).await.unwrap_err(), "shop.db");
    });
}

fn is_broken(error: Error, file: &str) {
    let named = matches!(&error, Error::Data { file: path, .. } if path.ends_with(file));
    assert!(named && error.to_string().contains("not a valid SQLite database"), "{error:?}");
}

/// Moves everything out of the log, then overwrites the rows with noise.
async fn overwrite(file: &Path) {
    let mut connection = sqlx::SqliteConnection::connect(&format!("sqlite://{}", file.display())).await.unwrap();
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").await.unwrap();
    connection.close().await.unwrap();
    let mut bytes = std::fs::read(file).unwrap();
    assert!(bytes.len() > 500_000);
    bytes[200_000..].fill(0xa5);
    std::fs::write(file, bytes).unwrap();
}
