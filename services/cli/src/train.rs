//! `souk train`: one training stage.

use std::path::PathBuf;

use clap::Args;
use souk::dataset::Pairs;
use souk::train::{Evaluation, Progress, Run, StepReport};

use crate::output::print;
use crate::progress::ProgressDisplay;
use crate::stop::{end, listen};
use crate::{GlobalArgs, ModelArgs};

/// Train an encoder on click examples or relevance judgements
///
/// Writes a model folder that every other command and SentenceTransformer(DIR) can load, with
/// steps.jsonl (one line per step) and checkpoints. After a stop or a crash, --resume continues
/// from the last checkpoint and gives the same result. Data parallel: set torchrun's variables, or
/// run `souk launch --nproc N -- train ...`.
///
/// Examples:
///   souk train --config configs/sft-market.toml --data SHOP --out RUN
///   souk train --model all-MiniLM-L6-v2 --data HOME_DEPOT --out RUN --set train.batch=128
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct TrainCommand {
    #[command(flatten)]
    model: ModelArgs,
    /// Data folder with corpus.jsonl, and examples (`souk ingest`) or qrels/train.tsv
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Continue from the last checkpoint in --out; without a checkpoint, start from the beginning
    #[arg(long)]
    resume: bool,
}

impl TrainCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(self.model.changes())?;
        let data = config.open_data(&self.data)?;
        let collective = souk::collective::open(&config.collective)?;
        let is_first = collective.rank() == 0;
        let run = Run::open(config.open_stage(&data)?, &data, &self.out, self.resume, collective)?;
        if is_first {
            print_pairs(run.pairs());
        }
        let stop = listen(end)?;
        let shown = if is_first { ProgressDisplay::start("steps", Some(0)) } else { ProgressDisplay::hidden() };
        let done = run.train(&stop, |progress| {
            let (done, total, message) = match progress {
                Progress::Mining { queries, of } => (queries as u64, of as u64, "queries mined".into()),
                Progress::Step(StepReport { step, steps, metrics, texts_per_second, .. }) => {
                    (*step, *steps, format!("steps, loss {:.4}, {texts_per_second:.0} texts/s", metrics.loss))
                }
                Progress::Evaluation(evaluation) => return shown.note(&described(evaluation)),
            };
            shown.show(done, total, message);
        })?;
        shown.finish();
        if !is_first {
            return Ok(());
        }
        let out = self.out.display();
        let loss = done.loss.map_or("already finished".into(), |loss| format!("last loss {loss:.4}"));
        if !done.finished {
            anyhow::bail!("stopped after step {} of {}: run again with --resume to continue", done.step, done.steps);
        }
        let best = match config.train.evaluate {
            Some(_) => format!("; the weights are those after step {}, the best evaluation", done.best_step),
            None => String::new(),
        };
        print(globals, &serde_json::to_value(&done)?, &format!("trained {out}: {} steps, {loss}{best}", done.step))
    }
}

fn described(evaluation: &Evaluation) -> String {
    let Evaluation { step, metric, seconds, is_best, .. } = evaluation;
    let best = if *is_best { ", the best so far" } else { "" };
    format!("after step {step}: {metric} {:.2}{best} ({seconds:.0} s)", evaluation.value())
}

/// Prints the size of the training set.
#[expect(clippy::print_stderr, reason = "progress goes to standard error")]
fn print_pairs(pairs: &Pairs) {
    eprintln!("training on {} {}", pairs.len(), pairs.kind());
    if pairs.num_unknown_items() > 0 {
        eprintln!("  skipped {} more: their items are not in the catalogue", pairs.num_unknown_items());
    }
    if pairs.num_held_out() > 0 {
        eprintln!("  held out {} more: they are from the days of the judgements", pairs.num_held_out());
    }
}
