//! `souk evaluate`: how good an engine's hits are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use souk::atomic_dir::Claim;
use souk::backbone::hub;
use souk::beir::DataFolder;
use souk::catalogue::Catalogue;
use souk::config::Config;
use souk::encoder::EncoderWorker;
use souk::error::Error;
use souk::lexical::Lexical;
use souk::objective::Objective;
use souk::report::{Asked, Comparison, DEPTH, Engine, Measurement, Page, Run, SHOWN, Task, TrainingLog, WIDE, names};
use souk::reward::{self, QrelsJudge, RewardSource};
use souk::train::perplexity;

use crate::compare::table_of;
use crate::output::print;
use crate::progress::bar;
use crate::{ModelArgs, Shared};

/// Measure a model, the lexical channel or any engine's run on a split of a data folder
///
/// Writes metrics.json (rates in percent, 95 % intervals), run.trec and qrels.trec (which other tools read), queries.jsonl
/// (each query's values, for souk compare) and report.html. Every item of the catalogue is searched.
///
/// Example: souk evaluate --lexical --data SHOP --out BM25
///
/// Example: souk evaluate --model DIR --data SHOP --out MEASURED --baseline BM25
#[derive(Args)]
pub struct Evaluate {
    #[command(flatten)]
    model: ModelArgs,
    /// Measure the lexical channel (BM25) instead of a model
    #[arg(long, conflicts_with_all = ["model", "run"])]
    lexical: bool,
    /// Measure this TREC run of any engine instead of a model
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    run: Option<PathBuf>,
    /// With --lexical: the words to search by instead of a query's own, a file like queries.jsonl (_id, text)
    #[arg(long, value_name = "FILE", requires = "lexical")]
    rewrites: Option<PathBuf>,
    /// Data folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Whose queries are asked
    #[arg(long, default_value = "test")]
    split: String,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Folders of earlier evaluations to hold it against
    #[arg(long, value_name = "RUN", num_args = 1..)]
    baseline: Vec<PathBuf>,
    /// Who gives the levels that the judgements lack: by default [judge] of the configuration, the oracle where the data is a
    /// simulated shop, else nobody
    #[arg(long, value_enum)]
    judge: Option<Judge>,
    /// Hits kept for each query, more than 100; the first metric is the hitrate among them
    #[arg(long, default_value_t = DEPTH)]
    depth: usize,
    /// Also take the perplexity of a decoder on the items that this configuration (of the objective next_token) keeps aside
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lexical", "run"])]
    language: Option<PathBuf>,
    /// What tables call it; by default the model's name, BM25, or the run's name
    #[arg(long)]
    name: Option<String>,
}

const REPORT: &str = "report.html";

#[derive(Clone, Copy, ValueEnum)]
enum Judge {
    /// The data's judgements alone
    Qrels,
    /// The oracle of a simulated shop
    Oracle,
}

