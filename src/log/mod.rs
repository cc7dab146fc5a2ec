//! The search log: UBI 1.3 records from files or Kafka.

pub mod time;
pub mod ubi;
