//! From a query to hits, over a model and an index that change while they are used. `query` finds, `Generation` is a model
//! with its index as one, `Shop` holds the generation that is served, takes changes and swaps; `experiment` says who sees
//! what. Knows no wire.

mod build;
mod experiment;
mod folder;
mod generation;
mod place;
mod query;
mod settings;
mod shop;

pub use self::build::{Building, Models};
pub use self::experiment::{Arm, Comparison, Experiment, ExperimentKind, interleave};
pub use self::folder::Parts;
pub use self::generation::{Generation, Record};
pub use self::query::{Channel, Part, Ranked, Wanted, Weights, find};
pub use self::settings::{Bounds, Events, Place, SearchSettings, Tls};
pub use self::shop::{Applied, Shop, Wish};
