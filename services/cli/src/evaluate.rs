//! `souk evaluate`: measures the hits of a model, of BM25 or of a TREC run, and writes metrics and a report.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use souk::atomic_dir::AtomicDir;
use souk::backbone::hub;
use souk::beir::DataFolder;
use souk::catalogue::Catalogue;
use souk::config::Config;
use souk::cross_encoder::{RERANKER, RerankFit};
use souk::encoder::EncoderWorker;
use souk::error::Error;
use souk::item_text::ItemText;
use souk::lexical::{Fusion, Hybrid, ModelFusion};
use souk::objective::Objective;
use souk::report::{
    DEPTH, DETAILS, Engine, EvaluationRun, Measurement, ReportPage, Reranking, RunComparison, RunSettings, SHOWN, Task,
    TrainingLog, WIDE, names,
};
use souk::reward::{self, QrelsJudge, RewardSource};
use souk::train::perplexity;

use crate::compare::table_of;
use crate::output::print;
use crate::progress::ProgressDisplay;
use crate::vectors::VectorFile;
use crate::{GlobalArgs, ModelArgs};

/// Evaluate a model, BM25 or a TREC run on a split of a data folder
///
/// Writes metrics.json (rates in percent, 95 % confidence intervals), run.trec and qrels.trec (for trec_eval and
/// similar tools), queries.jsonl (metrics of each query, for souk compare) and report.html. Searches the whole
/// catalogue.
///
/// Example: souk evaluate --channel lexical --data SHOP --out BM25
///
/// Example: souk evaluate --model DIR --data SHOP --out MEASURED --baseline BM25
///
/// Example: souk evaluate --model DIR --channel hybrid --data SHOP --out HYBRID --baseline BM25 MEASURED
///
/// Example: souk evaluate --model DIR --channel hybrid --rerank 50 --data SHOP --out RERANKED --baseline HYBRID
#[derive(Args)]
pub struct EvaluateCommand {
    #[command(flatten)]
    model: ModelArgs,
    /// Channels that answer, as in `/search`
    #[arg(long, value_enum, default_value_t = Channel::Dense, conflicts_with = "run")]
    channel: Channel,
    /// Let a relevance model order the first DEPTH hits again: the model's own reranker, as in `/search`, or --reranker alone
    #[arg(long, value_name = "DEPTH", value_parser = clap::value_parser!(u32).range(1..))]
    rerank: Option<u32>,
    /// Relevance model (from `souk relevance train`) or cross-encoder of the Hugging Face hub: a folder or a hub name
    #[arg(long, value_name = "MODEL", requires = "rerank")]
    reranker: Option<String>,
    /// Former name of `--channel lexical`
    #[arg(long, hide = true, conflicts_with_all = ["channel", "run"])]
    lexical: bool,
    /// Former name of `--channel hybrid`
    #[arg(long, hide = true, conflicts_with_all = ["channel", "lexical", "run"])]
    hybrid: bool,
    /// Evaluate a TREC run of any engine instead of a model
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    run: Option<PathBuf>,
    /// Query rewrites for the lexical channel: a file like queries.jsonl (_id, text) that replaces the text of queries
    #[arg(long, value_name = "FILE")]
    rewrites: Option<PathBuf>,
    /// Data folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Split whose queries are evaluated
    #[arg(long, default_value = "test")]
    split: String,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Folders of earlier evaluations to compare with
    #[arg(long, value_name = "RUN", num_args = 1..)]
    baseline: Vec<PathBuf>,
    /// Source of relevance levels for unjudged pairs (default: [judge] of the configuration, else the oracle for a
    /// simulated shop, else none)
    #[arg(long, value_enum)]
    judge: Option<Judge>,
    /// Hits per query, more than 100; the first metric is the hit rate at this depth
    #[arg(long, default_value_t = DEPTH)]
    depth: usize,
    /// Also measure perplexity: a next_token configuration, whose held-out items are scored by the decoder
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    language: Option<PathBuf>,
    /// Folder that keeps the catalogue's vectors for the next command that measures the same model
    #[arg(long, value_name = "DIR", conflicts_with = "run")]
    vectors: Option<PathBuf>,
    /// Display name (default: the model's folder name, with `+ BM25` if hybrid; BM25; or the run's file name)
    #[arg(long)]
    name: Option<String>,
}

const REPORT: &str = "report.html";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Channel {
    /// Vectors of the model
    Dense,
    /// BM25, without a model
    Lexical,
    /// Both, fused with the weights of search.hybrid (default: those of `souk fit-fusion`, else the default ones)
    Hybrid,
}

#[derive(Clone, Copy, ValueEnum)]
enum Judge {
    /// Judgements of the data folder only
    Qrels,
    /// Ground truth of a simulated shop
    Oracle,
}

