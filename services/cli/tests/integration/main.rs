//! Integration tests of the command line.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod backup;
mod commands;
mod console;
mod dist;
mod doctor;
mod documents;
mod evaluate;
mod experiment;
mod fingerprints;
mod generative;
mod index;
mod ingest;
mod item_text;
mod launch;
mod model_card;
mod power_loss;
mod relevance;
mod rewards;
mod rewrite;
mod settings;
mod stage;
mod start;
mod train;
mod train_log;
