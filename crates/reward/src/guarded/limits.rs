//! How patient one is with a judge. Takes what a configuration says, and says what is wrong with it.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};

/// How many requests there are at once, how long they may take and how often they are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Requests of one call at once.
    pub concurrency: usize,
    /// Of one request, from connecting to the last byte.
    pub timeout_seconds: f64,
    /// Of one call with all its requests; what has no verdict by then is missing.
    pub deadline_seconds: f64,
    /// How often a request that failed for the moment is made again.
    pub retries: u32,
    /// The longest pause before the first of them; it doubles each time, and chance shortens it.
    pub backoff_seconds: f64,
    /// Requests that fail in a row until nobody asks any more.
    pub breaker_failures: u32,
    /// How long nobody asks.
    pub breaker_seconds: f64,
}

impl Default for Limits {
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

impl Limits {
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

/// A number of the configuration, by its name.
pub fn within<T: PartialOrd + Display>(name: &str, value: T, range: RangeInclusive<T>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::config(name, format!("is {value}: use {} to {}", range.start(), range.end())))
}
