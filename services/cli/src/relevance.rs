//! `souk relevance`: trains and serves a relevance model (a calibrated cross-encoder).

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use clap::{Args, Subcommand};
use souk::atomic_dir::AtomicDir;
use souk::config::Change;
use souk::cross_encoder::{GradedPairs, JudgeReport, TrainProgress};
use souk::error::Error;
use souk::report::relevance_page;

use crate::output::print;
use crate::progress::ProgressDisplay;
use crate::stop::{end, listen};
use crate::{GlobalArgs, ModelArgs};

const REPORT: &str = "report.html";

/// Train or serve a relevance model: level and score of query-item pairs
#[derive(Args)]
pub struct RelevanceCommand {
    #[command(subcommand)]
    action: RelevanceAction,
}

#[derive(Subcommand)]
enum RelevanceAction {
    Train(TrainRelevance),
    Serve(ServeRelevance),
}

impl RelevanceCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        match &self.action {
            RelevanceAction::Train(train) => train.run(globals),
            RelevanceAction::Serve(serve) => serve.run(globals),
        }
    }
}

/// Train a relevance model on judgements
///
/// Trains a cross-encoder on graded pairs (qrels/train.tsv) and calibrates it on held-out queries.
///
/// Writes a model folder in Hugging Face layout with relevance.json (temperature, thresholds, training data),
/// relevance-metrics.json and report.html (reliability plot). The write is atomic.
///
/// Example: souk relevance train --config configs/relevance-market.toml --model BASE --data SHOP --out JUDGE
#[derive(Args)]
struct TrainRelevance {
    #[command(flatten)]
    model: ModelArgs,
    /// Data folder with corpus.jsonl, queries.jsonl and qrels/train.tsv
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl TrainRelevance {
    fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(self.model.changes())?;
        let data = config.open_data(&self.data)?;
        let training = config.open_relevance_training(&data)?;
        print_pairs(training.pairs());
        let atomic_dir = AtomicDir::new(&self.out)?;
        let stop = listen(end)?;
        let shown = ProgressDisplay::start("pairs", Some(0));
        let outcome = training.run(&atomic_dir.staging, &stop, |progress| {
            let (done, total, message) = match progress {
                TrainProgress::Learning { pairs, of, loss, .. } => {
                    (pairs, of, format!("training pairs, loss {loss:.4}"))
                }
                TrainProgress::Measuring { pairs, of } => (pairs, of, "held-out pairs measured".into()),
            };
            shown.show(done, total, message);
        });
        shown.finish();
        if stop.load(Ordering::Relaxed) && outcome.is_err() {
            anyhow::bail!("stopped: nothing was written");
        }
        let measured = outcome?;
        let name = self.out.file_name().map_or("relevance".into(), |name| name.to_string_lossy());
        let file = atomic_dir.staging.join(REPORT);
        std::fs::write(&file, relevance_page(&name, &measured)).map_err(Error::store(&file, "write it"))?;
        atomic_dir.finish()?;
        let text = format!("{}report in {}", summary(&measured), self.out.join(REPORT).display());
        print(globals, &serde_json::to_value(&measured)?, &text)
    }
}

/// Serve a relevance model or a simulated shop's oracle over HTTP
///
/// POST /score, TEI's /rerank and Cohere's /v1/rerank; GET /healthz, /readyz and /metrics (docs/relevance.md). API keys
/// come from SOUK_RELEVANCE_KEYS or [relevance.serve] key_file; an address that other machines can reach needs them.
/// Stops on Ctrl-C or SIGTERM.
///
/// Example: souk relevance serve --model JUDGE
///
/// Example: souk relevance serve --oracle SHOP --listen 127.0.0.1:8090
#[derive(Args)]
struct ServeRelevance {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder written by `souk market`: serve its ground truth instead of a model
    #[arg(long, value_name = "SHOP", conflicts_with = "model")]
    oracle: Option<PathBuf>,
    /// Address and port (default: 127.0.0.1:8090)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

impl ServeRelevance {
    fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let mut changes = self.model.changes();
        changes.extend(self.listen.as_ref().map(|at| Change::text("relevance.serve.listen", "--listen", at)));
        let config = globals.load(changes)?;
        souk_relevance::serve(&config, self.oracle.as_deref(), |endpoint, judge| {
            let json = serde_json::json!({"address": endpoint.address.to_string(), "model": judge});
            print(globals, &json, &format!("{judge} answers on {endpoint}"))
        })
    }
}

/// Prints the sizes of the training and held-out sets.
#[expect(clippy::print_stderr, reason = "progress goes to standard error")]
fn print_pairs(pairs: &GradedPairs) {
    eprintln!(
        "training on {} pairs; held out: {} for calibration, {} for evaluation",
        pairs.learn.len(),
        pairs.calibrate.len(),
        pairs.measure.len()
    );
    if pairs.num_unknown_items > 0 {
        eprintln!("  skipped {} more: their items are not in the catalogue", pairs.num_unknown_items);
    }
}

fn summary(measured: &JudgeReport) -> String {
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.4}"));
    let mut text = format!(
        "trained on {} pairs in {} steps, {:.0} s; temperature {:.3}\n{:<22}{:>10}{:>14}\n",
        measured.draws, measured.steps, measured.seconds, measured.calibration.temperature, "", "judged", "with random"
    );
    let (judged, all) = (&measured.judged, &measured.all);
    let rows = [
        ("accuracy", judged.agreement.accuracy, all.agreement.accuracy),
        ("kappa (quadratic)", judged.agreement.kappa, all.agreement.kappa),
        ("AUC of Good", judged.agreement.auc_good, all.agreement.auc_good),
        ("ECE uncalibrated", judged.before.ece, all.before.ece),
        ("ECE calibrated", judged.after.ece, all.after.ece),
    ];
    for (name, of_judged, of_all) in rows {
        text += &format!("{name:<22}{:>10}{:>14}\n", number(of_judged), number(of_all));
    }
    text
}
