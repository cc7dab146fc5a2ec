//! The shared HTTP code, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod front;
