//! Souk trains and serves the dense retriever of an online shop.
//!
//! This crate holds the method: [`objective`]s, [`candidates`], the training loop ([`train`]), [`plan`], the configuration that
//! builds everything ([`config`]), the card of a trained model ([`model_card`]), and what concerns all of it ([`backup`]). The other crates are re-exported here, so that `souk` is the only dependency a
//! program needs. `ARCHITECTURE.md` draws them all, and `examples/` has whole programs.
//!
//! # A vector
//!
//! ```no_run
//! use souk::config::{Change, Config};
//! use souk::domain::TextKind;
//!
//! let model = Change::text("model.path", "model", "sentence-transformers/all-MiniLM-L6-v2");
//! let encoder = Config::load(None, &[model])?.open_encoder()?.freeze()?;
//! let text = encoder.reader().read("red desk lamp", Some(TextKind::Query))?;
//! println!("{:?}", encoder.vectors(&[&text])?);
//! # Ok::<(), souk::Error>(())
//! ```
//!
//! # Metrics of a split
//!
//! ```no_run
//! use souk::report::EvaluationRun;
//!
//! // written by `souk evaluate --out MEASURED`
//! let run = EvaluationRun::load("MEASURED".as_ref())?;
//! println!("{:?} {:?}", run.metrics.overall["ndcg@10"], run.metrics.intervals["ndcg@10"]);
//! # Ok::<(), souk::Error>(())
//! ```

#![warn(missing_docs)]

pub mod backup;
pub mod candidates;
pub mod checkpoint;
pub mod config;
pub mod model_card;
pub mod objective;
pub mod plan;
pub mod train;

pub use souk_cache as cache;
pub use souk_cross_encoder as cross_encoder;
pub use souk_ingest::{dataset, import, judgements, log};
pub use souk_io::{
    Error, Result, address, atomic_dir, audit, backoff, backups, beir, catalogue, catalogue_stream, changed_catalogue,
    checksummed, disk, domain, error, held_out, item_text, objects, shuffle, telemetry, time, ubi,
};
pub use souk_lexical as lexical;
pub use souk_market as market;
pub use souk_nn::{backbone, collective, encoder, optimizer, worker};
pub use souk_report as report;
pub use souk_reward as reward;
pub use souk_serving::{index, indexing, map, search, vector_export};
pub use souk_store as store;

/// The libtorch this process really loaded.
pub fn libtorch_version() -> String {
    souk_native::torch_version()
}
