//! The ledger: catalogue changes, quality, model versions, index generations, reports, votes, offsets and audited judgements, in SQLite or
//! PostgreSQL with the same migrations. An acknowledged write is on disk. No error or log shows a password.

mod audit;
mod changes;
mod copy;
mod database;
mod failure;
mod ledger;
mod migration;
mod offsets;
mod quality;
mod registry;
mod votes;

pub use audit::AuditMark;
pub use changes::MAX_ITEM;
pub use copy::LedgerCopy;
pub use ledger::{Ledger, MAX_PAGE, SqlLedger, newest_offer};
pub use migration::AppliedMigration;
pub use offsets::Offset;
pub use quality::Quality;
pub use registry::{
    Generation, GenerationState, NewGeneration, NewVersion, Report, ServedVersion, Version, VersionState,
};
pub use votes::{Grade, Grades, PairVotes, Side, Vote, VoteVerdict};
