//! Exponential back-off: pauses between attempts that double up to a limit.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Sequence of pauses, without end.
pub struct Backoff {
    pauses: ExponentialBackoff,
}

impl Backoff {
    pub fn new(first: Duration, limit: Duration) -> Self {
        let pauses = ExponentialBuilder::new().with_min_delay(first).with_max_delay(limit).without_max_times();
        Self { pauses: pauses.build() }
    }

    pub fn next_pause(&mut self) -> Duration {
        self.pauses.next().expect("the number of attempts is unlimited")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let pauses = [1, 2, 4, 5, 5].map(Duration::from_secs);
        assert_eq!(pauses.map(|_| backoff.next_pause()), pauses);
    }
}
