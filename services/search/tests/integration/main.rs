//! The search service over real sockets.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod access;
mod backup;
mod catalogue;
mod client;
mod clients;
mod crash;
mod encoder_load;
mod formats;
mod item_text;
mod learning;
mod milvus;
mod partition;
mod reload;
mod replicas;
mod rerank;
mod routes;
mod schedules;
mod start;
mod swap;
mod webhook;
