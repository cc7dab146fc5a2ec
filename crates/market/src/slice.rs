//! Kinds of queries: the slices of the paper.

use serde::Serialize;

/// Kind of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QuerySlice {
    General,
    LongTail,
    Qa,
    Alternative,
    Negative,
    Knowledge,
}

impl QuerySlice {
    pub const ALL: [Self; 6] =
        [Self::General, Self::LongTail, Self::Qa, Self::Alternative, Self::Negative, Self::Knowledge];

    pub fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::LongTail => "long_tail",
            Self::Qa => "qa",
            Self::Alternative => "alternative",
            Self::Negative => "negative",
            Self::Knowledge => "knowledge",
        }
    }

    /// Weight among training queries.
    pub fn weight(self) -> f32 {
        match self {
            Self::General => 0.44,
            Self::LongTail => 0.24,
            _ => 0.08,
        }
    }
}
