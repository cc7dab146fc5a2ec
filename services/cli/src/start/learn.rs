//! The part of `souk start` that needs a log: judges and measures, trains stage by stage, and serves what passes the gate.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;
use souk::backbone::Precision;
use souk::beir::DataFolder;
use souk::catalogue::Catalogue;
use souk::config::{Config, StageSettings};
use souk::cross_encoder::{HYBRID_JUDGE, HybridGrading};
use souk::dataset::Pairs;
use souk::error::Error;
use souk::lexical::{FittedFusion, Hybrid, ModelFusion};
use souk::model_card::{GateRecord, MeasurementRecord, add_measurements};
use souk::objective::Candidates;
use souk::report::{EvaluationRun, GateInput, GateVerdict, Metrics, pipeline_of};
use souk::reward::Judge;
use souk::store::NewVersion;
use souk_trainer::{Offer, Registry};

use super::steps::{Steps, say};
use super::{StartCommand, precision, words};

/// Queries of the gate, and those of the last table, which decided nothing.
const GATE_SPLIT: &str = "dev";
pub const TABLE_SPLIT: &str = "test";
/// Names of the evaluations of what needs no training.
const LEXICAL: &str = "BM25";
const UNTRAINED: &str = "untrained";

pub struct Learner<'a> {
    pub shop: &'a StartCommand,
    pub steps: &'a Steps,
    pub config: &'a Config,
    /// Whether a service runs that can swap to a trained model.
    pub is_serving: bool,
}

