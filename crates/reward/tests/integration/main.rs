//! Remote judges over real sockets, with cache and audits.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod reward;
