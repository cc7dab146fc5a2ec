//! The trainer, round by round.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod rounds;
