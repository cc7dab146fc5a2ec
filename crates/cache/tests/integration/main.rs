//! Every cache against the same conformance test.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod caches;
