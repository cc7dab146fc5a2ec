//! `souk judgements`: derives judgements from a search log, held out by time.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use souk::beir::DataFolder;
use souk::config::Config;
use souk::judgements::{ItemQuality, JudgedLog, JudgementReport, JudgementSource, Splits};
use souk::log::Lane;
use souk::store::{MAX_PAGE, Quality};

use crate::GlobalArgs;
use crate::ingest::LogArgs;
use crate::output::print;
use crate::progress::ProgressDisplay;

/// Derive judgements from a search log, to measure models without raters
///
/// Reads the log (by default DIR/logs.ndjson) to its end. The newest days become the splits test
/// and dev, the days before them train. Training draws nothing from the held-out days. An item's
/// level (L1 to L4) comes from how often it was chosen for a query, compared with how often it was
/// looked at: the position bias is estimated from the log. Carts and purchases count more than
/// clicks ([ingest.strength]).
///
/// Examples:
///   souk judgements --data SHOP
///   souk judgements --data SHOP --from logs.ndjson --set judgements.test=0.2 --prefix log-
///   souk judgements --data SHOP --kafka localhost:9092 --topic ubi --quality
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct JudgementsCommand {
    /// Data folder; the splits are written to DIR/qrels
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    log: LogArgs,
    /// Prefix of the splits' names, such as log-, for a folder that also has judgements by raters
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// Also derive the quality of items, and keep it in the database of [store] for the quality reward
    #[arg(long)]
    quality: bool,
}

impl JudgementsCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let mut config = globals.load(self.log.changes())?;
        let data = DataFolder::open(&self.data)?;
        if config.log.paths.is_empty() && config.log.brokers.is_empty() {
            config.log.paths = vec![data.logs()];
        }
        let log = config.log.once("judgements").open(Arc::new(|_: &Lane| Ok(None)))?;
        let name = match config.log.brokers.as_str() {
            "" => config.log.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
            brokers => format!("{} of {brokers}", config.log.topics.join(", ")),
        };
        let splits = Splits::ByShare { prefix: &self.prefix };
        let source = JudgementSource { data: &data, log, name, strength: &config.ingest.strength, splits };
        let shown = ProgressDisplay::start("lines", None);
        let judged = JudgedLog::read(source, &config.judgements, &mut |lines| shown.add(lines));
        shown.finish();
        let judged = judged?;
        let report = judged.write()?;
        let mut text = text(&report);
        let mut json = json!(report);
        if self.quality {
            let qualities = judged.qualities()?;
            keep(&config, &qualities)?;
            text += &format!("\nquality of {} items kept in {}", qualities.len(), config.store.database);
            json["qualities"] = json!(qualities.len());
        }
        print(globals, &json, &text)
    }
}

/// Writes the quality of items to the ledger.
fn keep(config: &Config, qualities: &[ItemQuality]) -> anyhow::Result<()> {
    let row = |of: &ItemQuality| Quality {
        item: of.item.clone(),
        units: of.units as i64,
        returns: of.returns as i64,
        ratings_sum: of.ratings_sum,
        num_ratings: of.num_ratings as i64,
        score: of.score,
    };
    let rows: Vec<Quality> = qualities.iter().map(row).collect();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(async {
        let ledger = config.store.open_own_ledger().await?;
        for rows in rows.chunks(MAX_PAGE) {
            ledger.put_quality(rows).await?;
        }
        Ok(())
    })
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
