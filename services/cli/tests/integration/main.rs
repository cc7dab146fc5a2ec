//! The command line as a user runs it.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod doctor;
mod evaluate;
mod experiment;
mod fingerprints;
mod generative;
mod index;
mod ingest;
mod launch;
mod relevance;
mod rewards;
mod stage;
mod train;
mod verbs;
