//! Ctrl-C and SIGTERM: a request that is met at the next good moment, and an order when they come again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Signals within this time are one request: a terminal's Ctrl-C reaches a rank by itself, and again from its launcher.
const ONCE: Duration = Duration::from_secs(1);

/// Listens from now on. What it gives turns true with the first request; another one calls `again`.
pub fn listen(again: impl Fn() + Send + 'static) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (asked, mut first) = (stop.clone(), None::<Instant>);
    let handler = move || {
        asked.store(true, Ordering::Relaxed);
        if first.get_or_insert_with(Instant::now).elapsed() > ONCE {
            again();
        }
    };
    ctrlc::set_handler(handler).context("cannot listen for Ctrl-C and SIGTERM")?;
    Ok(stop)
}

/// For what survives being killed: ends the process at once. An exit would take libtorch apart under a thread that computes.
pub fn end() {
    // who cannot even do that is still asked to stop
    let _ = kill(Pid::this(), Signal::SIGKILL);
}
