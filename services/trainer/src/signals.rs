//! Flags that the trainer's threads share: stop, pause reading, disk full, and the error that ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use souk::Error;

const STEP: Duration = Duration::from_millis(50);

#[derive(Default)]
pub struct Signals {
    /// Stop at the next safe point.
    pub stop: Arc<AtomicBool>,
    /// Read no more of the log for now.
    pub halt: Arc<AtomicBool>,
    /// The disk is full: begin nothing large.
    pub full: AtomicBool,
    /// Error that ends the process.
    failed: Mutex<Option<String>>,
}

impl Signals {
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.halt.store(true, Ordering::Relaxed);
    }

    /// Records the error and shuts the process down as SIGTERM would.
    pub fn fail(&self, error: &Error) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.with_causes());
        self.stop();
        if let Err(error) = raise(Signal::SIGTERM) {
            tracing::error!(%error, "cannot send SIGTERM to this process");
        }
    }

    pub fn failure(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sleeps for `time`, or until the process is asked to stop.
    pub fn wait(&self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time && !self.stopped() {
            thread::sleep(STEP.min(time));
        }
    }
}
