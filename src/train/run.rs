//! A stage from its first step to the model folder: repeats the algorithm's step, logs each one, keeps checkpoints, resumes from the
//! last one after a kill, and stops before an update that would ruin the weights.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Stage;
use super::algorithms::{self, Algorithm, Preparation};
use super::context::{Outcome, StageContext, StepContext, StepSchedule};
use super::evaluator::{Evaluator, split_best};
use super::lookahead::WAITING;
use super::metrics::{Progress, StageSummary, StepMetrics, StepReport};
use super::policy_metrics::PolicyMetrics;
use super::resume_check::{ContentHashes, Resumable, check_resumes, without_place};
use super::stage_record::{StageInputs, stage_record};
use super::step_log::StepLog;
use crate::checkpoint::{CheckpointState, Checkpoints};
use crate::model_card::{ModelRecord, data_name, folder_name};
use souk_cross_encoder::copy_reranker;
use souk_ingest::dataset::Pairs;
use souk_io::atomic_dir::{create_empty_dir, fsync};
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::error::{Error, Result};
use souk_io::telemetry::TRAIN;
use souk_lexical::ModelFusion;
use souk_nn::collective::{Collective, gather_json};
use souk_nn::encoder::Encoder;
use souk_nn::optimizer::Optimizer;

const CHECKPOINTS: &str = "checkpoints";
const STAGE: &str = "stage.json";

/// A stage that was opened, to be trained.
pub struct Run {
    stage: Stage,
    algorithm: Box<dyn Algorithm>,
    data: StageData,
    hashes: ContentHashes,
    optimizer: Optimizer,
    /// Only if the stage evaluates.
    evaluator: Option<Evaluator>,
    collective: Box<dyn Collective>,
    checkpoints: Checkpoints,
    out: PathBuf,
    done: Done,
    /// Batches that were skipped since the run was opened.
    skipped: u64,
    /// The first process's lock on `out`.
    lock: Option<File>,
}

struct StageData {
    /// Name of the data folder.
    name: String,
    catalogue: Arc<Catalogue>,
    pairs: Pairs,
}

/// A stage's folder, and whether to resume the stage in it.
struct StageFolder<'a> {
    out: &'a Path,
    resume: bool,
}

/// Steps that were made, and the draws they took.
#[derive(Clone, Copy, Default)]
struct Done {
    steps: u64,
    draws: u64,
}

impl Run {
    /// Opens the data and creates `out`, a new folder; with `resume`, continues from its last checkpoint.
    pub fn open(
        stage: Stage,
        data: &DataFolder,
        out: &Path,
        resume: bool,
        collective: Box<dyn Collective>,
    ) -> Result<Self> {
        let folder = StageFolder { out, resume };
        Self::start(stage, data, &folder, collective, |stage| {
            let (rewards, frozen) = (stage.rewards.take(), std::mem::take(&mut stage.frozen));
            algorithms::build(&stage.objective, &stage.settings, rewards, frozen, data)
        })
    }

    /// The same with an algorithm of your own. `stage.objective` still says what its steps need (`Objective::needs`).
    pub fn open_with(
        algorithm: Box<dyn Algorithm>,
        stage: Stage,
        data: &DataFolder,
        out: &Path,
        collective: Box<dyn Collective>,
    ) -> Result<Self> {
        Self::start(stage, data, &StageFolder { out, resume: false }, collective, |_| Ok(algorithm))
    }

