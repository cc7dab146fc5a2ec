//! Backbones and encoders against golden files, the worker, and collectives between processes.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod bad_input;
mod collective;
mod golden;
mod minilm;
mod worker;
