//! The [`Ledger`] trait, and its SQL implementation. Writes are atomic per call; send thousands of rows at a time, because a
//! PostgreSQL call times out after a minute. Pages have at most [`MAX_PAGE`] rows, and an empty page is the last.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::audit::{self, AuditMark};
use super::changes;
use super::copy::{self, LedgerCopy};
use super::database::{Database, DatabaseKind, OpenMode};
use super::migration::{self, AppliedMigration};
use super::offsets::{self, Offset};
use super::quality::{self, Quality};
use super::registry::{self, Generation, NewGeneration, NewVersion, Report, ServedVersion, Version, VersionState};
use super::votes::{self, PairVotes, Vote};
use souk_io::address::Address;
use souk_io::audit::{Audit, AuditLog};
use souk_io::catalogue_stream::Mutation;
use souk_io::error::{Answer, Error, Result};

pub const MAX_PAGE: usize = 10_000;
/// Time limit of one call.
const PATIENCE: Duration = Duration::from_secs(60);

/// Persistent state of a shop.
pub trait Ledger: AuditLog {
    /// Appends catalogue changes in order, all or none; returns the position of the last.
    fn append_changes<'a>(&'a self, mutations: &'a [Mutation]) -> Answer<'a, u64>;
    /// Appends them if none of their items has changed after the position `unchanged_since`, else none; returns none then.
    fn append_changes_if<'a>(&'a self, mutations: &'a [Mutation], unchanged_since: u64) -> Answer<'a, Option<u64>>;
    /// Catalogue changes after a position, with their positions, in order. Of several with one key, only the latest is there.
    fn page_changes(&self, after: u64, limit: usize) -> Answer<'_, Vec<(u64, Mutation)>>;
    /// Position of the last catalogue change, 0 if there is none. All changes up to it can be read.
    fn last_change(&self) -> Answer<'_, u64>;
    /// Tells this ledger's catalogue changes from those of others, such as one that was restored from a backup.
    fn stream_id(&self) -> Answer<'_, i64>;

    fn put_quality<'a>(&'a self, quality: &'a [Quality]) -> Answer<'a, ()>;
    /// In the order of `items`.
    fn get_quality<'a>(&'a self, items: &'a [String]) -> Answer<'a, Vec<Option<Quality>>>;

    /// Adds a candidate version.
    fn add_version<'a>(&'a self, version: &'a NewVersion) -> Answer<'a, ()>;
    fn version<'a>(&'a self, version: &'a str) -> Answer<'a, Option<Version>>;
    /// Newest first; `before` is the number of the last version seen.
    fn page_versions(&self, before: Option<i64>, limit: usize) -> Answer<'_, Vec<Version>>;
    /// Rejects a candidate.
    fn reject_version<'a>(&'a self, version: &'a str) -> Answer<'a, ()>;
    fn add_generation<'a>(&'a self, generation: &'a NewGeneration) -> Answer<'a, ()>;
    /// Index generations of a version, by name.
    fn page_generations<'a>(
        &'a self,
        version: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Generation>>;
    /// Makes this version, with this index generation, the live one.
    fn promote<'a>(&'a self, version: &'a str, generation: &'a str) -> Answer<'a, ()>;
    /// Rolls back `version` to its predecessor, which is returned. It is an error if `version` is not live, so concurrent
    /// rollbacks go back only one step.
    fn roll_back<'a>(&'a self, version: &'a str) -> Answer<'a, ServedVersion>;
    fn served(&self) -> Answer<'_, Option<ServedVersion>>;
    /// Versions that were live and not rolled back, latest first, each once as it was last served. The first is live, and a rollback
    /// goes back to the second.
    fn served_versions(&self, limit: usize) -> Answer<'_, Vec<ServedVersion>>;
    fn add_report<'a>(&'a self, version: &'a str, split: &'a str, metrics: &'a Value) -> Answer<'a, ()>;
    /// Reports of a version, newest first; `before` is the number of the last report seen.
    fn page_reports<'a>(&'a self, version: &'a str, before: Option<i64>, limit: usize) -> Answer<'a, Vec<Report>>;

    /// Returns how many were new; a vote with a known id is not counted again.
    fn append_votes<'a>(&'a self, votes: &'a [Vote]) -> Answer<'a, u64>;
    /// Votes after a number, with their numbers, in insertion order.
    fn page_votes(&self, after: i64, limit: usize) -> Answer<'_, Vec<(i64, Vote)>>;
    /// Vote counts per pair of channels, by name; the first [`MAX_PAGE`] pairs.
    fn summarise_votes(&self) -> Answer<'_, Vec<PairVotes>>;

    /// Moves all lanes or none, and returns which. None if another process has moved one since its revision was read.
    fn move_offsets<'a>(&'a self, source: &'a str, offsets: &'a [Offset]) -> Answer<'a, bool>;
    /// All lanes of a source, by name.
    fn offsets<'a>(&'a self, source: &'a str) -> Answer<'a, Vec<Offset>>;

    /// Audits after `after` and before `until`, by time, each with its position for the next page.
    fn page_audits(&self, after: AuditMark, until: i64, limit: usize) -> Answer<'_, Vec<(AuditMark, Audit)>>;
}