    fn start(
        mut stage: Stage,
        data: &DataFolder,
        folder: &StageFolder,
        collective: Box<dyn Collective>,
        build: impl FnOnce(&mut Stage) -> Result<Box<dyn Algorithm>>,
    ) -> Result<Self> {
        let StageFolder { out, resume } = *folder;
        stage.settings.check()?;
        stage.encoder.check_export()?;
        stage.objective.check(stage.encoder.dimensions())?;
        let checkpoints = Checkpoints::new(&out.join(CHECKPOINTS), stage.settings.keep_checkpoints);
        let latest = if resume { checkpoints.latest()? } else { None };
        let place = latest.as_ref().map(|(state, _)| (state.step, state.drawn, state.tensors.clone()));
        let problem = "resumes from another step than rank 0: all ranks must see one folder of checkpoints";
        check_agreement(collective.as_ref(), &place, problem)?;
        let config = without_place(&stage.config);
        check_agreement(collective.as_ref(), &config, "has another configuration than rank 0")?;
        let catalogue = Catalogue::open(data)?.with_item_text(stage.encoder.item_text());
        let pairs = stage.open_pairs(data, &catalogue, latest.as_ref().map(|(state, _)| state), collective.as_ref())?;
        let data_hash = format!("{:08x}{:08x}", catalogue.crc32(), pairs.crc32());
        let hashes = ContentHashes { model: stage.encoder.fingerprint()?, data: data_hash };
        check_agreement(collective.as_ref(), &hashes.data, "sees other data than rank 0")?;
        check_agreement(collective.as_ref(), &hashes.model, "starts with another model than rank 0")?;
        let lora = stage.settings.lora.as_ref().map(|lora| (lora, stage.settings.seed));
        let named = stage.encoder.trainable(lora, stage.objective.needs().writes())?;
        let mut optimizer = Optimizer::new(&stage.settings.optimizer, named)?;
        let mut algorithm = build(&mut stage)?;
        let mut evaluator = Evaluator::open(&stage.settings, data, &catalogue, &pairs)?;
        let data = StageData { name: data_name(data), catalogue: Arc::new(catalogue), pairs };
        let mut done = Done::default();
        if let Some((mut state, tensors)) = latest {
            let began = ContentHashes { model: state.model_hash, data: state.data_hash };
            let before = Resumable { config: &state.config, hashes: &began };
            check_resumes(&before, &Resumable { config: &stage.config, hashes: &hashes })?;
            let [best, tensors] = split_best(tensors);
            if let Some(evaluator) = &mut evaluator {
                evaluator.restore(state.evaluation.take(), best);
            }
            let (waiting, tensors) = tensors.into_iter().partition(|(name, _)| name.starts_with(WAITING));
            optimizer.restore(tensors, state.updates)?;
            done = Done { steps: state.step, draws: state.drawn };
            algorithm.restore(&data.context(&stage, collective.as_ref()), waiting, done.steps, out)?;
        }
        stage.settings.check_pairs(data.pairs.len(), stage.objective.needs())?;
        let lock = (collective.rank() == 0).then(|| lock_folder(out, resume, &stage.config)).transpose()?;
        collective.barrier()?;
        let out = out.into();
        Ok(Self {
            stage,
            algorithm,
            data,
            hashes,
            optimizer,
            evaluator,
            collective,
            checkpoints,
            out,
            done,
            skipped: 0,
            lock,
        })
    }

    /// The pairs that are trained on.
    pub fn pairs(&self) -> &Pairs {
        &self.data.pairs
    }

    /// Trains to the last step, or until a process is asked to stop. The first process reports every step.
    pub fn train(mut self, stop: &AtomicBool, mut report: impl FnMut(Progress)) -> Result<StageSummary> {
        let (_, num_steps) = self.stage.settings.length(self.data.pairs.len());
        if !self.prepare(stop, &mut report)? {
            return self.finish(num_steps, None);
        }
        let mut log = self.is_first().then(|| self.open_log()).transpose()?;
        let (mut loss, mut stopped) = (None, false);
        self.evaluate(num_steps, log.as_mut(), &mut report)?;
        while self.done.steps < num_steps && !stopped && !self.has_lost_patience() {
            let begin = Instant::now();
            let step = self.done.steps;
            let learning_rate = self.stage.settings.optimizer.rate(step, num_steps);
            let Some(metrics) = self.step(StepSchedule { step, num_steps, learning_rate }, stop)? else {
                self.checkpoint(num_steps)?;
                break;
            };
            stopped = metrics.stop;
            let draws = self.context().draws(step);
            let skipped = self.skip_diverged(&draws, &metrics)?;
            self.done = Done { steps: step + 1, draws: draws.end };
            loss = if skipped { loss } else { Some(metrics.loss) };
            if let Some(log) = log.as_mut().filter(|_| !skipped) {
                let texts = (metrics.texts * self.collective.size()) as f64;
                let texts_per_second = texts / begin.elapsed().as_secs_f64();
                let step = StepReport { step: step + 1, steps: num_steps, learning_rate, texts_per_second, metrics };
                export_metrics(&step);
                log.write(&step)?;
                report(Progress::Step(&step));
            }
            if !stopped || self.done.steps == num_steps {
                self.evaluate(num_steps, log.as_mut(), &mut report)?;
            }
            let is_last = stopped || self.done.steps == num_steps || self.has_lost_patience();
            if is_last || self.done.steps.is_multiple_of(self.stage.settings.checkpoint_steps) {
                log.iter().try_for_each(StepLog::sync)?;
                self.checkpoint(num_steps)?;
            }
        }
        if let Some(log) = log {
            log.finish(self.is_finished(num_steps));
        }
        self.finish(num_steps, loss)
    }

