//! `souk market`: writes a simulated shop as a data folder.

use std::cell::RefCell;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use souk::market::{MarketSpec, WriteStep, write};

use crate::GlobalArgs;
use crate::output::print;
use crate::progress::ProgressDisplay;

/// Simulate a shop: catalogue, queries, judgements, search log
///
/// The same seed gives the same folder, byte for byte. Test queries have judgements for all their Good items; the log
/// has searches with training queries only. docs/market.md explains the grading.
///
/// Example: souk market --seed 7 --items 20000 --out SHOP
#[derive(Args)]
pub struct MarketCommand {
    /// Random seed
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Number of items; a million needs half a gigabyte of memory
    #[arg(long, default_value_t = 20_000)]
    items: u32,
    /// Number of queries; a fifth of them is the test split
    #[arg(long, default_value_t = 3_000)]
    queries: u32,
    /// Number of log events: impressions, clicks, carts and purchases
    #[arg(long, default_value_t = 200_000)]
    events: u64,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl MarketCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let spec =
            MarketSpec { seed: self.seed, items: self.items, queries: self.queries as usize, events: self.events };
        let current: RefCell<Option<(WriteStep, ProgressDisplay)>> = RefCell::new(None);
        let counts = write(&spec, &self.out, &|step, more| {
            let mut current = current.borrow_mut();
            if current.as_ref().is_none_or(|(last, _)| *last != step) {
                let (what, total) = match step {
                    WriteStep::Items => ("items", u64::from(self.items)),
                    WriteStep::Judgements => ("queries judged", u64::from(self.queries)),
                    WriteStep::LogLines => ("log lines", self.events.saturating_add(self.events / 16)),
                };
                if let Some((_, last)) = current.replace((step, ProgressDisplay::start(what, Some(total)))) {
                    last.finish();
                }
            }
            if let Some((_, progress)) = current.as_ref() {
                progress.add(more);
            }
        })?;
        if let Some((_, last)) = current.take() {
            last.finish();
        }
        let judged: Vec<String> =
            counts.judgements.iter().map(|(split, count)| format!("{count} for {split}")).collect();
        let text = format!(
            "wrote {}: {} items, {} queries, judgements: {}, {} log lines",
            self.out.display(),
            counts.items,
            counts.queries,
            judged.join(" and "),
            counts.log_lines
        );
        print(globals, &json!({"out": self.out, "plan": spec, "counts": counts}), &text)
    }
}
