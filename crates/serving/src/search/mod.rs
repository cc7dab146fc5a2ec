//! Search over a model and an index that change while in use. `query` searches, `rerank` orders the first hits again, `OpenGeneration` is a model with its
//! index, `ServingState` holds the served generation, applies changes and swaps; `experiment` assigns shoppers to arms.
//! Never speaks HTTP.

mod backend;
mod build;
mod experiment;
mod generation;
mod model;
mod query;
mod record;
mod rerank;
mod service_deps;
mod serving_state;
mod settings;

pub use self::build::BuildProgress;
pub use self::experiment::{Arm, Comparison, Experiment, ExperimentKind, interleave};
pub use self::generation::OpenGeneration;
pub use self::model::{ModelLoader, VersionModels};
pub use self::query::{Channel, ChannelScore, RankedHit, SearchParams, TermScore, TermScores, find};
pub use self::record::GenerationRecord;
pub use self::rerank::{RerankedHits, Reranking};
pub use self::service_deps::ServiceDeps;
pub use self::serving_state::{Mutation, ServingState, WriteReceipt};
pub use self::settings::{Bounds, Events, IndexBackend, Rerank, SearchSettings, Tls};
