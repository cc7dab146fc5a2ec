//! Metrics against golden files, and the relevance model from training to its report.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod relevance;
mod report;
