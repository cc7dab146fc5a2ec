//! Ctrl-C and SIGTERM: a request that is met at the next good moment, and an order when they come again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

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

/// For what survives being killed: ends the process at once.
#[expect(clippy::disallowed_methods, reason = "what it leaves half written is met by the next run, as after a kill")]
pub fn end() {
    std::process::exit(1);
}