/// The version to deploy: the newest candidate that passed the gate, unless a newer version was ever live. Rolled-back and
/// rejected versions do not count.
pub async fn newest_offer(ledger: &dyn Ledger) -> Result<Option<Version>> {
    for version in ledger.page_versions(None, MAX_PAGE).await? {
        match version.state {
            VersionState::Candidate if version.is_offered() => return Ok(Some(version)),
            VersionState::Candidate | VersionState::Rejected => {}
            VersionState::Promoted | VersionState::RolledBack => return Ok(None),
        }
    }
    Ok(None)
}

/// Ledger in SQLite (`sqlite:PATH`) or PostgreSQL (`postgres://USER@HOST/DATABASE`).
pub struct SqlLedger {
    database: Database,
}

impl SqlLedger {
    /// False if the address is a SQLite file that does not exist.
    pub fn exists(address: &Address) -> Result<bool> {
        Database::exists(address)
    }

    /// Connects to a database that has exactly this program's migrations.
    pub async fn open(address: &Address) -> Result<Self> {
        let database = Database::open(address, OpenMode::Existing).await?;
        migration::verify(&database, migration::ALL).await?;
        Ok(Self { database })
    }

    /// Creates or migrates the tables, and the SQLite file if it is missing. Returns the applied migrations.
    pub async fn migrate(address: &Address) -> Result<Vec<AppliedMigration>> {
        let database = Database::open(address, OpenMode::Create).await?;
        let applied = migration::apply(&database, migration::ALL).await;
        database.close().await;
        applied
    }

    /// Copies all rows, as of one moment, to a file.
    pub async fn save(&self, path: &Path) -> Result<LedgerCopy> {
        copy::save(&self.database, path).await
    }

    /// Checks that this ledger has no rows.
    pub async fn check_empty(&self) -> Result<()> {
        copy::check_empty(&self.database).await
    }

    /// Reads such a file into this ledger, which must have no rows. `moved` is a version whose model is at another path now.
    pub async fn load(&self, path: &Path, moved: Option<(&str, &str)>) -> Result<LedgerCopy> {
        copy::load(&self.database, path, moved).await
    }

    #[cfg(test)]
    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    /// Adds a timeout for PostgreSQL; SQLite needs none.
    fn answer<'a, T: Send + 'a>(&'a self, work: impl Future<Output = Result<T>> + Send + 'a) -> Answer<'a, T> {
        match &self.database.kind {
            DatabaseKind::Sqlite { .. } => Box::pin(work),
            DatabaseKind::Postgres { server } => Box::pin(async move {
                let silent = |_| {
                    let problem = format!("did not answer within {} s", PATIENCE.as_secs());
                    Error::Upstream { service: server.clone(), problem, retryable: true, source: None }
                };
                tokio::time::timeout(PATIENCE, work).await.map_err(silent)?
            }),
        }
    }
}

impl Ledger for SqlLedger {
    fn append_changes<'a>(&'a self, mutations: &'a [Mutation]) -> Answer<'a, u64> {
        self.answer(async {
            let last = changes::append(&self.database, mutations, None).await?;
            Ok(last.expect("appended without a condition"))
        })
    }

    fn append_changes_if<'a>(&'a self, mutations: &'a [Mutation], unchanged_since: u64) -> Answer<'a, Option<u64>> {
        self.answer(changes::append(&self.database, mutations, Some(unchanged_since)))
    }