impl Learner<'_> {
    /// Measures, trains stage by stage, and serves each model that the gate passes. Returns the names of the evaluations for the last
    /// table.
    pub fn learn(&self, base: &Path) -> anyhow::Result<Vec<String>> {
        let data = self.shop.data();
        let mut arguments = self.shop.with_config(&["judgements", "--quality"]);
        arguments.extend(["--data".into(), data.clone().into()]);
        self.steps.run("Derive judgements from the log", None, arguments)?;
        let mut arguments = self.shop.with_config(&["ingest"]);
        arguments.extend(["--data".into(), data.into()]);
        self.steps.run("Collect training examples from the log", None, arguments)?;
        self.evaluate(LEXICAL, None, GATE_SPLIT)?;
        // a model that passed the gate before stays served meanwhile
        let is_first = self.shop.served().canonicalize().ok() == base.canonicalize().ok();
        let base = &self.own_copy(base)?;
        self.fit(UNTRAINED, base)?;
        let (run, _) = self.evaluate(UNTRAINED, Some(base), GATE_SPLIT)?;
        let mut best = Candidate { stage: UNTRAINED.into(), model: base.clone(), run, beaten: None };
        let mut models = vec![(UNTRAINED.to_owned(), base.clone())];
        if is_first {
            self.promote(&best)?;
        }
        for stage in &self.config.trainer.stage {
            let Some((model, is_trained)) = self.train(stage, &best.model)? else { continue };
            self.fit(&stage.name, &model)?;
            let (run, is_measured) = self.evaluate(&stage.name, Some(&model), GATE_SPLIT)?;
            models.push((stage.name.clone(), model.clone()));
            let gate =
                self.config.trainer.gate.judge(&GateInput { served: &best.run, candidate: &run, drift: None })?;
            write_card(&model, &run, &best.stage, &gate)?;
            if !gate.passed {
                say(&format!("\nThe model of `{}` is not served: {}", stage.name, gate.reasons.join("; ")));
                continue;
            }
            say(&format!(
                "\nThe model of `{}` passed: no watched metric is significantly worse, and at least one is higher.",
                stage.name
            ));
            best = Candidate { stage: stage.name.clone(), model, run, beaten: Some(best.run.metrics) };
            if is_trained || is_measured {
                self.promote(&best)?;
            }
        }
        // again, in case it was stopped before
        self.promote(&best)?;
        self.evaluate(LEXICAL, None, TABLE_SPLIT)?;
        for (name, model) in &models {
            self.evaluate(name, Some(model), TABLE_SPLIT)?;
        }
        // they are large, and nothing is measured any more
        drop(fs::remove_dir_all(self.shop.vectors()));
        Ok([LEXICAL.to_owned()].into_iter().chain(models.into_iter().map(|(name, _)| name)).collect())
    }

    /// Points `served` at a model and, if a service is running, offers it. Does nothing that is done already.
    fn promote(&self, best: &Candidate) -> anyhow::Result<()> {
        if self.shop.served().canonicalize().ok() != best.model.canonicalize().ok() {
            self.shop.link_served(&best.model)?;
            say(&format!("\nServed from now on: the model of `{}`", best.stage));
        }
        let is_new = best.stage != UNTRAINED || ModelFusion::load(&best.model)?.is_some();
        if self.is_serving && is_new { offer(self.config, best) } else { Ok(()) }
    }

    /// A folder of links to the base model's files, because the weights of hybrid search are written beside them.
    fn own_copy(&self, base: &Path) -> anyhow::Result<PathBuf> {
        let folder = self.shop.untrained();
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for entry in fs::read_dir(base).with_context(|| format!("cannot list {}", base.display()))? {
            let entry = entry.with_context(|| format!("cannot list {}", base.display()))?;
            let link = folder.join(entry.file_name());
            if !link.exists() {
                // a link whose target is gone
                drop(fs::remove_file(&link));
                let file = entry.path().canonicalize().context("cannot find a file of the model")?;
                symlink(&file, &link).with_context(|| format!("cannot link to {}", file.display()))?;
            }
        }
        Ok(folder)
    }

    /// Fits the weights of hybrid search, if it is served with them.
    fn fit(&self, name: &str, model: &Path) -> anyhow::Result<()> {
        if self.config.search.hybrid == Hybrid::Enabled(true) { self.fit_weights(name, model) } else { Ok(()) }
    }

    /// Fits the weights of hybrid search, unless they were fitted to this model.
    fn fit_weights(&self, name: &str, model: &Path) -> anyhow::Result<()> {
        let fitted = FittedFusion::load(model)?;
        if fitted.is_some_and(|fitted| Some(fitted.fitted_on.model) == self.fingerprint(model).ok()) {
            return Ok(());
        }
        let title = format!("Fit hybrid search with the model of {name}");
        self.steps.run(&title, None, self.fit_fusion(model)?)?;
        Ok(())
    }

    fn fit_fusion(&self, model: &Path) -> anyhow::Result<Vec<OsString>> {
        let mut arguments = self.shop.with_config(&["fit-fusion", "--split", GATE_SPLIT]);
        arguments.extend(words(&["--precision", precision(self.config)?]));
        arguments.extend(["--model".into(), model.into(), "--data".into(), self.shop.data().into()]);
        arguments.extend(["--vectors".into(), self.shop.vectors().into()]);
        Ok(arguments)
    }

    fn fingerprint(&self, model: &Path) -> anyhow::Result<String> {
        let mut config = self.config.clone();
        config.model.path = Some(model.display().to_string());
        Ok(config.open_encoder()?.fingerprint()?)
    }

    /// Makes hybrid search with the untrained model a judge; false if it cannot be one.
    fn make_judge(&self) -> anyhow::Result<bool> {
        let model = self.shop.untrained();
        self.fit_weights(UNTRAINED, &model)?;
        if FittedFusion::load(&model)?.is_none_or(|fitted| fitted.fitted_on.queries == 0) {
            return Ok(false);
        }
        let mut arguments = self.fit_fusion(&model)?;
        arguments.push("--as-judge".into());
        let done = model.join(HYBRID_JUDGE);
        if HybridGrading::of_model(&model).is_err() {
            // of an earlier version
            fs::remove_file(&done).with_context(|| format!("cannot remove {}", done.display()))?;
        }
        self.steps.run("Make hybrid search with the untrained model a judge", Some(&done), arguments)?;
        Ok(true)
    }

    /// Tells why a stage cannot learn from this log, if it cannot. Makes the stage's judge, if it needs one.
    fn shortage(&self, stage: &Config) -> anyhow::Result<Option<String>> {
        let data = DataFolder::open(&self.shop.data())?;
        let (catalogue, settings) = (Catalogue::open(&data)?, &stage.train);
        let pairs = Pairs::find(&data, &catalogue, settings.pairs, settings.training_split(), None)?.len();
        if pairs < settings.batch as u64 {
            return Ok(Some(format!("a batch has {} pairs, and the log gives {pairs}", settings.batch)));
        }
        let judged = stage.objective.needs().candidates != Candidates::None;
        let judge = stage.judge.as_ref().and_then(Judge::model).filter(|_| judged);
        // the folder may be spelled in another way than when `shop.toml` was written
        let is_own = |path: &Path| path.canonicalize().ok() == self.shop.untrained().canonicalize().ok();
        if judge.is_some_and(|judge| is_own(&judge.path)) && !self.make_judge()? {
            return Ok(Some(format!(
                "hybrid search cannot judge, because too few queries are judged; an LLM can (see {})",
                self.shop.config_file().display()
            )));
        }
        Ok(None)
    }

    /// Trains a stage from `model`, unless the log is too short. The second value is true if it was trained now.
    fn train(&self, stage: &StageSettings, model: &Path) -> anyhow::Result<Option<(PathBuf, bool)>> {
        if stage.config.is_some() {
            let problem = format!("the stage `{}` has a file: `souk start` needs its settings in `set`", stage.name);
            return Err(Error::config("trainer.stage.config", problem).into());
        }
        if let Some(shortage) = self.shortage(&self.config.of_stage(stage, &model.display().to_string())?)? {
            say(&format!("\nThe stage `{}` is left out: {shortage}. A longer log helps.", stage.name));
            return Ok(None);
        }
        let out = self.shop.out.join("models").join(&stage.name);
        let mut arguments = self.shop.with_config(&["train", "--resume"]);
        if self.config.model.precision == Precision::F32 && self.config.model.has_fast_bf16()? {
            arguments.extend(words(&["--precision", "bf16"]));
        }
        arguments.extend(stage.set.iter().flat_map(|set| ["--set".into(), set.into()]));
        arguments.extend(["--model".into(), model.into(), "--data".into(), self.shop.data().into()]);
        arguments.extend(["--out".into(), out.clone().into()]);
        let is_new = self.steps.run(&format!("Train: {}", stage.name), Some(&out.join("config.json")), arguments)?;
        Ok(Some((out, is_new)))
    }

    /// Measures a model as it is served, or BM25. True if it was measured now.
    fn evaluate(&self, name: &str, model: Option<&Path>, split: &str) -> anyhow::Result<(EvaluationRun, bool)> {
        let out = self.shop.measured().join(format!("{name}-{split}"));
        let mut arguments = self
            .shop
            .with_config(&["evaluate", "--name", name, "--split", split, "--judge", "qrels", "--depth", "1000"]);
        match model {
            Some(model) => {
                arguments.extend(words(&["--precision", precision(self.config)?, "--model"]));
                arguments.push(model.into());
                arguments.extend(["--vectors".into(), self.shop.vectors().into()]);
                arguments.extend(
                    self.config.search.hybrid.fusion(None).iter().flat_map(|_| ["--channel".into(), "hybrid".into()]),
                );
            }
            None => arguments.extend(["--channel".into(), "lexical".into()]),
        }
        arguments.extend(["--data".into(), self.shop.data().into(), "--out".into(), out.clone().into()]);
        // by an earlier version, or with other weights of hybrid search
        let fitted = model.map_or(Ok(None), ModelFusion::load)?;
        let pipeline = pipeline_of(self.config.search.hybrid.fusion(fitted).as_ref());
        let is_current = |run: &EvaluationRun| model.is_none() || run.metrics.pipeline == pipeline;
        if out.exists() && !EvaluationRun::load(&out).is_ok_and(|run| is_current(&run)) {
            fs::remove_dir_all(&out).with_context(|| format!("cannot remove {} to measure again", out.display()))?;
        }
        fs::create_dir_all(self.shop.measured()).context("cannot create the folder of evaluations")?;
        let is_new = self.steps.run(&format!("Measure {name} on {split}"), Some(&out), arguments)?;
        Ok((EvaluationRun::load(&out)?, is_new))
    }
}

