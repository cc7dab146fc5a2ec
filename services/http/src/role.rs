//! Roles of API keys.

use std::fmt;

/// Purpose of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Searches, embeds, judges, and reads items and the state of a service.
    Search,
    /// Casts votes.
    Vote,
    /// Tells events.
    Events,
    /// Changes items.
    Write,
    /// Registers, promotes and rolls back versions.
    Operate,
}

impl Role {
    pub const ALL: [Self; 5] = [Self::Search, Self::Vote, Self::Events, Self::Write, Self::Operate];

    pub fn name(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::Vote => "vote",
            Self::Events => "events",
            Self::Write => "write",
            Self::Operate => "operate",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
