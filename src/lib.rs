//! Souk trains and serves the dense retriever of an online shop.
//!
//! The library is in the order data flows: a [`log`] of searches becomes a [`dataset`] of examples; a model folder becomes a
//! [`backbone`] (tokens to states), a backbone an [`encoder`] (text to vectors), vectors an [`index`], in which [`search`] finds items; [`indexing`] makes one of a catalogue of any size. [`import`] and
//! [`market`] bring data folders ([`beir`]), [`lexical`] is the channel beside, [`store`] what outlives a process, a [`worker`] a model's own
//! thread, [`objects`] what lies at an address. [`train`]
//! makes an encoder better by an [`objective`] with an [`optimizer`] and [`checkpoint`]s, in one process or many
//! ([`collective`]), [`relevance`] a cross-encoder that judges. A [`reward`] source judges what was found, a [`report`] measures it, [`rounds`] do all this again and again. Each room imports only rooms
//! before it; [`config`] builds them from TOML and stands last.

pub mod backbone;
pub mod beir;
pub mod candidates;
pub mod checkpoint;
pub mod claim;
pub mod collective;
pub mod config;
pub mod dataset;
pub mod domain;
pub mod encoder;
pub mod error;
pub mod import;
pub mod index;
pub mod indexing;
pub mod lexical;
pub mod log;
pub mod market;
pub mod objective;
pub mod objects;
pub mod optimizer;
pub mod plan;
pub mod relevance;
pub mod report;
pub mod reward;
pub mod rounds;
pub mod search;
pub mod store;
pub mod summed;
pub mod telemetry;
pub mod train;
pub mod worker;

pub use error::{Error, Result};

/// The libtorch this process really loaded.
pub fn libtorch_version() -> String {
    souk_native::torch_version()
}

/// Whether this processor computes 8-bit products without saturating, which `precision = "int8"` needs.
pub fn supports_int8() -> bool {
    souk_native::supports_int8()
}
