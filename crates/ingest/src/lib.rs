//! Input data: search logs from files or Kafka ([`log`]), importers for foreign catalogues and judgements ([`import`]),
//! and training examples built from both ([`dataset`]).

pub mod dataset;
pub mod import;
pub mod log;
