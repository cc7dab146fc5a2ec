//! What a ledger can do, and the one that does it over SQL. A verb that writes has written all of its batch when it
//! answers, or nothing; send thousands at a time, for a server has a minute. A page has at most [`MAX_PAGE`] rows, and an
//! empty one is the last.

use std::time::Duration;

use serde_json::Value;

use super::audit::{self, AuditMark};
use super::database::{Database, DatabaseKind, OpenMode};
use super::items::{self, Quality};
use super::migration::{self, AppliedMigration};
use super::offsets::{self, Offset};
use super::registry::{self, Generation, NewGeneration, NewVersion, Report, ServedVersion, Version, VersionState};
use super::votes::{self, PairVotes, Vote};
use souk_io::address::Address;
use souk_io::audit::{Audit, AuditLog};
use souk_io::domain::Item;
use souk_io::error::{Answer, Error, Result};

pub const MAX_PAGE: usize = 10_000;
/// How long a server may take over one verb.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps what must outlive a process.
pub trait Ledger: AuditLog {
    fn put_items<'a>(&'a self, items: &'a [Item]) -> Answer<'a, ()>;
    /// In the order of `ids`.
    fn get_items<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<Item>>>;
    /// How many of them were there.
    fn delete_items<'a>(&'a self, ids: &'a [String]) -> Answer<'a, u64>;
    /// Those after an id, in the order of their ids' bytes.
    fn page_items<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<Item>>;

    fn put_quality<'a>(&'a self, quality: &'a [Quality]) -> Answer<'a, ()>;
    /// In the order of `items`.
    fn get_quality<'a>(&'a self, items: &'a [String]) -> Answer<'a, Vec<Option<Quality>>>;

    /// A new candidate.
    fn add_version<'a>(&'a self, version: &'a NewVersion) -> Answer<'a, ()>;
    fn version<'a>(&'a self, version: &'a str) -> Answer<'a, Option<Version>>;
    /// The newest first; `before` is the number of the last one seen.
    fn page_versions(&self, before: Option<i64>, limit: usize) -> Answer<'_, Vec<Version>>;
    /// A candidate is not to be served.
    fn reject_version<'a>(&'a self, version: &'a str) -> Answer<'a, ()>;
    fn add_generation<'a>(&'a self, generation: &'a NewGeneration) -> Answer<'a, ()>;
    /// Of one version, by name.
    fn page_generations<'a>(
        &'a self,
        version: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Generation>>;
    /// From now on this version is served, from this index.
    fn promote<'a>(&'a self, version: &'a str, generation: &'a str) -> Answer<'a, ()>;
    /// Goes back to what was served before `version`, and says what that is. An error where `version` is not the served
    /// one, so that two who roll back at once go back one step.
    fn roll_back<'a>(&'a self, version: &'a str) -> Answer<'a, ServedVersion>;
    fn served(&self) -> Answer<'_, Option<ServedVersion>>;
    fn add_report<'a>(&'a self, version: &'a str, split: &'a str, metrics: &'a Value) -> Answer<'a, ()>;
    /// Of one version, the newest first; `before` is the number of the last one seen.
    fn page_reports<'a>(&'a self, version: &'a str, before: Option<i64>, limit: usize) -> Answer<'a, Vec<Report>>;

    /// How many of them were new: a vote whose id is known is not counted again.
    fn append_votes<'a>(&'a self, votes: &'a [Vote]) -> Answer<'a, u64>;
    /// Those after a number, with their numbers, in the order they came.
    fn page_votes(&self, after: i64, limit: usize) -> Answer<'_, Vec<(i64, Vote)>>;
    /// Counted for each pair of channels, by name; the first [`MAX_PAGE`] pairs.
    fn summarise_votes(&self) -> Answer<'_, Vec<PairVotes>>;

    /// Moves all or none, and says which. None, where somebody else has moved one since its revision was read.
    fn move_offsets<'a>(&'a self, source: &'a str, offsets: &'a [Offset]) -> Answer<'a, bool>;
    /// Every lane of a source, by name.
    fn offsets<'a>(&'a self, source: &'a str) -> Answer<'a, Vec<Offset>>;

    /// What follows `after` and was judged before `until`, in the order of time; each with the mark to go on from.
    fn page_audits(&self, after: AuditMark, until: i64, limit: usize) -> Answer<'_, Vec<(AuditMark, Audit)>>;
}

/// What a trainer offers: the newest candidate that passed its gate, unless something newer was ever served, for what is
/// older than that was overtaken. A version that was rolled back or rejected is none.
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

/// A ledger in SQLite (`sqlite:PATH`) or PostgreSQL (`postgres://USER@HOST/DATABASE`).
pub struct SqlLedger {
    database: Database,
}

impl SqlLedger {
    /// Connects to a database whose migrations are this program's, no less and no more.
    pub async fn open(address: &Address) -> Result<Self> {
        let database = Database::open(address, OpenMode::Existing).await?;
        migration::verify(&database, migration::ALL).await?;
        Ok(Self { database })
    }

    /// Makes the tables, or brings them up to date; a missing SQLite file is made. Gives what had to be done.
    pub async fn migrate(address: &Address) -> Result<Vec<AppliedMigration>> {
        let database = Database::open(address, OpenMode::Create).await?;
        let applied = migration::apply(&database, migration::ALL).await;
        database.close().await;
        applied
    }

    /// A server that has gone silent is an error in the end; a file answers.
    fn answer<'a, T: Send + 'a>(&'a self, work: impl Future<Output = Result<T>> + Send + 'a) -> Answer<'a, T> {
        match &self.database.kind {
            DatabaseKind::Sqlite { .. } => Box::pin(work),
            DatabaseKind::Postgres { server } => Box::pin(async move {
                let silent = |_| {
                    let problem = format!("no answer in {} s", PATIENCE.as_secs());
                    Error::Upstream { service: server.clone(), problem, retryable: true, source: None }
                };
                tokio::time::timeout(PATIENCE, work).await.map_err(silent)?
            }),
        }
    }
}

impl Ledger for SqlLedger {
    fn put_items<'a>(&'a self, items: &'a [Item]) -> Answer<'a, ()> {
        self.answer(items::put(&self.database, items))
    }

    fn get_items<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<Item>>> {
        self.answer(items::get(&self.database, ids))
    }

    fn delete_items<'a>(&'a self, ids: &'a [String]) -> Answer<'a, u64> {
        self.answer(items::delete(&self.database, ids))
    }

    fn page_items<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<Item>> {
        self.answer(items::page(&self.database, after, page(limit)))
    }

    fn put_quality<'a>(&'a self, quality: &'a [Quality]) -> Answer<'a, ()> {
        self.answer(items::put_quality(&self.database, quality))
    }

    fn get_quality<'a>(&'a self, items: &'a [String]) -> Answer<'a, Vec<Option<Quality>>> {
        self.answer(items::get_quality(&self.database, items))
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
    /// A batch that is sent again, because its answer was lost, is stored twice.
    fn append_audits<'a>(&'a self, audits: &'a [Audit]) -> Answer<'a, ()> {
        self.answer(audit::append(&self.database, audits))
    }
}

fn page(limit: usize) -> i64 {
    limit.clamp(1, MAX_PAGE) as i64
}
