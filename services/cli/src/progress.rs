//! Progress: a bar on a terminal, a log line every 30 seconds elsewhere.

use std::fmt::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// Progress bar that counts `what`. With a total it shows the time left. Hidden where there is no terminal.
pub fn bar(what: &'static str, total: Option<u64>) -> ProgressBar {
    let shape = match total {
        Some(_) => "{bar:30} {human_pos}/{human_len} {msg}, {rate}, {eta} left",
        None => "{spinner} {human_pos} {msg}, {rate}, {elapsed}",
    };
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        // writes to memory, which does not fail
        let _ = write!(out, "{:.0}/s", state.per_sec());
    };
    let style = ProgressStyle::with_template(shape).expect("the template is a constant").with_key("rate", rate);
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    bar.set_style(style);
    bar.set_message(what);
    bar
}

/// Progress lines for output that is not a terminal, at most one every 30 seconds.
pub struct ProgressLog {
    is_enabled: bool,
    last: Instant,
}

const BETWEEN_LINES: Duration = Duration::from_secs(30);

impl ProgressLog {
    pub fn new(is_enabled: bool) -> Self {
        Self { is_enabled, last: Instant::now() }
    }

    #[expect(clippy::print_stderr, reason = "progress goes to standard error")]
    pub fn print(&mut self, done: u64, total: u64, message: &str) {
        if self.is_enabled && self.last.elapsed() >= BETWEEN_LINES {
            self.last = Instant::now();
            eprintln!("{done} of {total} {message}");
        }
    }
}
