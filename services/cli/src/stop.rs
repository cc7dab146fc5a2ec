//! Ctrl-C and SIGTERM: the first one requests a clean stop, the second one forces it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Signals within this time count as one: a rank gets a terminal's Ctrl-C directly, and again from its launcher.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Installs the signal handler. The returned flag turns true at the first signal; a later one calls `force`.
pub fn listen(force: impl Fn() + Send + 'static) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (requested, mut first) = (stop.clone(), None::<Instant>);
    let handler = move || {
        requested.store(true, Ordering::Relaxed);
        if first.get_or_insert_with(Instant::now).elapsed() > SAME_REQUEST {
            force();
        }
    };
    ctrlc::set_handler(handler).context("cannot listen for Ctrl-C and SIGTERM")?;
    Ok(stop)
}

/// Kills the process at once, for commands that are crash-safe. A normal exit would tear down libtorch under a running
/// thread.
pub fn end() {
    // if the kill fails, the stop flag is still set
    let _ = kill(Pid::this(), Signal::SIGKILL);
}