impl EvaluateCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        if self.depth <= WIDE {
            return Err(Error::input(format!("--depth {}: set it to more than {WIDE}", self.depth)).into());
        }
        let needs_model = self.model.is_given() || self.language.is_some() || self.vectors.is_some();
        if self.channel() == Channel::Lexical && needs_model {
            let problem = "--channel lexical: leave out --model, --language and --vectors; BM25 has no model";
            return Err(Error::input(problem).into());
        }
        if self.rewrites.is_some() && self.channel() != Channel::Lexical {
            return Err(
                Error::input("--rewrites: add --channel lexical; other channels read the queries as they are").into()
            );
        }
        let config = globals.load(self.model.changes())?;
        let folder = config.open_data(&self.data)?;
        let item_text = self.item_text(&config)?;
        let task = Task::load(&folder, &self.split, &item_text)?;
        let judge = self.judge(&config, &folder, &item_text)?;
        let baselines = self.baselines(&RunSettings::of(&task, judge.as_ref(), self.depth))?;
        let training = self.training_log(&config)?;
        let perplexity = self.language.as_ref().map(|file| perplexity_of(&config, file, &folder)).transpose()?;
        let atomic_dir = AtomicDir::new(&self.out)?;
        let lexical = task.lexical(config.search.lexical.unwrap_or_default())?;
        let engine = match &self.run {
            Some(file) => Engine::run(&task, file)?,
            None => match self.channel() {
                Channel::Dense => encode_task(&config, &task, self.vectors.as_deref())?,
                Channel::Lexical => Engine::lexical(&task, self.rewrites.as_deref())?,
                Channel::Hybrid => {
                    encode_task(&config, &task, self.vectors.as_deref())?.hybrid(&task, fusion(&config)?)?
                }
            },
        };
        let engine = match self.rerank {
            Some(depth) => engine.reranked(self.reranking(&config, &folder, &item_text)?, depth as usize),
            None => engine,
        };
        let (name, judge, depth) = (self.name(&config), judge.as_ref(), self.depth);
        let (task, engine, lexical) = (&task, &engine, &lexical);
        let measurement = Measurement { name: &name, task, engine, lexical, judge, depth, perplexity };
        let progress = ProgressDisplay::start("queries", Some(task.queries.len() as u64));
        let run = measurement.write(&atomic_dir.staging, &|more| progress.add(more))?;
        progress.finish();
        let pairs: Vec<(&EvaluationRun, &EvaluationRun)> = baselines.iter().map(|baseline| (baseline, &run)).collect();
        let comparison = RunComparison::of(&pairs, false)?;
        let page =
            ReportPage { run: &run, baselines: &baselines, comparison: &comparison, training: training.as_ref() };
        let file = atomic_dir.staging.join(REPORT);
        std::fs::write(&file, page.html()).map_err(Error::store(&file, "write it"))?;
        atomic_dir.finish()?;
        let mut text = table(&run);
        if !comparison.pairs.is_empty() {
            text += &format!("\n{}", table_of(&comparison));
        }
        text += &format!("\nmeasured {} queries; report in {}", run.queries.len(), self.out.join(REPORT).display());
        print(globals, &serde_json::to_value(&run.metrics)?, &text)
    }

    fn reranking(&self, config: &Config, data: &DataFolder, item_text: &ItemText) -> anyhow::Result<Reranking> {
        if let Some(model) = &self.reranker {
            return Ok(Reranking::Judge(config.open_reranker(&hub::resolve(model)?, data, item_text)?));
        }
        let dir = (self.channel() == Channel::Hybrid).then(|| config.model_dir()).transpose()?;
        let fit = dir.as_deref().map(RerankFit::of_model).transpose()?.flatten();
        let problem = "--rerank: needs --channel hybrid and a model with a reranker (souk fit-fusion --reranker), or --reranker JUDGE";
        let (dir, fit) = dir.zip(fit).ok_or_else(|| Error::input(problem))?;
        let scorer = Box::new(config.open_pair_scorer(&dir.join(RERANKER), item_text)?);
        Ok(Reranking::Version { scorer, weight: fit.weight })
    }

    /// Loads the baselines. Fails before the slow work if one of them is not comparable.
    fn baselines(&self, asked: &RunSettings) -> souk::Result<Vec<EvaluationRun>> {
        let load = |folder: &PathBuf| {
            let run = EvaluationRun::load(folder)?;
            let differences = run.metrics.asked.differences(asked);
            if differences.is_empty() {
                Ok(run)
            } else {
                Err(Error::input(format!(
                    "--baseline {}: cannot be compared with this evaluation: they differ in {}",
                    folder.display(),
                    differences.join(", in ")
                )))
            }
        };
        self.baseline.iter().map(load).collect()
    }

    fn channel(&self) -> Channel {
        match (self.lexical, self.hybrid) {
            (true, _) => Channel::Lexical,
            (_, true) => Channel::Hybrid,
            _ => self.channel,
        }
    }

    /// Whether the hits need the vectors of a model.
    fn has_model(&self) -> bool {
        self.run.is_none() && self.channel() != Channel::Lexical
    }

    /// Template of the items' texts: the model's, or the configured one without a model.
    fn item_text(&self, config: &Config) -> souk::Result<ItemText> {
        if !self.has_model() {
            return Ok(config.item_text());
        }
        Ok(config.open_reader()?.item_text().clone())
    }

    fn judge(&self, config: &Config, folder: &DataFolder, item_text: &ItemText) -> souk::Result<Arc<dyn RewardSource>> {
        let simulated = self.data.join("market.json").exists();
        let judge = match self.judge {
            Some(Judge::Oracle) if !simulated => {
                let problem = "--judge oracle: --data is not a folder of `souk market`; only those have an oracle";
                return Err(Error::input(problem));
            }
            Some(Judge::Oracle) => reward::Judge::Oracle {},
            Some(Judge::Qrels) => reward::Judge::Qrels(QrelsJudge { split: self.split.clone() }),
            None => return config.open_referee(folder, &self.split, item_text),
        };
        let mut config = config.clone();
        config.judge = Some(judge);
        config.open_judge(folder, item_text)
    }

    /// Training log of the model, read before the slow work so that a bad line fails early.
    fn training_log(&self, config: &Config) -> anyhow::Result<Option<TrainingLog>> {
        match &config.model.path {
            Some(path) if self.has_model() => Ok(TrainingLog::load(&hub::resolve(path)?)?),
            _ => Ok(None),
        }
    }

    fn name(&self, config: &Config) -> String {
        let last = |path: &Path| path.file_name().map_or("run".into(), |name| name.to_string_lossy().into_owned());
        match (&self.name, &self.run) {
            (Some(name), _) => name.clone(),
            (None, Some(file)) => last(file),
            (None, None) if self.channel() == Channel::Lexical => "BM25".into(),
            (None, None) => {
                let model = config.model.path.as_deref().map_or("model".into(), |path| last(Path::new(path)));
                if self.channel() == Channel::Hybrid { format!("{model} + BM25") } else { model }
            }
        }
    }
}

