//! `souk compare`: evaluations side by side.

use std::path::PathBuf;

use clap::Args;
use souk::error::Error;
use souk::report::{Comparison, Pair, Row, Run};

use crate::Shared;
use crate::output::print;

/// Hold evaluations against the first of them, slice by slice
///
/// Differences with 95 % intervals (bootstrap over queries) and two paired tests, Student's t and randomisation; their
/// probabilities are corrected (Holm) for all rows printed, and a star marks what both find below 0.05. Runs on other
/// data, another split or with another judge are refused.
///
/// Example: souk compare BM25 BASE TUNED
#[derive(Args)]
pub struct Compare {
    /// Folders that souk evaluate wrote, the reference first
    #[arg(value_name = "RUN", num_args = 2.., required = true)]
    runs: Vec<PathBuf>,
}

impl Compare {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let runs = self.runs.iter().map(|folder| Run::load(folder)).collect::<souk::Result<Vec<_>>>()?;
        let (reference, others) = runs.split_first().ok_or_else(|| Error::input("give two runs or more"))?;
        let pairs: Vec<(&Run, &Run)> = others.iter().map(|other| (reference, other)).collect();
        let comparison = Comparison::of(&pairs, true)?;
        print(shared, &serde_json::to_value(&comparison)?, table_of(&comparison).trim_end())
    }
}

/// A table for each pair.
pub fn table_of(comparison: &Comparison) -> String {
    let pairs: Vec<String> = comparison.pairs.iter().map(pair).collect();
    let note = format!("p corrected for {} tests (Holm); * both below 0.05", comparison.num_tests);
    format!("{}\n{note}\n", pairs.join("\n"))
}

fn pair(pair: &Pair) -> String {
    let width = pair.rows.iter().map(|row| row.slice.len()).max().unwrap_or(0).max(8);
    let mut text = format!("`{}` against `{}`\n", pair.other, pair.reference);
    text += &format!(
        "{:<width$}  {:>7}  {:<13}{:>10}{:>8}{:>12}  {:<18}{:>9}{:>11}\n",
        "slice", "queries", "metric", "reference", "other", "difference", "95 % interval", "p (t)", "p (random)"
    );
    for row in &pair.rows {
        let (difference, interval, p_t, p_randomised) = cells(row);
        text += &format!(
            "{:<width$}  {:>7}  {:<13}{:>10}{:>8}{difference:>12}  {interval:<18}{p_t:>9}{p_randomised:>11}{}\n",
            row.slice,
            row.num_queries,
            row.metric,
            number(row.reference),
            number(row.other),
            if row.is_significant() { " *" } else { "" }
        );
    }
    text
}

fn cells(row: &Row) -> (String, String, String, String) {
    match row.paired.zip(row.corrected) {
        Some((paired, p)) => (
            format!("{:+.2}", paired.difference),
            format!("[{:+.2}, {:+.2}]", paired.interval[0], paired.interval[1]),
            probability(p.p_t),
            probability(p.p_randomised),
        ),
        None => ("-".into(), "-".into(), "-".into(), "-".into()),
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.2}"))
}

fn probability(p: f64) -> String {
    if p < 0.0001 { "<0.0001".into() } else { format!("{p:.4}") }
}
