//! `souk judgements`: derives judgements from a search log, held out by time.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use souk::beir::DataFolder;
use souk::judgements::{JudgementReport, JudgementSource, judge_log};

use crate::GlobalArgs;
use crate::output::print;
use crate::progress::ProgressDisplay;

/// Derive judgements from a search log, to measure models without raters
///
/// The newest days of the log become the splits test and dev, the days before them train. Training draws nothing from the
/// held-out days. An item's level (L1 to L4) comes from how often it was chosen for a query, compared with how often it was looked
/// at: the position bias is estimated from the log. Carts and purchases count more than clicks ([ingest.strength]).
///
/// Examples:
///   souk judgements --data SHOP
///   souk judgements --data SHOP --from logs.ndjson --set judgements.test=0.2 --prefix log-
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct JudgementsCommand {
    /// Data folder; the splits are written to DIR/qrels
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Log file in UBI 1.3, repeatable (default: DIR/logs.ndjson)
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// Prefix of the splits' names, such as log-, for a folder that also has judgements by raters
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
}

impl JudgementsCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(Vec::new())?;
        let data = DataFolder::open(&self.data)?;
        let logs = if self.from.is_empty() { vec![data.logs()] } else { self.from.clone() };
        let source = JudgementSource { data: &data, logs, strength: &config.ingest.strength, prefix: &self.prefix };
        let shown = ProgressDisplay::start("lines", None);
        let report = judge_log(&source, &config.judgements, &mut |lines| shown.add(lines));
        shown.finish();
        let report = report?;
        print(globals, &json!(report), &text(&report))
    }
}

fn text(report: &JudgementReport) -> String {
    let counts = &report.counts;
    let mut lines = vec![format!(
        "{} searches, {} items shown, {} chosen ({} events without their query, {} on unknown items, {} unreadable lines)",
        counts.searches, counts.shown, counts.chosen, counts.without_query, counts.unknown_items, counts.unreadable
    )];
    if !report.has_impressions {
        lines.push(
            "The log has no impressions: items that were not chosen are unjudged, and positions are not corrected."
                .into(),
        );
    }
    let bias = &report.position_bias;
    let looks = [2, 3, 5, 10, 20]
        .into_iter()
        .filter_map(|position| bias.looks.get(position - 1).map(|looks| format!("{position}: {looks:.2}")));
    lines.push(format!(
        "looks at each position, the first being 1: {} (from {} choices of items shown at several positions)",
        looks.collect::<Vec<_>>().join(", "),
        bias.informative_choices
    ));
    lines.push(format!(
        "{:<12} {:<24} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "split", "days", "queries", "L1", "L2", "L3", "L4"
    ));
    for (name, split) in &report.splits {
        let [l1, l2, l3, l4] = split.levels;
        let day = |time: &str| time.get(..10).unwrap_or(time).to_owned();
        let days = format!("{} to {}", day(&split.from), day(&split.to));
        lines.push(format!("{name:<12} {days:<24} {:>8} {l1:>8} {l2:>8} {l3:>8} {l4:>8}", split.queries));
    }
    let slices: Vec<String> = report.slices.iter().map(|(name, count)| format!("{name} {count}")).collect();
    lines.push(format!("held-out queries by slice: {}", slices.join(", ")));
    lines.push(format!("training draws nothing from {} to {}", report.held_out_from, report.held_out_to));
    lines.join("\n")
}
