//! `souk train`: one stage of training.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use souk::beir::DataFolder;
use souk::dataset::Pairs;
use souk::train::{Progress, Run, StepReport};

use crate::output::print;
use crate::progress::bar;
use crate::stop::{end, listen};
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
        let data = DataFolder::open(&self.data)?;
        let collective = souk::collective::open(&config.collective)?;
        let first = collective.rank() == 0;
        let run = Run::open(config.open_stage(&data)?, &data, &self.out, self.resume, collective)?;
        if first {
            say_pairs(run.pairs());
        }
        let stop = listen(end)?;
        let bar = bar("steps", Some(0));
        let mut teller = Teller::new(first && !std::io::stderr().is_terminal());
        let done = run.train(&stop, |progress| {
            let (done, of, message) = match progress {
                Progress::Mining { queries, of } => (queries as u64, of as u64, "queries mined".into()),
                Progress::Step(StepReport { step, steps, metrics, texts_per_second, .. }) => {
                    (*step, *steps, format!("steps, loss {:.4}, {texts_per_second:.0} texts/s", metrics.loss))
                }
            };
            bar.set_length(of);
            bar.set_position(done);
            teller.tell((done, of), &message);
            bar.set_message(message);
        })?;
        bar.finish_and_clear();
        if !first {
            return Ok(());
        }
        let out = self.out.display();
        let loss = done.loss.map_or("all done before".into(), |loss| format!("last loss {loss:.4}"));
        if !done.finished {
            anyhow::bail!("stopped after step {} of {}: --resume goes on from there", done.step, done.steps);
        }
        print(shared, &serde_json::to_value(&done)?, &format!("trained {out}: {} steps, {loss}", done.steps))
    }
}

/// What is learned from, for whoever watches.
#[expect(clippy::print_stderr, reason = "progress is told beside the result")]
fn say_pairs(pairs: &Pairs) {
    let kind = match pairs {
        Pairs::Examples(_) => "examples of the log",
        Pairs::Judged(_) => "judged pairs",
        Pairs::Items(_) => "items by themselves",
    };
    eprintln!("learning from {} {kind}", pairs.len());
    if pairs.num_unknown_items() > 0 {
        eprintln!("  {} more name items that the catalogue lacks, and are left out", pairs.num_unknown_items());
    }
}

/// Where no bar can be drawn: a line now and then, so that a log shows that it goes on.
pub struct Teller {
    wanted: bool,
    last: Instant,
}

const BETWEEN_LINES: Duration = Duration::from_secs(30);

impl Teller {
    pub fn new(wanted: bool) -> Self {
        Self { wanted, last: Instant::now() }
    }

    #[expect(clippy::print_stderr, reason = "progress is told beside the result")]
    pub fn tell(&mut self, (done, of): (u64, u64), message: &str) {
        if self.wanted && self.last.elapsed() >= BETWEEN_LINES {
            self.last = Instant::now();
            eprintln!("{done} of {of} {message}");
        }
    }
}
