//! Importing catalogues and logs, and ingesting search logs into examples and judgements.
#![expect(clippy::unwrap_used, reason = "a test stops at the first failure")]

mod import;
mod import_fuzz;
mod ingest;
mod judgements;
