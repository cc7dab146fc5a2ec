//! Foundation of all crates of Souk: the error type, items and levels, data folders, search-log records, object stores,
//! atomic and checksummed files, backups, work on all cores, and telemetry.

pub mod address;
pub mod atomic_dir;
pub mod audit;
pub mod backoff;
pub mod backups;
pub mod beir;
pub mod catalogue;
pub mod catalogue_stream;
pub mod changed_catalogue;
pub mod checksummed;
pub mod cores;
pub mod disk;
pub mod domain;
pub mod error;
pub mod excerpt;
pub mod fnv;
pub mod held_out;
pub mod item_text;
pub mod names;
pub mod objects;
pub mod qrels;
pub mod shuffle;
pub mod splitmix;
pub mod telemetry;
pub mod time;
pub mod tls;
pub mod typo;
pub mod ubi;

pub use error::{Error, Result};