    /// The logs of the steps and the evaluations that are to be kept.
    fn open_log(&self) -> Result<StepLog> {
        let Stage { settings, config, .. } = &self.stage;
        let mut log = StepLog::open(&self.out, self.done.steps, settings, config)?;
        if let Some(evaluator) = &self.evaluator {
            log.open_evaluations(evaluator.state.as_ref().map(|state| state.last))?;
        }
        Ok(log)
    }

    /// Evaluates the model if that is due after the steps so far. A stage that was stopped before an evaluation makes it when resumed.
    fn evaluate(&mut self, num_steps: u64, log: Option<&mut StepLog>, report: &mut dyn FnMut(Progress)) -> Result<()> {
        let step = self.done.steps;
        let Some(mut evaluator) = self.evaluator.take_if(|evaluator| evaluator.is_due(step, num_steps)) else {
            return Ok(());
        };
        self.check_finite()?;
        let evaluation = evaluator.evaluate(&self.context(), &self.stage.encoder, &self.optimizer, step)?;
        self.evaluator = Some(evaluator);
        let Some(log) = log else { return Ok(()) };
        log.write_evaluation(&evaluation)?;
        report(Progress::Evaluation(&evaluation));
        Ok(())
    }

    fn is_finished(&self, num_steps: u64) -> bool {
        self.done.steps == num_steps || self.has_lost_patience()
    }

    fn has_lost_patience(&self) -> bool {
        self.evaluator.as_ref().is_some_and(Evaluator::has_lost_patience)
    }

    /// Whether a step diverged and is skipped; an error once too many did.
    fn skip_diverged(&mut self, draws: &Range<u64>, metrics: &StepMetrics) -> Result<bool> {
        if metrics.is_finite() {
            return Ok(false);
        }
        let problem =
            format!("the loss is {}, the gradient norm {}: no weight was changed", metrics.loss, metrics.grad_norm);
        let error = self.diverged(draws, &problem);
        if self.skipped == self.stage.settings.skip_diverged {
            return Err(error);
        }
        self.skipped += 1;
        TRAIN.skipped.inc();
        tracing::error!(%error, "skipped a batch");
        Ok(true)
    }

    /// Work before the first step; false if the stage was asked to stop during it.
    fn prepare(&mut self, stop: &AtomicBool, report: &mut dyn FnMut(Progress)) -> Result<bool> {
        if self.done.steps > 0 {
            return Ok(true);
        }
        let first = self.is_first();
        let mut report = |queries, of| {
            if first {
                report(Progress::Mining { queries, of });
            }
        };
        let stage = self.data.context(&self.stage, self.collective.as_ref());
        let preparation = Preparation { stage, encoder: &self.stage.encoder, out: &self.out, stop };
        self.algorithm.prepare(&preparation, &mut report)
    }

    /// One step; none if the stage was asked to stop before the step had anything to learn from.
    fn step(&mut self, schedule: StepSchedule, stop: &AtomicBool) -> Result<Option<StepMetrics>> {
        let stage = self.data.context(&self.stage, self.collective.as_ref());
        let mut cx = StepContext::new(stage, &self.stage.encoder, &mut self.optimizer, schedule, stop);
        match self.algorithm.step(&mut cx)? {
            Outcome::Done => Ok(Some(cx.metrics)),
            Outcome::Stopped => Ok(None),
        }
    }

