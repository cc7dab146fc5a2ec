//! The search service over real sockets.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod backup;
mod catalogue;
mod client;
mod clients;
mod crash;
mod item_text;
mod milvus;
mod partition;
mod replicas;
mod rerank;
mod routes;
mod start;
mod swap;
