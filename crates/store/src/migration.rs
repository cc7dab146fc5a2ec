//! Applies the numbered migrations in `migrations/`. A migration that was edited after it was applied, or that this program does not
//! know, is an error that names it. Migrations are never reverted.

use sha2::{Digest, Sha256};
use sqlx::{Any, AssertSqlSafe, Executor, Row, Transaction};

use super::database::{Database, DatabaseKind, NOT_MIGRATED, now};
use souk_io::error::{Error, Result};

#[derive(Clone, Copy)]
pub(super) struct Migration {
    pub number: i64,
    pub name: &'static str,
    pub sql: &'static str,
}

pub(super) const ALL: &[Migration] = &[
    Migration { number: 1, name: "0001_ledger", sql: include_str!("../../../migrations/0001_ledger.sql") },
    Migration { number: 2, name: "0002_catalogue", sql: include_str!("../../../migrations/0002_catalogue.sql") },
];

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
    for migration in all.iter().filter(|migration| known.iter().all(|(number, ..)| *number != migration.number)) {
        sqlx::raw_sql(migration.sql).execute(&mut *transaction).await.map_err(&failed)?;
        let sql = "INSERT INTO migrations (number, name, checksum, applied_at) VALUES ($1, $2, $3, $4)";
        let record = sqlx::query(sql).bind(migration.number).bind(migration.name).bind(migration.checksum());
        record.bind(now()).execute(&mut *transaction).await.map_err(&failed)?;
        applied.push(AppliedMigration { number: migration.number, name: migration.name.into() });
    }
    database.commit(transaction).await?;
    Ok(applied)
}

/// Checks that the database has exactly the known migrations.
pub(super) async fn verify(database: &Database, all: &[Migration]) -> Result<()> {
    let mut transaction = database.reads.begin().await.map_err(database.failed("read the migrations"))?;
    let known = if exists(database, &mut transaction).await? {
        recorded(database, &mut transaction).await?
    } else {
        Vec::new()
    };
    check(database, all, &known)?;
    if known.len() < all.len() { Err(Error::config(database.kind.name(), NOT_MIGRATED)) } else { Ok(()) }
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

/// Number, name and checksum of each applied migration.
async fn recorded(
    database: &Database,
    transaction: &mut Transaction<'static, Any>,
) -> Result<Vec<(i64, String, String)>> {
    let failed = database.failed("read the migrations");
    let query = sqlx::query("SELECT number, name, checksum FROM migrations ORDER BY number");
    let rows = query.fetch_all(&mut **transaction).await.map_err(&failed)?;
    let read = |row: &sqlx::any::AnyRow| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
    rows.iter().map(|row| read(row).map_err(&failed)).collect()
}

fn check(database: &Database, all: &[Migration], known: &[(i64, String, String)]) -> Result<()> {
    for (number, name, checksum) in known {
        let place = database.kind.name();
        let Some(migration) = all.iter().find(|migration| migration.number == *number) else {
            let newest = all.last().map_or(0, |migration| migration.number);
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

    const FIRST: Migration = Migration { number: 1, name: "0001_a", sql: "CREATE TABLE a (x BIGINT);" };
    const SECOND: Migration = Migration { number: 2, name: "0002_b", sql: "CREATE TABLE b (x BIGINT); DROP TABLE a;" };

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

    #[tokio::test]
    async fn a_failed_migration_is_rolled_back() {
        let folder = tempfile::tempdir().unwrap();
        let database = open(&folder).await;
        let broken = Migration { number: 2, name: "0002_broken", sql: "CREATE TABLE c (x BIGINT); INSERT INTO none;" };
        assert!(apply(&database, &[FIRST, broken]).await.is_err());
        assert_eq!(apply(&database, &[FIRST]).await.unwrap().len(), 1, "the first was rolled back too");
    }
}