/// Perplexity of the model on the held-out items of a next_token configuration, with that configuration's encoder
/// settings.
fn perplexity_of(config: &Config, file: &Path, folder: &DataFolder) -> souk::Result<f64> {
    let mut language = Config::load(Some(file), &[])?;
    language.model = config.model.clone();
    // generation is causal, even if the encoder is bidirectional
    language.encoder.causal = Some(true);
    let Objective::NextToken(rule) = &language.objective else {
        let problem = "the objective is not next_token: give the configuration of a next_token stage";
        return Err(Error::config(file.display(), problem));
    };
    let encoder = language.open_encoder()?.freeze()?;
    let catalogue = Catalogue::open(folder)?.with_item_text(encoder.item_text());
    perplexity(&encoder, rule, &catalogue)
}

/// As served: the configured weights if there are any, else those fitted to the model, else the default ones.
fn fusion(config: &Config) -> anyhow::Result<Fusion> {
    let fitted = ModelFusion::load(&config.model_dir()?)?;
    let hybrid = config.search.hybrid;
    let hybrid = if hybrid == Hybrid::Enabled(false) { Hybrid::Enabled(true) } else { hybrid };
    Ok(hybrid.fusion(fitted).unwrap_or_default())
}

/// Engine from the vectors of the catalogue and of the queries. `kept`: folder where earlier commands may have left the catalogue's.
pub fn encode_task(config: &Config, task: &Task, kept: Option<&Path>) -> anyhow::Result<Engine> {
    let encoder = config.open_encoder()?.for_search()?;
    let fingerprint = kept.map(|_| encoder.fingerprint()).transpose()?;
    let file = kept.zip(fingerprint).map(|(folder, model)| VectorFile::of(folder, &model, config, task));
    let known = file.as_ref().map(VectorFile::load).transpose()?.flatten();
    let worker = EncoderWorker::start(encoder.freeze()?, config.worker)?;
    let num_items = if known.is_some() { 0 } else { task.items.len() };
    let progress = ProgressDisplay::start("texts encoded", Some((num_items + task.queries.len()) as u64));
    let count = || {
        progress.add(1);
        Ok(())
    };
    let items = match known {
        Some(items) => items,
        None => {
            let items = Engine::encode_items(task, &worker, count)?;
            file.map_or(Ok(()), |file| file.save(&items))?;
            items
        }
    };
    let engine = Engine::encode_queries(task, &worker, &items, count)?;
    progress.finish();
    Ok(engine)
}

/// Metrics as a table: one row per slice, with the confidence interval of the overall row.
fn table(run: &EvaluationRun) -> String {
    let all = names(run.metrics.asked.depth);
    let shown: Vec<&String> = SHOWN.iter().map(|metric| &all[*metric]).collect();
    let width = run.metrics.slices.keys().map(String::len).chain([16]).max().unwrap_or(16);
    let mut text = format!(
        "{} ({}) on {}, split {}, judge {}\n",
        run.metrics.model,
        run.metrics.pipeline,
        run.metrics.asked.data,
        run.metrics.asked.split,
        run.metrics.asked.judge
    );
    if let Some(note) = &run.metrics.asked.judgements {
        text += &format!("{note}\n");
    }
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
    let details = DETAILS.map(|metric| format!("{} {}", all[metric], number(run.metrics.overall[&all[metric]])));
    text + &format!("details: {}\n", details.join(", "))
}
