//! `souk relevance`: trains and serves the model that judges how well an item answers a query.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use clap::{Args, Subcommand};
use souk::atomic_dir::Claim;
use souk::beir::DataFolder;
use souk::config::Change;
use souk::cross_encoder::{GradedPairs, Measured, Progress};
use souk::error::Error;
use souk::report::relevance_page;

use crate::output::print;
use crate::progress::bar;
use crate::stop::{end, listen};
use crate::train::Teller;
use crate::{ModelArgs, Shared};

const REPORT: &str = "report.html";

/// Train or serve a relevance model: how well an item answers a query, as a level and a calibrated score
#[derive(Args)]
pub struct Relevance {
    #[command(subcommand)]
    verb: RelevanceVerb,
}

#[derive(Subcommand)]
enum RelevanceVerb {
    Train(TrainRelevance),
    Serve(ServeRelevance),
}

impl Relevance {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        match &self.verb {
            RelevanceVerb::Train(verb) => verb.run(shared),
            RelevanceVerb::Serve(verb) => verb.run(shared),
        }
    }
}

/// Train a cross-encoder on graded pairs (qrels/train.tsv) and calibrate it on queries that are held out
///
/// Writes a model folder in Hugging Face's layout with relevance.json (temperature, thresholds, what it was trained on),
/// relevance-metrics.json and report.html (a reliability plot). It appears whole or not at all.
///
/// Example: souk relevance train --config configs/relevance-market.toml --model BASE --data SHOP --out JUDGE
#[derive(Args)]
struct TrainRelevance {
    #[command(flatten)]
    model: ModelArgs,
    /// Data folder with corpus.jsonl, queries.jsonl and qrels/train.tsv
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl TrainRelevance {
    fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let config = shared.load(self.model.changes())?;
        let data = DataFolder::open(&self.data)?;
        let training = config.open_relevance_training(&data)?;
        say_pairs(training.pairs());
        let claim = Claim::new(&self.out)?;
        let stop = listen(end)?;
        let bar = bar("pairs", Some(0));
        let mut teller = Teller::new(!std::io::stderr().is_terminal());
        let outcome = training.run(&claim.aside, &stop, |progress| {
            let (done, of, message) = match progress {
                Progress::Learning { pairs, of, loss, .. } => (pairs, of, format!("pairs learned, loss {loss:.4}")),
                Progress::Measuring { pairs, of } => (pairs, of, "held-out pairs measured".into()),
            };
            bar.set_length(of);
            bar.set_position(done);
            teller.tell((done, of), &message);
            bar.set_message(message);
        });
        bar.finish_and_clear();
        if stop.load(Ordering::Relaxed) && outcome.is_err() {
            anyhow::bail!("stopped: nothing was written");
        }
        let measured = outcome?;
        let name = self.out.file_name().map_or("relevance".into(), |name| name.to_string_lossy());
        let file = claim.aside.join(REPORT);
        std::fs::write(&file, relevance_page(&name, &measured)).map_err(Error::store(&file, "write it"))?;
        claim.finish()?;
        let text = format!("{}report in {}", said(&measured), self.out.join(REPORT).display());
        print(shared, &serde_json::to_value(&measured)?, &text)
    }
}

/// Serve a relevance model, or the oracle of a simulated shop, over HTTP
///
/// POST /score, TEI's /rerank and Cohere's /v1/rerank; GET /healthz, /readyz and /metrics (docs/relevance.md). Keys come from
/// SOUK_RELEVANCE_KEYS or [relevance.serve] key_file; without any, everybody may ask. Ends on Ctrl-C or SIGTERM.
///
/// Example: souk relevance serve --model JUDGE
///
/// Example: souk relevance serve --oracle SHOP --listen 127.0.0.1:8090
#[derive(Args)]
struct ServeRelevance {
    #[command(flatten)]
    model: ModelArgs,
    /// A folder of `souk market`, whose oracle answers instead of a model
    #[arg(long, value_name = "SHOP", conflicts_with = "model")]
    oracle: Option<PathBuf>,
    /// Address and port; by default 127.0.0.1:8090
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

impl ServeRelevance {
    fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let mut changes = self.model.changes();
        changes.extend(self.listen.as_ref().map(|at| Change::text("relevance.serve.listen", "--listen", at)));
        let config = shared.load(changes)?;
        souk_relevance::serve(&config, self.oracle.as_deref(), |endpoint, judge| {
            let json = serde_json::json!({"address": endpoint.address.to_string(), "model": judge});
            print(shared, &json, &format!("{judge} answers on {endpoint}"))
        })
    }
}

/// What is learned from, for whoever watches.
#[expect(clippy::print_stderr, reason = "progress is told beside the result")]
fn say_pairs(pairs: &GradedPairs) {
    eprintln!(
        "learning from {} pairs; {} held out to calibrate, {} to measure",
        pairs.learn.len(),
        pairs.calibrate.len(),
        pairs.measure.len()
    );
    if pairs.num_unknown_items > 0 {
        eprintln!("  {} more name items that the catalogue lacks, and are left out", pairs.num_unknown_items);
    }
}

fn said(measured: &Measured) -> String {
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.4}"));
    let mut text = format!(
        "learned from {} pairs in {} steps, {:.0} s; temperature {:.3}\n{:<22}{:>10}{:>14}\n",
        measured.draws, measured.steps, measured.seconds, measured.calibration.temperature, "", "judged", "with drawn"
    );
    let (judged, all) = (&measured.judged, &measured.all);
    let rows = [
        ("accuracy", judged.agreement.accuracy, all.agreement.accuracy),
        ("kappa (quadratic)", judged.agreement.kappa, all.agreement.kappa),
        ("AUC of Good", judged.agreement.auc_good, all.agreement.auc_good),
        ("ECE as trained", judged.before.ece, all.before.ece),
        ("ECE calibrated", judged.after.ece, all.after.ece),
    ];
    for (name, of_judged, of_all) in rows {
        text += &format!("{name:<22}{:>10}{:>14}\n", number(of_judged), number(of_all));
    }
    text
}
