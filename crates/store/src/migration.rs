//! Applies the numbered migrations in `migrations/`. A migration that was edited after it was applied is an error that names it. So is
//! one that this program does not know, unless it is compatible with programs of the version before. Migrations are never reverted.

use sha2::{Digest, Sha256};
use sqlx::{Any, AssertSqlSafe, Executor, Row, Transaction};

use super::database::{Database, DatabaseKind, NOT_MIGRATED};
use souk_io::error::{Error, Result};
use souk_io::time;

#[derive(Clone, Copy)]
pub(super) struct Migration {
    pub number: i64,
    pub name: &'static str,
    pub sql: &'static str,
    /// Programs whose newest migration has at least this number can use the ledger after this one.
    pub compatible_from: i64,
}

pub(super) const ALL: &[Migration] = &[
    Migration {
        number: 1,
        name: "0001_ledger",
        sql: include_str!("../../../migrations/0001_ledger.sql"),
        compatible_from: 1,
    },
    Migration {
        number: 2,
        name: "0002_catalogue",
        sql: include_str!("../../../migrations/0002_catalogue.sql"),
        compatible_from: 2,
    },
    Migration {
        number: 3,
        name: "0003_rollouts",
        sql: include_str!("../../../migrations/0003_rollouts.sql"),
        compatible_from: 3,
    },
];

/// The migration that adds the column `compatible_from`.
const ROLLOUTS: i64 = 3;

/// Migration that `souk db migrate` has applied.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AppliedMigration {
    pub number: i64,
    pub name: String,
}

