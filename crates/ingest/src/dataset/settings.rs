//! Settings of an ingest: when to commit, and how to join.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::join::Window;
use super::strength::Strength;
use souk_io::error::{Error, Result};

/// Commit intervals and join settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IngestSettings {
    /// Messages of the log after which a commit is written.
    pub commit_messages: u64,
    /// Seconds after which a commit is written.
    pub commit_seconds: u64,
    /// Longest log time of a commit, in hours, so that an old log that is read at once can still be divided by time.
    pub commit_log_hours: f64,
    /// How long an event waits for its query.
    pub window: Window,
    /// Weights of shoppers' actions.
    pub strength: Strength,
}

impl Default for IngestSettings {
    fn default() -> Self {
        Self {
            commit_messages: 1 << 18,
            commit_seconds: 10,
            commit_log_hours: 24.0,
            window: Window::default(),
            strength: Strength::default(),
        }
    }
}

impl IngestSettings {
    pub fn check(&self) -> Result<()> {
        self.strength.check()?;
        if self.commit_messages == 0 || self.commit_messages > u64::from(u32::MAX) {
            return Err(Error::config("ingest.commit_messages", "must be from 1 to 4294967295"));
        }
        if !(self.commit_log_hours > 0.0 && self.commit_log_hours.is_finite()) {
            return Err(Error::config("ingest.commit_log_hours", "must be more than 0"));
        }
        Ok(())
    }

    /// Longest log time of a commit, in milliseconds.
    pub fn commit_log_millis(&self) -> u64 {
        (self.commit_log_hours * 3_600_000.0) as u64
    }
}
