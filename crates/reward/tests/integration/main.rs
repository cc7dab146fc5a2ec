//! Judges over real sockets, with their cache and audits.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod reward;