    fn finish(mut self, num_steps: u64, loss: Option<f64>) -> Result<StageSummary> {
        self.checkpoints.finish()?;
        let finished = self.is_finished(num_steps);
        let best_step = self.evaluator.as_ref().and_then(|evaluator| Some(evaluator.state.as_ref()?.best_step));
        if finished && self.is_first() {
            self.evaluator.as_ref().map_or(Ok(()), |evaluator| evaluator.load_best(&mut self.optimizer))?;
            if let Some(lora) = &self.stage.settings.lora {
                self.stage.encoder.save_adapter(lora, &self.out.join("adapter"))?;
            }
            let record = self.record(loss);
            export(&mut self.stage.encoder, &self.out, record)?;
        }
        self.collective.barrier()?;
        drop(self.lock);
        let num_parameters = self.optimizer.num_parameters();
        let step = self.done.steps;
        let best_step = best_step.unwrap_or(step);
        Ok(StageSummary { step, steps: num_steps, loss, best_step, num_parameters, finished })
    }

    /// The record of the trained model for its card.
    fn record(&self, loss: Option<f64>) -> ModelRecord {
        let StageData { name, pairs, catalogue } = &self.data;
        let (config, evaluator) = (&self.stage.config, self.evaluator.as_ref());
        let inputs = StageInputs { data: name, pairs, num_items: catalogue.len(), config, evaluator };
        stage_record(&self.stage.encoder, &inputs, self.done.steps, loss)
    }

    fn is_first(&self) -> bool {
        self.collective.rank() == 0
    }

    fn context(&self) -> StageContext<'_> {
        self.data.context(&self.stage, self.collective.as_ref())
    }

    fn checkpoint(&mut self, num_steps: u64) -> Result<()> {
        let Done { steps, draws } = self.done;
        // keeps the last good checkpoint
        self.check_finite()?;
        let context = self.context();
        let mut tensors: BTreeMap<_, _> = self.algorithm.state(&context)?;
        let low_water = self.data.pairs.low_water(context.order(), draws);
        if !self.is_first() {
            return Ok(());
        }
        let state = CheckpointState {
            format: CheckpointState::FORMAT,
            step: steps,
            steps: num_steps,
            updates: self.optimizer.num_steps(),
            drawn: draws,
            seed: self.stage.settings.seed,
            low_water,
            span: self.data.pairs.span().cloned(),
            config: self.stage.config.clone(),
            config_hash: CheckpointState::hash(&self.stage.config),
            model_hash: self.hashes.model.clone(),
            data_hash: self.hashes.data.clone(),
            reward_source: self.algorithm.judge_id().map(str::to_owned),
            world_size: self.collective.size(),
            tensors: String::new(),
            evaluation: self.evaluator.as_ref().and_then(|evaluator| evaluator.state.clone()),
        };
        tensors.extend(self.optimizer.state());
        tensors.extend(self.evaluator.iter().flat_map(Evaluator::tensors));
        self.checkpoints.save(state, tensors)
    }

    fn check_finite(&self) -> Result<()> {
        if self.optimizer.is_finite() {
            return Ok(());
        }
        let draws = self.done.draws;
        let last = draws.saturating_sub((self.stage.settings.batch * self.stage.settings.accumulate) as u64);
        Err(self.diverged(&(last..draws), "a weight is not finite after the last update"))
    }

    /// The error of a step that diverged; saves its batch to a file.
    fn diverged(&self, draws: &Range<u64>, problem: &str) -> Error {
        let number = self.done.steps + 1;
        let file = self.out.join(format!("diverged-{number}.json"));
        let batch = self.context().draw_batch(draws.clone());
        let id = |row: u32| self.data.catalogue.item(row).map_or_else(|_| row.to_string(), |item| item.id);
        let pairs: Vec<Value> =
            batch.pairs.iter().map(|pair| json!({"query": pair.query, "item": id(pair.item)})).collect();
        let text = json!({"step": number, "draws": [draws.start, draws.end], "pairs": pairs});
        if self.is_first()
            && let Err(error) = fs::write(&file, format!("{text:#}\n"))
        {
            tracing::error!("{}: cannot be written: {error}", file.display());
        }
        let problem = format!(
            "{problem}. Lower train.optimizer.learning_rate and continue with --resume, or look for a fault in the data"
        );
        Error::Diverged { step: number, problem, file }
    }
}

