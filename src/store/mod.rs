//! What outlives a process, and what need not. The [`Ledger`] keeps items, quality, model versions, index generations,
//! reports, votes, offsets and judged rewards, in SQLite or PostgreSQL under the same migrations; the [`Cache`] remembers
//! bytes in memory or in Redis. A write that was acknowledged is on disk. Nothing here ever shows a password.

mod address;
mod audit;
mod cache;
mod database;
mod failure;
mod items;
mod ledger;
mod migration;
mod offsets;
mod redis;
mod registry;
mod votes;

use std::pin::Pin;

pub use address::{Address, masked};
pub use audit::{Audit, AuditMark};
pub use cache::{Cache, MAX_KEY, MAX_VALUE, MemoryCache, Value, open_cache};
pub use items::{MAX_ITEM, Quality};
pub use ledger::{Ledger, MAX_PAGE, SqlLedger, newest_offer};
pub use migration::Applied;
pub use offsets::Offset;
pub use redis::RedisCache;
pub use registry::{Generation, GenerationState, NewGeneration, NewVersion, Report, Served, Version, VersionState};
pub use votes::{Grade, Grades, PairVotes, Side, Verdict, Vote};

use crate::error::Result;

/// What a ledger or a cache will answer; boxed, so that both can stand behind `dyn`.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;
