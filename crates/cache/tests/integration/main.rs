//! Conformance test of all caches.
#![expect(clippy::unwrap_used, reason = "tests stop at the first failure")]

mod caches;
