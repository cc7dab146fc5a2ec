//! `souk market`: a simulated shop as a data folder.

use std::cell::RefCell;
use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use souk::market::{MarketSpec, WriteStep, write};

use crate::Shared;
use crate::output::print;
use crate::progress::bar;

/// Write a simulated shop: catalogue, queries, judgements and a search log
///
/// The same seed gives the same folder, to the byte. Test queries come with all their Good items; the log holds searches
/// with training queries only. docs/market.md says how items are graded and what was measured.
///
/// Example: souk market --seed 7 --items 20000 --out SHOP
#[derive(Args)]
pub struct Market {
    /// Where all chance comes from
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Items in the catalogue; a million takes half a gigabyte of memory
    #[arg(long, default_value_t = 20_000)]
    items: u32,
    /// Queries in all; a fifth of them is the test
    #[arg(long, default_value_t = 3_000)]
    queries: u32,
    /// Impressions, clicks, carts and purchases in the log
    #[arg(long, default_value_t = 200_000)]
    events: u64,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Market {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let plan =
            MarketSpec { seed: self.seed, items: self.items, queries: self.queries as usize, events: self.events };
        let shown: RefCell<Option<(WriteStep, ProgressBar)>> = RefCell::new(None);
        let counts = write(&plan, &self.out, &|step, more| {
            let mut shown = shown.borrow_mut();
            if shown.as_ref().is_none_or(|(last, _)| *last != step) {
                let (what, total) = match step {
                    WriteStep::Items => ("items", u64::from(self.items)),
                    WriteStep::Judgements => ("queries judged", u64::from(self.queries)),
                    WriteStep::LogLines => ("log lines", self.events.saturating_add(self.events / 16)),
                };
                if let Some((_, last)) = shown.replace((step, bar(what, Some(total)))) {
                    last.finish_and_clear();
                }
            }
            if let Some((_, bar)) = shown.as_ref() {
                bar.inc(more);
            }
        })?;
        if let Some((_, last)) = shown.take() {
            last.finish_and_clear();
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
        print(shared, &json!({"out": self.out, "plan": plan, "counts": counts}), &text)
    }
}
