//! A progress bar on a terminal, nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

/// Counts `what`; with a total it shows a bar and the time left.
pub fn bar(what: &'static str, total: Option<u64>) -> ProgressBar {
    let shape = match total {
        Some(_) => "{bar:30} {human_pos}/{human_len} {msg}, {per_sec}, {eta} left",
        None => "{spinner} {human_pos} {msg}, {per_sec}, {elapsed}",
    };
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    bar.set_style(ProgressStyle::with_template(shape).expect("the template is a constant"));
    bar.set_message(what);
    bar
}
