//! What every crate of Souk stands on: the error type, items and levels, data folders, search-log records, object stores,
//! files that appear whole or not at all, and telemetry.

pub mod address;
pub mod atomic_dir;
pub mod audit;
pub mod beir;
pub mod catalogue;
pub mod checksummed;
pub mod domain;
pub mod error;
pub mod objects;
pub mod shuffle;
pub mod splitmix;
pub mod telemetry;
pub mod time;
pub mod ubi;

pub use error::{Error, Result};
