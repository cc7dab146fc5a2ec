//! `JudgeLimits`: concurrency, timeouts, retries and circuit breaker of a remote judge, and their checks.

use std::fmt::Display;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};

/// Concurrency, timeouts and retries of a remote judge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JudgeLimits {
    /// Concurrent requests per call.
    pub concurrency: usize,
    /// Timeout of one request, from connecting to the last byte.
    pub timeout_seconds: f64,
    /// Deadline of a whole call; verdicts that arrive later count as missing.
    pub deadline_seconds: f64,
    /// Retries of a request after a transient failure.
    pub retries: u32,
    /// Longest pause before the first retry. It doubles with each retry, with random jitter.
    pub backoff_seconds: f64,
    /// Consecutive failures that open the circuit breaker.
    pub breaker_failures: u32,
    /// Seconds the circuit breaker stays open.
    pub breaker_seconds: f64,
}

impl Default for JudgeLimits {
    fn default() -> Self {
        Self {
            concurrency: 8,
            timeout_seconds: 30.0,
            deadline_seconds: 120.0,
            retries: 3,
            backoff_seconds: 0.5,
            breaker_failures: 5,
            breaker_seconds: 10.0,
        }
    }
}

impl JudgeLimits {
    pub fn check(&self) -> Result<()> {
        within("limits.concurrency", self.concurrency, 1..=1024)?;
        within("limits.timeout_seconds", self.timeout_seconds, 0.001..=86_400.0)?;
        within("limits.deadline_seconds", self.deadline_seconds, self.timeout_seconds..=86_400.0)?;
        within("limits.retries", self.retries, 0..=100)?;
        within("limits.backoff_seconds", self.backoff_seconds, 0.0..=3600.0)?;
        within("limits.breaker_failures", self.breaker_failures, 1..=1_000_000)?;
        within("limits.breaker_seconds", self.breaker_seconds, 0.001..=86_400.0)
    }
}

/// Checks that a setting lies in its range.
pub fn within<T: PartialOrd + Display>(name: &str, value: T, range: RangeInclusive<T>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::config(name, format!("is {value}: use {} to {}", range.start(), range.end())))
}
