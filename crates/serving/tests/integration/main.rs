//! Vector indexes, embedded and on Milvus.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod index;
#[cfg(feature = "milvus")]
mod milvus;
mod questions;