impl StageData {
    fn context<'a>(&'a self, stage: &'a Stage, collective: &'a dyn Collective) -> StageContext<'a> {
        StageContext {
            settings: &stage.settings,
            needs: stage.objective.needs(),
            catalogue: &self.catalogue,
            pairs: &self.pairs,
            collective,
            bf16: stage.bf16,
            device: stage.encoder.device(),
        }
    }
}

/// Exports a step as Prometheus metrics.
fn export_metrics(report: &StepReport) {
    TRAIN.record_step(&report.metrics.seconds.by_phase(), report.metrics.loss, report.learning_rate);
    report.metrics.policy.iter().for_each(PolicyMetrics::export);
}

/// An error unless all processes have the same value as the first.
fn check_agreement<T: Serialize + DeserializeOwned + PartialEq>(
    collective: &dyn Collective,
    own: &T,
    problem: &str,
) -> Result<()> {
    let all = gather_json(collective, own)?;
    match all.iter().position(|other| *other != all[0]) {
        Some(rank) => Err(Error::config("collective", format!("rank {rank} {problem}"))),
        None => Ok(()),
    }
}

/// Creates the stage's folder, or opens that of a resumed stage, and locks it against other processes.
fn lock_folder(out: &Path, resume: bool, config: &Value) -> Result<File> {
    let path = out.join(STAGE);
    if !resume || !path.exists() {
        let hint = if resume { "there is no stage in it to resume" } else { "or --resume to continue the stage in it" };
        create_empty_dir(out).map_err(|e| match e {
            Error::Config { place, .. } => Error::config(place, format!("is not empty: give a new folder, {hint}")),
            other => other,
        })?;
    }
    let lock = File::options().create(true).append(true).open(&path).map_err(Error::store(&path, "open it"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::config(out.display(), "another process is training in it: wait for it, or stop it"));
        }
        Err(TryLockError::Error(error)) => return Err(Error::store(&path, "lock it")(error)),
    }
    let write = lock.set_len(0).and_then(|()| writeln!(&lock, "{config:#}"));
    write.map_err(Error::store(&path, "write it"))?;
    Ok(lock)
}

/// Moves the finished model into the stage's folder; `config.json`, which makes it a model folder, comes last.
fn export(encoder: &mut Encoder, out: &Path, record: ModelRecord) -> Result<()> {
    let whole = out.join(".export");
    for left in [&whole, &whole.with_extension("part")] {
        if left.exists() {
            fs::remove_dir_all(left).map_err(Error::store(left, "remove a killed process's files"))?;
        }
    }
    encoder.export_with(&whole, |encoder, folder| record.write(folder, &folder_name(out), encoder))?;
    // hybrid search goes on with the weights and the reranker of the model that training began with
    ModelFusion::copy(encoder.dir(), &whole)?;
    copy_reranker(encoder.dir(), &whole)?;
    let entries = fs::read_dir(&whole).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut entries: Vec<PathBuf> = entries.map_err(Error::store(&whole, "list it"))?;
    entries.sort_by_key(|path| path.file_name().is_some_and(|name| name == "config.json"));
    for from in entries {
        let to = out.join(from.file_name().unwrap_or_default());
        if to.is_dir() {
            fs::remove_dir_all(&to).map_err(Error::store(&to, "replace it"))?;
        }
        fs::rename(&from, &to).map_err(Error::store(&to, "put it in place"))?;
    }
    fs::remove_dir(&whole).map_err(Error::store(&whole, "remove it"))?;
    fsync(out)
}