    fn page_changes(&self, after: u64, limit: usize) -> Answer<'_, Vec<(u64, Mutation)>> {
        self.answer(changes::page(&self.database, after, page(limit)))
    }

    fn last_change(&self) -> Answer<'_, u64> {
        self.answer(changes::last(&self.database))
    }

    fn stream_id(&self) -> Answer<'_, i64> {
        self.answer(changes::stream_id(&self.database))
    }

    fn put_quality<'a>(&'a self, quality: &'a [Quality]) -> Answer<'a, ()> {
        self.answer(quality::put(&self.database, quality))
    }

    fn get_quality<'a>(&'a self, items: &'a [String]) -> Answer<'a, Vec<Option<Quality>>> {
        self.answer(quality::get(&self.database, items))
    }

    fn add_version<'a>(&'a self, version: &'a NewVersion) -> Answer<'a, ()> {
        self.answer(registry::add_version(&self.database, version))
    }

    fn version<'a>(&'a self, version: &'a str) -> Answer<'a, Option<Version>> {
        self.answer(registry::version(&self.database, version))
    }

    fn page_versions(&self, before: Option<i64>, limit: usize) -> Answer<'_, Vec<Version>> {
        self.answer(registry::versions(&self.database, before, page(limit)))
    }

    fn reject_version<'a>(&'a self, version: &'a str) -> Answer<'a, ()> {
        self.answer(registry::reject(&self.database, version))
    }

    fn add_generation<'a>(&'a self, generation: &'a NewGeneration) -> Answer<'a, ()> {
        self.answer(registry::add_generation(&self.database, generation))
    }

    fn page_generations<'a>(
        &'a self,
        version: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Generation>> {
        self.answer(registry::generations(&self.database, version, after, page(limit)))
    }

    fn promote<'a>(&'a self, version: &'a str, generation: &'a str) -> Answer<'a, ()> {
        self.answer(registry::promote(&self.database, version, generation))
    }

    fn roll_back<'a>(&'a self, version: &'a str) -> Answer<'a, ServedVersion> {
        self.answer(registry::roll_back(&self.database, version))
    }

    fn served(&self) -> Answer<'_, Option<ServedVersion>> {
        self.answer(registry::served(&self.database))
    }

    fn served_versions(&self, limit: usize) -> Answer<'_, Vec<ServedVersion>> {
        self.answer(registry::served_versions(&self.database, page(limit)))
    }

    fn add_report<'a>(&'a self, version: &'a str, split: &'a str, metrics: &'a Value) -> Answer<'a, ()> {
        self.answer(registry::add_report(&self.database, version, split, metrics))
    }

    fn page_reports<'a>(&'a self, version: &'a str, before: Option<i64>, limit: usize) -> Answer<'a, Vec<Report>> {
        self.answer(registry::reports(&self.database, version, before, page(limit)))
    }

    fn append_votes<'a>(&'a self, votes: &'a [Vote]) -> Answer<'a, u64> {
        self.answer(votes::append(&self.database, votes))
    }

    fn page_votes(&self, after: i64, limit: usize) -> Answer<'_, Vec<(i64, Vote)>> {
        self.answer(votes::page(&self.database, after, page(limit)))
    }

    fn summarise_votes(&self) -> Answer<'_, Vec<PairVotes>> {
        self.answer(votes::summarise(&self.database, page(MAX_PAGE)))
    }

    fn move_offsets<'a>(&'a self, source: &'a str, offsets: &'a [Offset]) -> Answer<'a, bool> {
        self.answer(offsets::move_all(&self.database, source, offsets))
    }

    fn offsets<'a>(&'a self, source: &'a str) -> Answer<'a, Vec<Offset>> {
        self.answer(offsets::of_source(&self.database, source))
    }

    fn page_audits(&self, after: AuditMark, until: i64, limit: usize) -> Answer<'_, Vec<(AuditMark, Audit)>> {
        self.answer(audit::page(&self.database, after, until, page(limit)))
    }
}

impl AuditLog for SqlLedger {
    /// A batch that is sent again because its answer was lost is stored twice.
    fn append_audits<'a>(&'a self, audits: &'a [Audit]) -> Answer<'a, ()> {
        self.answer(audit::append(&self.database, audits))
    }
}

fn page(limit: usize) -> i64 {
    limit.clamp(1, MAX_PAGE) as i64
}
