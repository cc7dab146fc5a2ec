//! `souk compare`: paired significance tests between evaluations, and the queries that became worse.

use std::path::PathBuf;

use clap::Args;
use souk::error::Error;
use souk::report::{ComparePage, ComparisonRow, EvaluationRun, NDCG, PairComparison, RunComparison, SHOWN, names};

use crate::GlobalArgs;
use crate::output::print;

/// Compare evaluations with the first one, slice by slice
///
/// Prints differences with 95 % confidence intervals (bootstrap over queries) and p-values of two paired tests,
/// Student's t and randomisation, Holm-corrected over all printed rows. A star marks rows where both are below 0.05.
/// All runs need the same data, split and judge.
///
/// Example: souk compare BM25 BASE TUNED
///
/// Example: souk compare BASE TUNED --metrics ndcg@10 --html worse.html
#[derive(Args)]
pub struct CompareCommand {
    /// Evaluation folders (from `souk evaluate`), reference first
    #[arg(value_name = "RUN", num_args = 2.., required = true)]
    runs: Vec<PathBuf>,
    /// Metrics to compare; fewer tests find smaller differences (default: those that `souk evaluate` prints first)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    metrics: Vec<String>,
    /// Write a page with the queries that became worse or better by the first of the metrics (default: ndcg@10), and the
    /// first hits of both
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl CompareCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let runs = self.runs.iter().map(|folder| EvaluationRun::load(folder)).collect::<souk::Result<Vec<_>>>()?;
        let (reference, others) = runs.split_first().ok_or_else(|| Error::input("give two runs or more"))?;
        let pairs: Vec<(&EvaluationRun, &EvaluationRun)> = others.iter().map(|other| (reference, other)).collect();
        let metrics = self.places(&names(reference.metrics.asked.depth))?;
        let comparison = RunComparison::of_metrics(&pairs, true, if metrics.is_empty() { &SHOWN } else { &metrics })?;
        if let Some(file) = &self.html {
            let metric = metrics.first().copied().unwrap_or(NDCG);
            let page = ComparePage { reference, others, comparison: &comparison, metric };
            std::fs::write(file, page.html()).map_err(Error::store(file, "write it"))?;
        }
        print(globals, &serde_json::to_value(&comparison)?, table_of(&comparison).trim_end())
    }

    /// Indices of the named metrics.
    fn places(&self, names: &[String]) -> souk::Result<Vec<usize>> {
        let place = |metric: &String| {
            let unknown =
                || Error::input(format!("--metrics {metric}: not measured; choose from {}", names.join(", ")));
            names.iter().position(|name| name == metric).ok_or_else(unknown)
        };
        self.metrics.iter().map(place).collect()
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
    let wide = pair.rows.iter().map(|row| row.metric.len()).max().unwrap_or(0).max(13);
    let mut text = format!("`{}` against `{}`\n", pair.other, pair.reference);
    text += &format!(
        "{:<width$}  {:>7}  {:<wide$}{:>10}{:>8}{:>12}  {:<18}{:>9}{:>11}\n",
        "slice", "queries", "metric", "reference", "other", "difference", "95 % interval", "p (t)", "p (random)"
    );
    for row in &pair.rows {
        let (difference, interval, p_t, p_randomised) = cells(row);
        text += &format!(
            "{:<width$}  {:>7}  {:<wide$}{:>10}{:>8}{difference:>12}  {interval:<18}{p_t:>9}{p_randomised:>11}{}\n",
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
