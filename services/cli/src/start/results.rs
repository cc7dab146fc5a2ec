//! Last table of `souk start`: what a search would be worth with each engine, and what training gained.

use std::path::Path;

use serde_json::{Value, json};
use souk::error::Error;
use souk::report::{EvaluationRun, ReportPage, RunComparison};

use super::steps::say;
use crate::compare::table_of;

const SHOWN: [&str; 4] = ["ndcg@10", "hitrate@100", "mrr@10", "judged@100"];

/// Prints the evaluations of `names`, and the last one's differences to the others, and writes them as a page. Returns their metrics.
pub fn show(measured: &Path, split: &str, names: &[String]) -> souk::Result<Value> {
    let load = |name: &String| EvaluationRun::load(&measured.join(format!("{name}-{split}")));
    let runs = names.iter().map(load).collect::<souk::Result<Vec<_>>>()?;
    say(&format!("\n{:<12}{}", split, SHOWN.map(|metric| format!("{metric:>24}")).concat()));
    for run in &runs {
        let cell = |metric: &str| {
            let value = run.metrics.overall.get(metric).copied().flatten();
            let interval = run.metrics.intervals.get(metric).map(|[low, high]| format!(" ({low:.1} to {high:.1})"));
            value.map_or("-".into(), |value| format!("{value:.2}{}", interval.unwrap_or_default()))
        };
        say(&format!("{:<12}{}", run.metrics.model, SHOWN.map(|metric| format!("{:>24}", cell(metric))).concat()));
    }
    if let Some(note) = runs.first().and_then(|run| run.metrics.asked.judgements.as_ref()) {
        say(note);
    }
    if let Some((run, baselines)) = runs.split_last() {
        let pairs: Vec<_> = baselines.iter().map(|other| (other, run)).collect();
        let comparison = RunComparison::of(&pairs, false)?;
        say(&table_of(&comparison));
        let page = ReportPage { run, baselines, comparison: &comparison, training: None };
        let report = measured.join("report.html");
        std::fs::write(&report, page.html()).map_err(Error::store(&report, "write it"))?;
        say(&format!("report: {}", report.display()));
    }
    Ok(runs
        .iter()
        .map(|run| (run.metrics.model.clone(), json!(run.metrics.overall)))
        .collect::<serde_json::Map<_, _>>()
        .into())
}
