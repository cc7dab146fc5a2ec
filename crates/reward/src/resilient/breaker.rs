//! Circuit breaker: opens after several failures in a row, rejects requests for a pause, then lets one probe through and closes
//! if the probe succeeds.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use souk_io::telemetry::REWARD;

pub struct Breaker {
    /// Consecutive failures that open the breaker.
    failures: u32,
    pause: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy)]
enum State {
    Closed { failed: u32 },
    Open { until: Instant },
    Probing,
}

/// Permission for one request. If dropped without an outcome, the breaker's state does not change.
pub struct Pass<'a> {
    breaker: &'a Breaker,
    is_probe: bool,
    is_over: bool,
}

impl Breaker {
    pub fn new(failures: u32, pause: Duration) -> Self {
        let state = Mutex::new(State::Closed { failed: 0 });
        Self { failures, pause, state, changed: Condvar::new() }
    }

    /// `None` while the breaker is open. During a probe, waits for its outcome until `deadline`.
    pub fn enter(&self, deadline: Instant) -> Option<Pass<'_>> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            match *state {
                State::Closed { .. } => return Some(self.pass(false)),
                State::Open { until } if now < until => return None,
                State::Open { .. } => {
                    *state = State::Probing;
                    return Some(self.pass(true));
                }
                State::Probing if now >= deadline => return None,
                State::Probing => {
                    let waited = self.changed.wait_timeout(state, deadline - now);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    pub fn is_open(&self) -> bool {
        !matches!(*self.lock(), State::Closed { .. })
    }

    fn pass(&self, is_probe: bool) -> Pass<'_> {
        Pass { breaker: self, is_probe, is_over: false }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // no code under this lock panics
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, mut state: MutexGuard<'_, State>, to: State) {
        let closed = |state| matches!(state, State::Closed { .. });
        REWARD.breaker_open.add(i64::from(closed(*state)) - i64::from(closed(to)));
        *state = to;
        drop(state);
        self.changed.notify_all();
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        REWARD.breaker_open.sub(i64::from(self.is_open()));
    }
}

impl Pass<'_> {
    /// True if this request is the probe.
    pub fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Reports success: closes the breaker.
    pub fn answered(mut self) {
        self.is_over = true;
        let state = self.breaker.lock();
        self.breaker.change(state, State::Closed { failed: 0 });
    }

    /// Reports a failure, with the judge's `Retry-After` if there was one.
    pub fn failed(mut self, retry_after: Option<Duration>) {
        self.is_over = true;
        let breaker = self.breaker;
        let open = State::Open { until: Instant::now() + breaker.pause.max(retry_after.unwrap_or_default()) };
        let state = breaker.lock();
        match *state {
            State::Closed { failed } if failed + 1 < breaker.failures => {
                breaker.change(state, State::Closed { failed: failed + 1 });
            }
            State::Closed { .. } => breaker.change(state, open),
            State::Probing if self.is_probe => breaker.change(state, open),
            // sent before the breaker opened
            State::Probing | State::Open { .. } => {}
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.is_probe && !self.is_over {
            let state = self.breaker.lock();
            if matches!(*state, State::Probing) {
                self.breaker.change(state, State::Open { until: Instant::now() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const PAUSE: Duration = Duration::from_millis(60);

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn opened() -> Breaker {
        let breaker = Breaker::new(2, PAUSE);
        for _ in 0..2 {
            breaker.enter(later()).unwrap().failed(None);
        }
        assert!(breaker.is_open());
        breaker
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let breaker = Breaker::new(2, PAUSE);
        for _ in 0..3 {
            breaker.enter(later()).unwrap().failed(None);
            breaker.enter(later()).unwrap().answered();
        }
        drop(breaker.enter(later()));
        assert!(!breaker.is_open());
    }

    #[test]
    fn after_the_pause_one_goes_ahead_and_what_it_finds_holds_for_all() {
        let breaker = opened();
        assert!(breaker.enter(later()).is_none());
        thread::sleep(PAUSE);
        let probe = breaker.enter(later()).unwrap();
        assert!(probe.is_probe());
        thread::scope(|scope| {
            let waits = scope.spawn(|| breaker.enter(later()).is_some_and(|pass| !pass.is_probe()));
            thread::sleep(Duration::from_millis(10));
            probe.answered();
            assert!(waits.join().unwrap());
        });
        let breaker = opened();
        thread::sleep(PAUSE);
        let probe = breaker.enter(later()).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| breaker.enter(later()).is_none());
            thread::sleep(Duration::from_millis(10));
            probe.failed(Some(Duration::from_secs(60)));
            assert!(waits.join().unwrap());
        });
        thread::sleep(PAUSE);
        assert!(breaker.enter(later()).is_none(), "the judge asked for a longer pause");
    }

    #[test]
    fn a_probe_that_was_given_up_is_followed_by_another() {
        let breaker = opened();
        thread::sleep(PAUSE);
        drop(breaker.enter(later()).unwrap());
        let probe = breaker.enter(later()).unwrap();
        assert!(probe.is_probe());
        assert!(breaker.enter(Instant::now()).is_none(), "nobody waits beyond the deadline");
    }
}
