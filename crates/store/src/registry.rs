//! Model registry: versions, their index generations and reports, and which version is live. A version and its index generation
//! are promoted and rolled back together. A rolled-back or rejected version never becomes live again.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{Any, Row, Transaction};

use super::database::{Database, checked_key, checked_text};
use souk_io::error::{Error, Result};
use souk_io::time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionState {
    /// Trained, never live.
    Candidate,
    /// Live, or live until its successor was promoted.
    Promoted,
    Rejected,
    RolledBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GenerationState {
    Built,
    Served,
    Retired,
}

/// Version to register.
#[derive(Clone, Debug, PartialEq)]
pub struct NewVersion {
    pub version: String,
    /// Model folder.
    pub path: String,
    pub fingerprint: String,
    /// Version that it was trained from.
    pub parent: Option<String>,
    pub metrics: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Version {
    pub version: String,
    /// Versions are numbered in insertion order.
    pub number: i64,
    pub path: String,
    pub fingerprint: String,
    pub parent: Option<String>,
    pub metrics: Value,
    pub state: VersionState,
    pub created_at: i64,
}

impl Version {
    /// True if a trainer's gate passed it and it has been neither promoted nor rejected.
    pub fn is_offered(&self) -> bool {
        self.state == VersionState::Candidate && self.metrics["gate"]["passed"] == true
    }
}

/// Index generation to register.
#[derive(Clone, Debug, PartialEq)]
pub struct NewGeneration {
    pub generation: String,
    pub version: String,
    pub path: String,
    pub manifest: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Generation {
    pub generation: String,
    pub version: String,
    pub path: String,
    pub manifest: Value,
    pub state: GenerationState,
    pub created_at: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServedVersion {
    pub version: String,
    pub generation: String,
    pub promoted_at: i64,
}

/// Evaluation of a version on a split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub number: i64,
    pub version: String,
    pub split: String,
    pub metrics: Value,
    pub created_at: i64,
}

const STANDING: &str = "SELECT version, generation, promoted_at FROM promotions WHERE undone_at IS NULL \
                        ORDER BY number DESC LIMIT 1";

pub(super) async fn add_version(database: &Database, new: &NewVersion) -> Result<()> {
    checked_key("a version's name", &new.version)?;
    for text in [&new.path, &new.fingerprint] {
        checked_text("a version's path or fingerprint", text)?;
    }
    let mut transaction = database.begin().await?;
    let number = database.reserve_numbers(&mut transaction, "version", 1).await?;
    if let Some(parent) = &new.parent {
        state_of(database, &mut transaction, parent).await?;
    }
    let sql = "INSERT INTO versions (version, number, path, fingerprint, parent, metrics, state, created_at) \
               VALUES ($1, $2, $3, $4, $5, $6, 'candidate', $7) ON CONFLICT (version) DO NOTHING";
    let query = sqlx::query(sql).bind(&new.version).bind(number).bind(&new.path).bind(&new.fingerprint);
    let query = query.bind(new.parent.as_deref()).bind(new.metrics.to_string()).bind(time::now());
    let done = query.execute(&mut *transaction).await.map_err(database.failed("add a version"))?;
    if done.rows_affected() == 0 {
        return Err(Error::input(format!("the version `{}` already exists: use another name", new.version)));
    }
    database.commit(transaction).await
}

pub(super) async fn version(database: &Database, name: &str) -> Result<Option<Version>> {
    checked_text("a version's name", name)?;
    let query = sqlx::query("SELECT * FROM versions WHERE version = $1").bind(name);
    let row = query.fetch_optional(&database.reads).await.map_err(database.failed("read a version"))?;
    row.map(|row| read_version(database, &row)).transpose()
}

/// Newest first; `before` is the number of the last version seen.
pub(super) async fn versions(database: &Database, before: Option<i64>, limit: i64) -> Result<Vec<Version>> {
    let query = sqlx::query("SELECT * FROM versions WHERE number < $1 ORDER BY number DESC LIMIT $2");
    let query = query.bind(before.unwrap_or(i64::MAX)).bind(limit);
    let rows = query.fetch_all(&database.reads).await.map_err(database.failed("read versions"))?;
    rows.iter().map(|row| read_version(database, row)).collect()
}

pub(super) async fn reject(database: &Database, version: &str) -> Result<()> {
    let mut transaction = database.begin().await?;
    // concurrent state changes wait for each other
    database.reserve_numbers(&mut transaction, "promotion", 1).await?;
    match state_of(database, &mut transaction, version).await? {
        VersionState::Candidate => move_version(database, &mut transaction, version, VersionState::Rejected).await?,
        VersionState::Rejected => {}
        state => return Err(Error::input(format!("`{version}` is {}: only candidates can be rejected", name(state)))),
    }
    database.commit(transaction).await
}

pub(super) async fn add_generation(database: &Database, new: &NewGeneration) -> Result<()> {
    checked_key("a generation's name", &new.generation)?;
    checked_text("a generation's path", &new.path)?;
    let mut transaction = database.begin().await?;
    state_of(database, &mut transaction, &new.version).await?;
    let sql = "INSERT INTO generations (generation, version, path, manifest, state, created_at) \
               VALUES ($1, $2, $3, $4, 'built', $5) ON CONFLICT (generation) DO NOTHING";
    let query = sqlx::query(sql).bind(&new.generation).bind(&new.version).bind(&new.path);
    let query = query.bind(new.manifest.to_string()).bind(time::now());
    let done = query.execute(&mut *transaction).await.map_err(database.failed("add a generation"))?;
    if done.rows_affected() == 0 {
        return Err(Error::input(format!("the generation `{}` already exists: use another name", new.generation)));
    }
    database.commit(transaction).await
}

/// Index generations of a version, by name.
pub(super) async fn generations(
    database: &Database,
    version: &str,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<Generation>> {
    checked_text("a version's name", version)?;
    checked_text("a generation's name", after.unwrap_or_default())?;
    let failed = database.failed("read generations");
    let sql = "SELECT * FROM generations WHERE version = $1 AND generation > $2 ORDER BY generation LIMIT $3";
    let query = sqlx::query(sql).bind(version).bind(after.unwrap_or_default()).bind(limit);
    let rows = query.fetch_all(&database.reads).await.map_err(&failed)?;
    let read = |row: &AnyRow| {
        Ok(Generation {
            generation: row.try_get("generation").map_err(&failed)?,
            version: row.try_get("version").map_err(&failed)?,
            path: row.try_get("path").map_err(&failed)?,
            manifest: database.parse_column(row, "manifest")?,
            state: read_state(database, row)?,
            created_at: row.try_get("created_at").map_err(&failed)?,
        })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn promote(database: &Database, version: &str, generation: &str) -> Result<()> {
    checked_text("a generation's name", generation)?;
    let failed = database.failed("promote");
    let mut transaction = database.begin().await?;
    let number = database.reserve_numbers(&mut transaction, "promotion", 1).await?;
    let state = state_of(database, &mut transaction, version).await?;
    if let VersionState::Rejected | VersionState::RolledBack = state {
        return Err(Error::input(format!("`{version}` is {}: it cannot be promoted again", name(state))));
    }
    let query = sqlx::query_scalar("SELECT version FROM generations WHERE generation = $1").bind(generation);
    let owner: Option<String> = query.fetch_optional(&mut *transaction).await.map_err(&failed)?;
    if owner.as_deref() != Some(version) {
        return Err(Error::input(format!("`{generation}` is not an index generation of `{version}`")));
    }
    if let Some(standing) = standing(database, &mut transaction).await? {
        move_generation(database, &mut transaction, &standing.generation, GenerationState::Retired).await?;
    }
    move_version(database, &mut transaction, version, VersionState::Promoted).await?;
    move_generation(database, &mut transaction, generation, GenerationState::Served).await?;
    let sql = "INSERT INTO promotions (number, version, generation, promoted_at) VALUES ($1, $2, $3, $4)";
    let query = sqlx::query(sql).bind(number).bind(version).bind(generation).bind(time::now());
    query.execute(&mut *transaction).await.map_err(&failed)?;
    database.commit(transaction).await
}

/// Rolls back to the predecessor of `version`, if `version` is live.
pub(super) async fn roll_back(database: &Database, version: &str) -> Result<ServedVersion> {
    checked_text("a version's name", version)?;
    let failed = database.failed("roll back");
    let mut transaction = database.begin().await?;
    database.reserve_numbers(&mut transaction, "promotion", 1).await?;
    let nothing = || Error::input("no version is live: there is nothing to roll back");
    let served = standing(database, &mut transaction).await?.ok_or_else(nothing)?;
    if served.version != version {
        return Err(Error::input(format!("`{version}` is not live, `{}` is: check again", served.version)));
    }
    let sql = "UPDATE promotions SET undone_at = $1 WHERE version = $2 AND undone_at IS NULL";
    sqlx::query(sql).bind(time::now()).bind(version).execute(&mut *transaction).await.map_err(&failed)?;
    let first = || Error::input(format!("no version was live before `{version}`: promote another version"));
    let before = standing(database, &mut transaction).await?.ok_or_else(first)?;
    move_version(database, &mut transaction, version, VersionState::RolledBack).await?;
    move_generation(database, &mut transaction, &served.generation, GenerationState::Retired).await?;
    move_generation(database, &mut transaction, &before.generation, GenerationState::Served).await?;
    database.commit(transaction).await?;
    Ok(before)
}

pub(super) async fn served(database: &Database) -> Result<Option<ServedVersion>> {
    let failed = database.failed("read what is served");
    let row = sqlx::query(STANDING).fetch_optional(&database.reads).await.map_err(&failed)?;
    row.map(|row| read_served(&row).map_err(failed)).transpose()
}

pub(super) async fn served_versions(database: &Database, limit: i64) -> Result<Vec<ServedVersion>> {
    let failed = database.failed("read what was served");
    let sql = "SELECT version, generation, promoted_at FROM promotions WHERE number IN \
               (SELECT MAX(number) FROM promotions WHERE undone_at IS NULL GROUP BY version) ORDER BY number DESC LIMIT $1";
    let rows = sqlx::query(sql).bind(limit).fetch_all(&database.reads).await.map_err(&failed)?;
    rows.iter().map(|row| read_served(row).map_err(&failed)).collect()
}

pub(super) async fn add_report(database: &Database, version: &str, split: &str, metrics: &Value) -> Result<()> {
    checked_text("a split's name", split)?;
    let mut transaction = database.begin().await?;
    let number = database.reserve_numbers(&mut transaction, "report", 1).await?;
    state_of(database, &mut transaction, version).await?;
    let sql = "INSERT INTO reports (number, version, split, metrics, created_at) VALUES ($1, $2, $3, $4, $5)";
    let query = sqlx::query(sql).bind(number).bind(version).bind(split).bind(metrics.to_string()).bind(time::now());
    query.execute(&mut *transaction).await.map_err(database.failed("add a report"))?;
    database.commit(transaction).await
}

/// Reports of a version, newest first; `before` is the number of the last report seen.
pub(super) async fn reports(
    database: &Database,
    version: &str,
    before: Option<i64>,
    limit: i64,
) -> Result<Vec<Report>> {
    checked_text("a version's name", version)?;
    let failed = database.failed("read reports");
    let sql = "SELECT * FROM reports WHERE version = $1 AND number < $2 ORDER BY number DESC LIMIT $3";
    let query = sqlx::query(sql).bind(version).bind(before.unwrap_or(i64::MAX)).bind(limit);
    let rows = query.fetch_all(&database.reads).await.map_err(&failed)?;
    let read = |row: &AnyRow| {
        Ok(Report {
            number: row.try_get("number").map_err(&failed)?,
            version: row.try_get("version").map_err(&failed)?,
            split: row.try_get("split").map_err(&failed)?,
            metrics: database.parse_column(row, "metrics")?,
            created_at: row.try_get("created_at").map_err(&failed)?,
        })
    };
    rows.iter().map(read).collect()
}

fn read_version(database: &Database, row: &AnyRow) -> Result<Version> {
    let failed = database.failed("read a version");
    Ok(Version {
        version: row.try_get("version").map_err(&failed)?,
        number: row.try_get("number").map_err(&failed)?,
        path: row.try_get("path").map_err(&failed)?,
        fingerprint: row.try_get("fingerprint").map_err(&failed)?,
        parent: row.try_get("parent").map_err(&failed)?,
        metrics: database.parse_column(row, "metrics")?,
        state: read_state(database, row)?,
        created_at: row.try_get("created_at").map_err(&failed)?,
    })
}

fn read_served(row: &AnyRow) -> sqlx::Result<ServedVersion> {
    Ok(ServedVersion { version: row.try_get(0)?, generation: row.try_get(1)?, promoted_at: row.try_get(2)? })
}

fn read_state<T: serde::de::DeserializeOwned>(database: &Database, row: &AnyRow) -> Result<T> {
    let text: String = row.try_get("state").map_err(database.failed("read a state"))?;
    serde_json::from_value(Value::String(text)).map_err(|e| database.corrupt("an unknown state".into()).because(e))
}

/// State as in the tables and in messages.
fn name<T: Serialize>(state: T) -> String {
    let json = serde_json::to_value(state).expect("a state is a name");
    json.as_str().unwrap_or_default().to_owned()
}

async fn standing(database: &Database, transaction: &mut Transaction<'static, Any>) -> Result<Option<ServedVersion>> {
    let failed = database.failed("read what is served");
    let row = sqlx::query(STANDING).fetch_optional(&mut **transaction).await.map_err(&failed)?;
    row.map(|row| read_served(&row).map_err(failed)).transpose()
}

async fn state_of(
    database: &Database,
    transaction: &mut Transaction<'static, Any>,
    version: &str,
) -> Result<VersionState> {
    checked_text("a version's name", version)?;
    let query = sqlx::query("SELECT state FROM versions WHERE version = $1").bind(version);
    let row = query.fetch_optional(&mut **transaction).await.map_err(database.failed("read a version"))?;
    let row = row.ok_or_else(|| Error::input(format!("no version `{version}`")))?;
    read_state(database, &row)
}

async fn move_version(
    database: &Database,
    transaction: &mut Transaction<'static, Any>,
    version: &str,
    state: VersionState,
) -> Result<()> {
    let query = sqlx::query("UPDATE versions SET state = $1 WHERE version = $2").bind(name(state)).bind(version);
    query.execute(&mut **transaction).await.map(drop).map_err(database.failed("move a version"))
}

async fn move_generation(
    database: &Database,
    transaction: &mut Transaction<'static, Any>,
    generation: &str,
    state: GenerationState,
) -> Result<()> {
    let query = sqlx::query("UPDATE generations SET state = $1 WHERE generation = $2").bind(name(state));
    let query = query.bind(generation);
    query.execute(&mut **transaction).await.map(drop).map_err(database.failed("move a generation"))
}
