//! `souk train`: one stage of training.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Args;
use souk::beir::DataFolder;
use souk::train::Run;

use crate::output::print;
use crate::progress::bar;
use crate::{ModelArgs, Shared};

/// Train an encoder on a shop's examples or judgements
///
/// Writes a model folder that every other verb and SentenceTransformer(DIR) load, with steps.jsonl (a line for each step)
/// and checkpoints beside it. Killed or stopped, it goes on with --resume as if nothing had happened. Several processes train
/// as one: under torchrun's variables, or by `souk launch --nproc N -- train ...`.
///
/// Examples:
///   souk train --config configs/sft-market.toml --data SHOP --out RUN
///   souk train --model all-MiniLM-L6-v2 --data HOME_DEPOT --out RUN --set train.batch=128
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Train {
    #[command(flatten)]
    model: ModelArgs,
    /// Data folder with corpus.jsonl, and examples (`souk ingest`) or qrels/train.tsv
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Go on from the last checkpoint in --out; from the beginning where there is none
    #[arg(long)]
    resume: bool,
}

impl Train {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let config = shared.load(self.model.changes())?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        ctrlc::set_handler(move || asked.store(true, Ordering::Relaxed)).context("cannot listen for SIGTERM")?;
        let data = DataFolder::open(&self.data)?;
        let collective = souk::collective::open(&config.collective)?;
        let first = collective.rank() == 0;
        let run = Run::open(config.open_stage()?, &data, &self.out, self.resume, collective)?;
        let bar = bar("steps", Some(0));
        let done = run.train(&stop, |progress| {
            bar.set_length(progress.steps);
            bar.set_position(progress.step);
            bar.set_message(format!(
                "steps, loss {:.4}, {:.0} texts/s",
                progress.stepped.loss, progress.texts_per_second
            ));
        })?;
        bar.finish_and_clear();
        if !first {
            return Ok(());
        }
        let out = self.out.display();
        let loss = done.loss.map_or("all done before".into(), |loss| format!("last loss {loss:.4}"));
        let text = match done.finished {
            true => format!("trained {out}: {} steps, {loss}", done.steps),
            false => format!("stopped after step {} of {}: --resume goes on from there", done.step, done.steps),
        };
        print(shared, &serde_json::to_value(&done)?, &text)
    }
}
