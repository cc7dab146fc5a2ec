//! A record of one judgement, and where such records go.

use crate::domain::Level;
use crate::error::Answer;

/// One judgement. A missing reward is recorded as missing: it has neither score nor level.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    pub query: String,
    pub item: String,
    /// Of the text that was judged, in hexadecimal.
    pub text_hash: String,
    /// Who judged: the reward source's id.
    pub source: String,
    pub score: Option<f64>,
    pub level: Option<Level>,
    /// Milliseconds since 1970.
    pub judged_at: i64,
}

/// An append-only log of judgements.
pub trait AuditLog: Send + Sync {
    /// Appends all of them or none.
    fn append_audits<'a>(&'a self, audits: &'a [Audit]) -> Answer<'a, ()>;
}