/// A model and its measurement on the gate's split.
struct Candidate {
    stage: String,
    model: PathBuf,
    run: EvaluationRun,
    /// Measurement of the model before it.
    beaten: Option<Metrics>,
}

/// Shows the measurement and the gate's verdict in the card of the model.
fn write_card(model: &Path, run: &EvaluationRun, served: &str, gate: &GateVerdict) -> souk::Result<()> {
    let (passed, reasons) = (gate.passed, gate.reasons.clone());
    let gate = GateRecord { compared_with: served.into(), passed, reasons };
    add_measurements(model, vec![MeasurementRecord::of(&run.metrics)], Some(gate))
}

/// Registers a model that passed with its measurement, so that the running service swaps to it.
fn offer(config: &Config, best: &Candidate) -> anyhow::Result<()> {
    let path = best.model.canonicalize().context("cannot find the trained model")?.display().to_string();
    let mut opened = config.clone();
    opened.model.path = Some(path.clone());
    let fingerprint = opened.open_encoder()?.fingerprint()?;
    let report = |metrics: &Metrics| -> anyhow::Result<_> {
        let metrics = serde_json::to_value(metrics).context("cannot write metrics as JSON")?;
        Ok((GATE_SPLIT.to_owned(), metrics))
    };
    let reports = vec![report(&best.run.metrics)?];
    let parent_reports = best.beaten.iter().map(report).collect::<anyhow::Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let registry = Registry::new(config.store.clone(), runtime.handle().clone());
    let version = NewVersion {
        version: format!("{}-{fingerprint:.8}", best.stage),
        path,
        fingerprint,
        parent: registry.served()?.map(|served| served.version),
        metrics: json!({"gate": {"passed": true, "reasons": []}}),
    };
    Ok(registry.publish(&Offer { version, reports, parent_reports, passed: true })?)
}
