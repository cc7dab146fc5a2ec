//! Progress of long work, on standard error: a bar with the time left on a terminal, a line every 30 seconds elsewhere.

use std::borrow::Cow;
use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressState, ProgressStyle};

const BETWEEN_LINES: Duration = Duration::from_secs(30);

pub struct ProgressDisplay {
    bar: ProgressBar,
    /// None if no lines are printed.
    lines: Option<Mutex<Lines>>,
}

struct Lines {
    last: Instant,
    /// Start of the present phase: the count and the time.
    from: (u64, Instant),
}

impl ProgressDisplay {
    /// Counts `what`, and shows the time left if there is a total.
    pub fn start(what: &'static str, total: Option<u64>) -> Self {
        let shape = match total {
            Some(_) => "{bar:30} {human_pos}/{human_len} {msg}{rate}, {eta} left",
            None => "{spinner} {human_pos} {msg}{rate}, {elapsed}",
        };
        let rate = |state: &ProgressState, out: &mut dyn Write| {
            // writes to memory, which does not fail
            let _ = write!(out, "{}", per_second(state.per_sec()));
        };
        let style = ProgressStyle::with_template(shape).expect("the template is a constant").with_key("rate", rate);
        let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
        bar.set_style(style);
        bar.set_message(what);
        let now = Instant::now();
        let lines = (!std::io::stderr().is_terminal()).then(|| Mutex::new(Lines { last: now, from: (0, now) }));
        Self { bar, lines }
    }

    /// Shows nothing: for the processes of a job that are not the first.
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), lines: None }
    }

    pub fn add(&self, more: u64) {
        self.bar.inc(more);
        self.print_line();
    }

    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
        self.print_line();
    }

    /// Sets what is counted, how many are done, and the total. The first count, and a smaller one, begin a phase, from which the
    /// speed is measured.
    pub fn show(&self, done: u64, total: u64, what: impl Into<Cow<'static, str>>) {
        let before = self.bar.position();
        if before == 0 || done < before {
            self.bar.reset_eta();
            if let Some(lines) = &self.lines {
                lines.lock().unwrap_or_else(PoisonError::into_inner).from = (done, Instant::now());
            }
        }
        self.bar.set_message(what);
        self.bar.set_length(total);
        self.set(done);
    }

    /// Prints a line of its own.
    #[expect(clippy::print_stderr, reason = "progress goes to standard error")]
    pub fn note(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    #[expect(clippy::print_stderr, reason = "progress goes to standard error")]
    fn print_line(&self) {
        let Some(lines) = &self.lines else { return };
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.last.elapsed() >= BETWEEN_LINES {
            lines.last = Instant::now();
            let (from, since) = lines.from;
            let done = self.bar.position();
            let rate = done.saturating_sub(from) as f64 / since.elapsed().as_secs_f64().max(1e-3);
            eprintln!("{}", line(done, self.bar.length(), &self.bar.message(), rate));
        }
    }
}

fn line(done: u64, total: Option<u64>, what: &str, rate: f64) -> String {
    let speed = per_second(rate);
    let Some(total) = total else {
        return format!("{} {what}{speed}", HumanCount(done));
    };
    let left = match Duration::try_from_secs_f64(total.saturating_sub(done) as f64 / rate) {
        Ok(left) => format!(", {} left", HumanDuration(left)),
        Err(_) => String::new(),
    };
    format!("{} of {} {what}{speed}{left}", HumanCount(done), HumanCount(total))
}

/// Speed as a part of a line; empty where the time left says more.
fn per_second(rate: f64) -> String {
    if rate >= 1.0 { format!(", {rate:.0}/s") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_counts_speed_and_time_left() {
        assert_eq!(line(12_000, Some(36_000), "items", 200.0), "12,000 of 36,000 items, 200/s, 2 minutes left");
        assert_eq!(line(90, None, "texts", 1.5), "90 texts, 2/s");
        assert_eq!(line(5, Some(5), "steps", 0.12), "5 of 5 steps, 0 seconds left");
        assert_eq!(line(7, Some(9), "items", 0.0), "7 of 9 items", "a time that is not known");
    }
}
