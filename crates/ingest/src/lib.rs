//! Input data: search logs from files or Kafka ([`log`]), importers for foreign catalogues and judgements ([`import`]),
//! training examples built from both ([`dataset`]), and judgements derived from a log ([`judgements`]).

pub mod dataset;
pub mod import;
pub mod judgements;
pub mod log;
