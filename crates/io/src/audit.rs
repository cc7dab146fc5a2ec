//! Audit records of judgements, and the log they are appended to.

use crate::domain::Level;
use crate::error::Answer;

/// One judgement. A missing reward has neither score nor level.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    pub query: String,
    pub item: String,
    /// Hash of the judged text, in hexadecimal.
    pub text_hash: String,
    /// Id of the reward source.
    pub source: String,
    pub score: Option<f64>,
    pub level: Option<Level>,
    /// Milliseconds since 1970.
    pub judged_at: i64,
}

/// Append-only log of judgements.
pub trait AuditLog: Send + Sync {
    /// Appends all records or none.
    fn append_audits<'a>(&'a self, audits: &'a [Audit]) -> Answer<'a, ()>;
}
