//! A progress bar on a terminal, nothing elsewhere.

use std::fmt::Write;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// Counts `what`; with a total it shows a bar and the time left.
pub fn bar(what: &'static str, total: Option<u64>) -> ProgressBar {
    let shape = match total {
        Some(_) => "{bar:30} {human_pos}/{human_len} {msg}, {rate}, {eta} left",
        None => "{spinner} {human_pos} {msg}, {rate}, {elapsed}",
    };
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        // the bar is drawn in memory: there is nowhere to report a failure to, and none to expect
        let _ = write!(out, "{:.0}/s", state.per_sec());
    };
    let style = ProgressStyle::with_template(shape).expect("the template is a constant").with_key("rate", rate);
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    bar.set_style(style);
    bar.set_message(what);
    bar
}
