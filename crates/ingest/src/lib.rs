//! Everything that flows in: search logs from files or Kafka ([`log`]), catalogues and judgements in other formats
//! ([`import`]), and the training examples made from both ([`dataset`]).

pub mod dataset;
pub mod import;
pub mod log;