impl Evaluate {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        if self.depth <= WIDE {
            return Err(Error::input(format!("--depth {}: say more than {WIDE}", self.depth)).into());
        }
        let config = shared.load(self.model.changes())?;
        let folder = DataFolder::open(&self.data)?;
        let task = Task::load(&folder, &self.split)?;
        let judge = self.judge(&config, &folder)?;
        let baselines = self.baselines(&Asked::of(&task, judge.as_ref(), self.depth))?;
        let training = self.training_log(&config)?;
        let perplexity = self.language.as_ref().map(|file| perplexity_of(&config, file, &folder)).transpose()?;
        let claim = Claim::new(&self.out)?;
        let lexical = Lexical::build(task.items.iter().map(|item| Ok(item.passage())))?;
        let engine = match &self.run {
            Some(file) => Engine::run(&task, file)?,
            None if self.lexical => Engine::lexical(&task, self.rewrites.as_deref())?,
            None => encoded(&config, &task)?,
        };
        let (name, judge, depth) = (self.name(&config), judge.as_ref(), self.depth);
        let (task, engine, lexical) = (&task, &engine, &lexical);
        let measurement = Measurement { name: &name, task, engine, lexical, judge, depth, perplexity };
        let asked = bar("queries", Some(task.queries.len() as u64));
        let run = measurement.write(&claim.aside, &|more| asked.inc(more))?;
        asked.finish_and_clear();
        let pairs: Vec<(&Run, &Run)> = baselines.iter().map(|baseline| (baseline, &run)).collect();
        let comparison = Comparison::of(&pairs, false)?;
        let page = Page { run: &run, baselines: &baselines, comparison: &comparison, training: training.as_ref() };
        let file = claim.aside.join(REPORT);
        std::fs::write(&file, page.html()).map_err(Error::store(&file, "write it"))?;
        claim.finish()?;
        let mut text = table(&run);
        if !comparison.pairs.is_empty() {
            text += &format!("\n{}", table_of(&comparison));
        }
        text += &format!("\nmeasured {} queries; report in {}", run.queries.len(), self.out.join(REPORT).display());
        print(shared, &serde_json::to_value(&run.metrics)?, &text)
    }

    /// Those that cannot be compared are refused before the long work begins.
    fn baselines(&self, asked: &Asked) -> souk::Result<Vec<Run>> {
        let load = |folder: &PathBuf| {
            let run = Run::load(folder)?;
            let differences = run.metrics.asked.differences(asked);
            match differences.is_empty() {
                true => Ok(run),
                false => Err(Error::input(format!(
                    "--baseline {}: cannot be compared with this evaluation, for they differ in {}",
                    folder.display(),
                    differences.join(", in ")
                ))),
            }
        };
        self.baseline.iter().map(load).collect()
    }

    fn judge(&self, config: &Config, folder: &DataFolder) -> souk::Result<Arc<dyn RewardSource>> {
        let simulated = self.data.join("market.json").exists();
        let judge = match self.judge {
            Some(Judge::Oracle) if !simulated => {
                let problem = "--judge oracle: this is no folder of `souk market`; only those have an oracle";
                return Err(Error::input(problem));
            }
            Some(Judge::Oracle) => reward::Judge::Oracle {},
            Some(Judge::Qrels) => reward::Judge::Qrels(QrelsJudge { split: self.split.clone() }),
            None => return config.open_referee(folder, &self.split),
        };
        let mut config = config.clone();
        config.judge = Some(judge);
        config.open_judge(folder)
    }

    /// Read before the long work begins, so that a bad line is not found at its end.
    fn training_log(&self, config: &Config) -> anyhow::Result<Option<TrainingLog>> {
        match &config.model.path {
            Some(path) if !self.lexical && self.run.is_none() => Ok(TrainingLog::load(&hub::resolve(path)?)?),
            _ => Ok(None),
        }
    }

    fn name(&self, config: &Config) -> String {
        let last = |path: &Path| path.file_name().map_or("run".into(), |name| name.to_string_lossy().into_owned());
        match (&self.name, &self.run) {
            (Some(name), _) => name.clone(),
            (None, Some(file)) => last(file),
            (None, None) if self.lexical => "BM25".into(),
            (None, None) => config.model.path.as_deref().map_or("model".into(), |path| last(Path::new(path))),
        }
    }
}

/// How well the model writes what a file's configuration teaches to write, asked as that asks it.
fn perplexity_of(config: &Config, file: &Path, folder: &DataFolder) -> souk::Result<f64> {
    let mut language = Config::load(Some(file), &[])?;
    language.model = config.model.clone();
    // one writes in one direction, whichever way one reads
    language.encoder.causal = Some(true);
    let Objective::NextToken(rule) = &language.objective else {
        let problem = "has another objective than next_token: give the configuration of a stage that learns to write";
        return Err(Error::config(file.display(), problem));
    };
    perplexity(&language.open_encoder()?.freeze()?, rule, &Catalogue::open(folder)?)
}

/// The vectors of the catalogue and of the queries.
fn encoded(config: &Config, task: &Task) -> anyhow::Result<Engine> {
    let encoder = config.open_encoder()?.for_search()?.freeze()?;
    let worker = EncoderWorker::start(encoder, config.worker)?;
    let progress = bar("texts encoded", Some((task.items.len() + task.queries.len()) as u64));
    let engine = Engine::encode(task, &worker, || {
        progress.inc(1);
        Ok(())
    })?;
    progress.finish_and_clear();
    Ok(engine)
}

/// Slices down, metrics across; the interval of all queries below them.
fn table(run: &Run) -> String {
    let all = names(run.metrics.asked.depth);
    let shown: Vec<&String> = SHOWN.iter().map(|metric| &all[*metric]).collect();
    let width = run.metrics.slices.keys().map(String::len).chain([16]).max().unwrap_or(16);
    let mut text = format!(
        "{} on {}, split {}, judge {}\n",
        run.metrics.model, run.metrics.asked.data, run.metrics.asked.split, run.metrics.asked.judge
    );
    let row = |name: &str, cells: Vec<String>| {
        let cells: Vec<String> =
            cells.iter().zip(&shown).map(|(cell, name)| format!("{cell:>0$}", name.len().max(12))).collect();
        format!("{name:<width$}  {}\n", cells.join("  "))
    };
    text += &row("", shown.iter().map(|name| (*name).clone()).collect());
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    text += &row("overall", shown.iter().map(|name| number(run.metrics.overall[*name])).collect());
    let interval = |name: &&String| {
        run.metrics.intervals.get(*name).map_or("-".into(), |[low, high]| format!("{low:.1} - {high:.1}"))
    };
    text += &row("  95 % interval", shown.iter().map(interval).collect());
    if let Some(perplexity) = run.metrics.perplexity {
        text += &format!("perplexity {perplexity:.3}\n");
    }
    for (slice, values) in &run.metrics.slices {
        text += &row(slice, shown.iter().map(|name| number(values[*name])).collect());
    }
    text
}
