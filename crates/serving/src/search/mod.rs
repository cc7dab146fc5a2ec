//! Search over a model and an index that change while in use. `query` searches, `rerank` orders the first hits again, `OpenGeneration` is a model with its
//! index, `ServingState` holds the served generation and swaps it, `follow` applies the changes of the catalogue stream, `saved` moves what is served to a
//! backup and back; `experiment` assigns shoppers to arms.
//! Never speaks HTTP.

mod backend;
mod build;
mod experiment;
mod follow;
mod generation;
mod model;
mod query;
mod record;
mod rerank;
mod saved;
mod service_deps;
mod serving_state;
mod settings;
mod stream_position;

pub use self::build::BuildProgress;
pub use self::experiment::{Arm, Comparison, Experiment, ExperimentKind, interleave};
pub use self::follow::WriteReceipt;
pub use self::generation::OpenGeneration;
pub use self::model::{ModelLoader, VersionModels};
pub use self::query::{Channel, ChannelScore, RankedHit, SearchParams, TermScore, TermScores, find};
pub use self::record::GenerationRecord;
pub use self::rerank::{RerankedHits, Reranking};
pub use self::saved::{InstalledAt, SavedVersion};
pub use self::service_deps::ServiceDeps;
pub use self::serving_state::{ServingState, Unprepared};
pub use self::settings::{Bounds, Events, IndexBackend, PromotionWebhook, Rerank, SearchSettings};
pub use self::stream_position::StreamLag;
