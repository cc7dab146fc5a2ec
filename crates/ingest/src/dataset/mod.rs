//! Training examples from search logs: events joined to their queries, stored in Arrow shards.
//!
//! `ingest` reads a log and writes a chain of commits per lane; `examples` maps them into memory; `example_counts`
//! counts them without opening them; `pairs` gives examples or judgements to a training stage.

mod chain;
mod example_counts;
mod examples;
mod ingest;
mod join;
mod lane;
mod lane_threads;
mod pairs;
mod positives;
mod settings;
mod shard;
mod strength;

pub use self::chain::{position_before, prune};
pub use self::example_counts::ExampleCounts;
pub use self::examples::{Example, Examples, Extent, Span};
pub use self::ingest::{Ingest, IngestProgress, OpenSource};
pub use self::join::{JoinCounts, Window};
pub use self::pairs::{PairSource, Pairs, TrainingPair, TrainingSplit};
pub use self::settings::IngestSettings;
pub use self::strength::Strength;

/// Folder of the examples within a data folder.
pub const EXAMPLES_FOLDER: &str = "examples";
