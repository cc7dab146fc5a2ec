//! Settings of an ingest: when to commit, and how to join.

use serde::{Deserialize, Serialize};

use super::join::Window;
use super::strength::Strength;

/// Commit intervals and join settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IngestSettings {
    pub commit_messages: u64,
    pub commit_seconds: u64,
    pub window: Window,
    pub strength: Strength,
}

impl Default for IngestSettings {
    fn default() -> Self {
        Self { commit_messages: 1 << 18, commit_seconds: 10, window: Window::default(), strength: Strength::default() }
    }
}
