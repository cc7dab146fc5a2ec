//! From logs to training examples: events joined to their queries, kept in Arrow shards, drawn in a shuffled order.
//!
//! `ingest` reads a log and leaves a chain of commits for each of its lanes; `examples` maps them into memory; `shuffle`
//! says in which order they are drawn; `stock` counts them; `pairs` gives them, or
//! judgements, to a training stage; `catalogue` finds an item by its id and draws negatives among all.

mod chain;
mod examples;
mod ingest;
mod join;
mod pairs;
mod positives;
mod shard;
mod stock;
mod strength;

pub use self::chain::forget;
pub use self::examples::{Example, Examples, Extent, Span};
pub use self::ingest::{Ingest, IngestSettings, OpenSource, Progress};
pub use self::join::{Counts, Window};
pub use self::pairs::{Pair, PairSource, Pairs};
pub use self::stock::Stock;
pub use self::strength::Strength;

/// Where a data folder keeps its examples.
pub const EXAMPLES_FOLDER: &str = "examples";