impl Migration {
    fn checksum(&self) -> String {
        Sha256::digest(self.sql).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Applies missing migrations in one transaction. Concurrent callers wait and then find nothing to do.
pub(super) async fn apply(database: &Database, all: &[Migration]) -> Result<Vec<AppliedMigration>> {
    let failed = database.failed("migrate");
    let mut transaction = database.begin().await?;
    if let DatabaseKind::Postgres { .. } = database.kind {
        // SQLite has locked its file already; migrations have no time limit
        let lock = "SET LOCAL statement_timeout = 0; DO $$ BEGIN PERFORM pg_advisory_xact_lock(7307121); END $$";
        sqlx::raw_sql(lock).execute(&mut *transaction).await.map_err(&failed)?;
    }
    if !exists(database, &mut transaction).await? {
        prepare(database, &mut transaction).await?;
    }
    let known = recorded(database, &mut transaction).await?;
    check(database, all, &known)?;
    let mut applied = Vec::new();
    for migration in all.iter().filter(|migration| known.iter().all(|known| known.number != migration.number)) {
        sqlx::raw_sql(migration.sql).execute(&mut *transaction).await.map_err(&failed)?;
        let sql = "INSERT INTO migrations (number, name, checksum, applied_at) VALUES ($1, $2, $3, $4)";
        let record = sqlx::query(sql).bind(migration.number).bind(migration.name).bind(migration.checksum());
        record.bind(time::now()).execute(&mut *transaction).await.map_err(&failed)?;
        if migration.number >= ROLLOUTS {
            let sql = "UPDATE migrations SET compatible_from = $1 WHERE number = $2";
            let record = sqlx::query(sql).bind(migration.compatible_from).bind(migration.number);
            record.execute(&mut *transaction).await.map_err(&failed)?;
        }
        applied.push(AppliedMigration { number: migration.number, name: migration.name.into() });
    }
    database.commit(transaction).await?;
    Ok(applied)
}

/// Checks that the database has all known migrations, and no other that this program cannot live with.
pub(super) async fn verify(database: &Database, all: &[Migration]) -> Result<()> {
    let mut transaction = database.reads.begin().await.map_err(database.failed("read the migrations"))?;
    let known = if exists(database, &mut transaction).await? {
        recorded(database, &mut transaction).await?
    } else {
        Vec::new()
    };
    check(database, all, &known)?;
    let has = |migration: &Migration| known.iter().any(|known| known.number == migration.number);
    if !all.iter().all(has) { Err(Error::config(database.kind.name(), NOT_MIGRATED)) } else { Ok(()) }
}

async fn exists(database: &Database, transaction: &mut Transaction<'static, Any>) -> Result<bool> {
    let sql = match database.kind {
        DatabaseKind::Sqlite { .. } => {
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'migrations'"
        }
        DatabaseKind::Postgres { .. } => "SELECT count(*) FROM pg_class WHERE oid = to_regclass('migrations')",
    };
    let count: i64 =
        sqlx::query_scalar(sql).fetch_one(&mut **transaction).await.map_err(database.failed("look for the tables"))?;
    Ok(count > 0)
}

async fn prepare(database: &Database, transaction: &mut Transaction<'static, Any>) -> Result<()> {
    let domain = match database.kind {
        DatabaseKind::Sqlite { .. } => "",
        DatabaseKind::Postgres { .. } => "CREATE DOMAIN key_text AS TEXT COLLATE \"C\";",
    };
    let table = "CREATE TABLE migrations (number BIGINT NOT NULL PRIMARY KEY, name TEXT NOT NULL, \
                 checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)";
    let sql = AssertSqlSafe(format!("{domain}{table}"));
    transaction.execute(sqlx::raw_sql(sql)).await.map_err(database.failed("migrate"))?;
    Ok(())
}

/// A migration in the database.
struct RecordedMigration {
    number: i64,
    name: String,
    checksum: String,
    compatible_from: i64,
}

async fn recorded(database: &Database, transaction: &mut Transaction<'static, Any>) -> Result<Vec<RecordedMigration>> {
    let failed = database.failed("read the migrations");
    let query = sqlx::query("SELECT number, name, checksum FROM migrations ORDER BY number");
    let rows = query.fetch_all(&mut **transaction).await.map_err(&failed)?;
    let read = |row: &sqlx::any::AnyRow| {
        let number = row.try_get(0)?;
        Ok(RecordedMigration { number, name: row.try_get(1)?, checksum: row.try_get(2)?, compatible_from: number })
    };
    let mut all: Vec<RecordedMigration> = rows.iter().map(|row| read(row).map_err(&failed)).collect::<Result<_>>()?;
    if all.iter().any(|migration| migration.number == ROLLOUTS) {
        let query = sqlx::query_as("SELECT number, compatible_from FROM migrations WHERE compatible_from IS NOT NULL");
        let recorded: Vec<(i64, i64)> = query.fetch_all(&mut **transaction).await.map_err(&failed)?;
        for (number, compatible_from) in recorded {
            all.iter_mut().filter(|migration| migration.number == number).for_each(|migration| {
                migration.compatible_from = compatible_from;
            });
        }
    }
    Ok(all)
}

fn newest(all: &[Migration]) -> i64 {
    all.last().map_or(0, |migration| migration.number)
}

fn check(database: &Database, all: &[Migration], known: &[RecordedMigration]) -> Result<()> {
    for RecordedMigration { number, name, checksum, compatible_from } in known {
        let (place, newest) = (database.kind.name(), newest(all));
        let Some(migration) = all.iter().find(|migration| migration.number == *number) else {
            if *compatible_from <= newest {
                // a newer version has migrated the ledger, and this one runs beside it
                continue;
            }
            let problem = format!(
                "has migration {number} (`{name}`), but this program knows migrations up to {newest}: use a newer Souk"
            );
            return Err(Error::config(place, problem));
        };
        if migration.checksum() != *checksum {
            let problem =
                format!("migration `{}` was edited after it was applied here: restore its text", migration.name);
            return Err(Error::config(place, problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::database::OpenMode;
    use super::*;
    use souk_io::address::Address;

    const FIRST: Migration =
        Migration { number: 1, name: "0001_a", sql: "CREATE TABLE a (x BIGINT);", compatible_from: 1 };
    const SECOND: Migration =
        Migration { number: 2, name: "0002_b", sql: "CREATE TABLE b (x BIGINT); DROP TABLE a;", compatible_from: 2 };

    async fn open(folder: &tempfile::TempDir) -> Database {
        let url = format!("sqlite:{}", folder.path().join("odd name?%.db").display());
        assert!(Database::open(&Address::new(&url), OpenMode::Create).await.is_err(), "parameters are rejected");
        let url = format!("sqlite:{}", folder.path().join("odd name%20#.db").display());
        Database::open(&Address::new(url), OpenMode::Create).await.unwrap()
    }

    #[tokio::test]
    async fn missing_migrations_are_applied_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let database = open(&folder).await;
        assert!(verify(&database, &[FIRST]).await.unwrap_err().to_string().contains("souk db migrate"));
        assert_eq!(apply(&database, &[FIRST]).await.unwrap().len(), 1);
        verify(&database, &[FIRST]).await.unwrap();
        assert!(verify(&database, &[FIRST, SECOND]).await.unwrap_err().to_string().contains("souk db migrate"));
        assert_eq!(
            apply(&database, &[FIRST, SECOND]).await.unwrap(),
            [AppliedMigration { number: 2, name: "0002_b".into() }]
        );
        assert_eq!(apply(&database, &[FIRST, SECOND]).await.unwrap(), []);
        assert!(folder.path().join("odd name%20#.db").exists());
    }

    #[tokio::test]
    async fn edited_and_unknown_migrations_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let database = open(&folder).await;
        apply(&database, &[FIRST, SECOND]).await.unwrap();
        let edited = Migration { sql: "CREATE TABLE a (y BIGINT);", ..FIRST };
        for refused in [apply(&database, &[edited, SECOND]).await.map(drop), verify(&database, &[edited, SECOND]).await]
        {
            assert!(refused.unwrap_err().to_string().contains("`0001_a` was edited"));
        }
        for refused in [apply(&database, &[FIRST]).await.map(drop), verify(&database, &[FIRST]).await] {
            let message = refused.unwrap_err().to_string();
            assert!(message.contains("migration 2 (`0002_b`)") && message.contains("up to 1"), "{message}");
        }
    }

    /// The version before can use a ledger that the new one has migrated; the one before that cannot.
    #[tokio::test]
    async fn two_versions_run_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let database = open(&folder).await;
        let next = |number: i64, name: &'static str, compatible_from: i64| Migration {
            number,
            name,
            sql: "SELECT 1;",
            compatible_from,
        };
        let mut before = ALL.to_vec();
        let newest = before.last().unwrap().number;
        apply(&database, &before).await.unwrap();
        let next = [next(newest + 1, "next", newest), next(newest + 2, "after", newest + 1)];
        let now = [before.as_slice(), &next[..1]].concat();
        assert!(verify(&database, &now).await.unwrap_err().to_string().contains("souk db migrate"));
        apply(&database, &now).await.unwrap();
        verify(&database, &now).await.unwrap();
        verify(&database, &before).await.unwrap();
        // so that a pod of the version before, which migrates first, can restart
        assert_eq!(apply(&database, &before).await.unwrap(), []);
        let after = [before.as_slice(), &next].concat();
        apply(&database, &after).await.unwrap();
        verify(&database, &now).await.unwrap();
        for refused in [verify(&database, &before).await, apply(&database, &before).await.map(drop)] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("(`after`), but this program knows migrations up to"), "{error}");
        }
        before.pop();
        assert!(verify(&database, &before).await.is_err());
    }

    #[tokio::test]
    async fn a_failed_migration_is_rolled_back() {
        let folder = tempfile::tempdir().unwrap();
        let database = open(&folder).await;
        let sql = "CREATE TABLE c (x BIGINT); INSERT INTO none;";
        let broken = Migration { number: 2, name: "0002_broken", sql, compatible_from: 2 };
        assert!(apply(&database, &[FIRST, broken]).await.is_err());
        assert_eq!(apply(&database, &[FIRST]).await.unwrap().len(), 1, "the first was rolled back too");
    }
}
