//! Where a service is in the catalogue stream, and since when it has lacked changes.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use souk_io::error::Error;

/// Where the service is in the stream.
pub(super) struct StreamPosition {
    /// Position that searches see.
    applied: watch::Sender<u64>,
    level: Mutex<Level>,
}

/// When the service last had every change of the stream.
struct Level {
    opened: Instant,
    /// None until the first time, unless the stream did not answer at the start.
    at: Option<Instant>,
    /// An end that was not reached when it was seen, and when that was.
    ahead: Option<(u64, Instant)>,
    /// End of the stream, as far as known.
    end: u64,
    problem: Option<String>,
}

/// How far a service is behind the catalogue stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamLag {
    pub position: u64,
    pub end: u64,
    /// Seconds since the service had every change; None if it never had since its start.
    pub seconds: Option<f64>,
    /// Why the stream cannot be followed, if so.
    pub problem: Option<String>,
}

impl StreamPosition {
    pub fn new(applied: u64) -> Self {
        let level = Level { opened: Instant::now(), at: None, ahead: None, end: applied, problem: None };
        Self { applied: watch::Sender::new(applied), level: Mutex::new(level) }
    }

    /// Searches now see the changes up to this position.
    pub fn see(&self, position: u64) {
        self.applied.send_replace(position);
    }

    /// Waits until searches see the change at this position.
    pub async fn wait_for(&self, position: u64) {
        // the sender lives as long as this value
        drop(self.applied.subscribe().wait_for(|applied| *applied >= position).await);
    }

    /// The stream ended at `end` when the changes up to `reached` had been applied.
    pub fn note_end(&self, reached: u64, end: u64) {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        level.end = end;
        level.problem = None;
        let now = Instant::now();
        if reached >= end {
            (level.at, level.ahead) = (Some(now), None);
            return;
        }
        // while others keep writing, the end is always a little ahead
        match level.ahead {
            Some((earlier, seen)) if reached >= earlier => (level.at, level.ahead) = (Some(seen), Some((end, now))),
            Some(_) => {}
            None => level.ahead = Some((end, now)),
        }
    }

    /// The stream could not be followed.
    pub fn note_problem(&self, error: &Error) {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(error, Error::Upstream { .. }) {
            // while nobody knows the end, a restarted service is as good as the others
            level.at = level.at.or(Some(level.opened));
        }
        level.problem = Some(error.to_string());
    }

    pub fn lag(&self) -> StreamLag {
        let level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = level.at.map(|at| at.elapsed().as_secs_f64());
        StreamLag { position: *self.applied.borrow(), end: level.end, seconds, problem: level.problem.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_service_that_keeps_up_with_constant_writes_is_not_behind() {
        let position = StreamPosition::new(0);
        position.note_end(3, 10);
        assert_eq!(position.lag().seconds, None, "it never had every change");
        sleep(Duration::from_millis(20));
        position.note_end(10, 15);
        let seconds = position.lag().seconds.unwrap();
        assert!(seconds >= 0.02, "{seconds}: it had every change of 20 ms ago");
        position.note_end(14, 20);
        assert!(position.lag().seconds.unwrap() >= seconds);
        position.note_end(15, 25);
        assert!(position.lag().seconds.unwrap() < seconds);
        position.note_end(25, 25);
        assert!(position.lag().seconds.unwrap() < 0.02);
    }
}
