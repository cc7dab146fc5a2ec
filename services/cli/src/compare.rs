//! `souk compare`: paired significance tests between evaluations.

use std::path::PathBuf;

use clap::Args;
use souk::error::Error;
use souk::report::{ComparisonRow, EvaluationRun, PairComparison, RunComparison};

use crate::GlobalArgs;
use crate::output::print;

/// Compare evaluations with the first one, slice by slice
///
/// Prints differences with 95 % confidence intervals (bootstrap over queries) and p-values of two paired tests,
/// Student's t and randomisation, Holm-corrected over all printed rows. A star marks rows where both are below 0.05.
/// All runs need the same data, split and judge.
///
/// Example: souk compare BM25 BASE TUNED
#[derive(Args)]
pub struct CompareCommand {
    /// Evaluation folders (from `souk evaluate`), reference first
    #[arg(value_name = "RUN", num_args = 2.., required = true)]
    runs: Vec<PathBuf>,
}

impl CompareCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let runs = self.runs.iter().map(|folder| EvaluationRun::load(folder)).collect::<souk::Result<Vec<_>>>()?;
        let (reference, others) = runs.split_first().ok_or_else(|| Error::input("give two runs or more"))?;
        let pairs: Vec<(&EvaluationRun, &EvaluationRun)> = others.iter().map(|other| (reference, other)).collect();
        let comparison = RunComparison::of(&pairs, true)?;
        print(globals, &serde_json::to_value(&comparison)?, table_of(&comparison).trim_end())
    }
}

/// RunComparison as text, one table per pair of runs.
pub fn table_of(comparison: &RunComparison) -> String {
    let pairs: Vec<String> = comparison.pairs.iter().map(pair).collect();
    let note = format!("p corrected for {} tests (Holm); * both p-values below 0.05", comparison.num_tests);
    format!("{}\n{note}\n", pairs.join("\n"))
}

fn pair(pair: &PairComparison) -> String {
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

fn cells(row: &ComparisonRow) -> (String, String, String, String) {
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
