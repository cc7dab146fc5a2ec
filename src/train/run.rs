//! A stage from its first step to the model's folder: repeats the step, writes a line about each, keeps checkpoints, goes
//! on from the last one after a kill, and stops before an update that would ruin the weights.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::TrainSettings;
use super::correct::{Corrector, Turn, WAITING};
use super::judged::Bench;
use super::log::StepLog;
use super::mine::Miner;
use super::policy::Policy;
use super::proposals::{Proposals, Twin};
use super::rationales::Rationales;
use super::reference::Reference;
use super::same::{Hashes, check_same, without_place};
use super::step::{Parts, Stepped, step};
use super::words::Words;
use super::writer::Writer;
use crate::beir::DataFolder;
use crate::candidates::{CandidateSettings, Source};
use crate::checkpoint::{Checkpoints, State};
use crate::claim::{start_folder, sync_one};
use crate::collective::{Collective, gather_json};
use crate::dataset::{Catalogue, PairSource, Pairs, Span};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::objective::{Candidates, Objective};
use crate::optimizer::Optimizer;
use crate::reward::Blend;
use crate::telemetry::TRAIN;

const CHECKPOINTS: &str = "checkpoints";
const STAGE: &str = "stage.json";
/// What is to be trained, and how.
pub struct Stage {
    /// In f32, not frozen.
    pub encoder: Encoder,
    pub settings: TrainSettings,
    pub objective: Objective,
    /// Products in bf16 (autocast); weights stay in f32.
    pub bf16: bool,
    /// Where candidates and rewards come from, where the objective learns from these.
    pub rewards: Option<Rewards>,
    /// The stretch of the examples to learn from; none: all that are there when it begins.
    pub span: Option<Span>,
    /// The resolved configuration, kept with every checkpoint.
    pub config: Value,
}

/// What a stage that learns from rewards needs beside its pairs.
pub struct Rewards {
    pub blend: Blend,
    pub candidates: CandidateSettings,
    /// The model that the stage begins with, once more, where the objective measures against it.
    pub reference: Option<Encoder>,
    /// And once more, where candidates come from the catalogue, to encode that beside the stage.
    pub twin: Option<Encoder>,
}

/// What the objective learns from.
enum Teaching {
    Pairs,
    Retrieved(Box<Corrector>),
    Mined(Box<Miner>),
    Written(Rationales),
    Words(Words),
}

/// How far a stage is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Hard negatives are mined before the first step.
    Mining { queries: usize, of: usize },
    /// After a step.
    Learning(&'a Learned),
}

/// What a step did.
#[derive(Clone, Debug, Serialize)]
pub struct Learned {
    pub step: u64,
    pub steps: u64,
    pub learning_rate: f64,
    /// Of all processes.
    pub texts_per_second: f64,
    #[serde(flatten)]
    pub stepped: Stepped,
}

/// How a stage ended.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub step: u64,
    pub steps: u64,
    /// Of the last step; none where every step had been done before.
    pub loss: Option<f64>,
    pub num_parameters: usize,
    /// The model's folder is complete; otherwise the stage was asked to stop and can be resumed.
    pub finished: bool,
}

pub struct Run {
    stage: Stage,
    teaching: Teaching,
    data: (Arc<Catalogue>, Pairs),
    hashes: Hashes,
    optimizer: Optimizer,
    collective: Box<dyn Collective>,
    checkpoints: Checkpoints,
    out: PathBuf,
    /// Updates made, and draws they took.
    done: (u64, u64),
    /// Batches that were passed over since it was opened.
    skipped: u64,
    /// Nobody else works in `out` while the first process holds it.
    held: Option<File>,
}

impl Run {
    /// Opens the data and starts `out`, a new folder; with `resume` it goes on from its last checkpoint.
    pub fn open(
        mut stage: Stage,
        data: &DataFolder,
        out: &Path,
        resume: bool,
        collective: Box<dyn Collective>,
    ) -> Result<Self> {
        stage.settings.check()?;
        stage.encoder.check_export()?;
        stage.objective.check(stage.encoder.dimensions())?;
        let checkpoints = Checkpoints::new(&out.join(CHECKPOINTS), stage.settings.keep_checkpoints);
        let latest = if resume { checkpoints.latest()? } else { None };
        let place = latest.as_ref().map(|(state, _)| (state.step, state.drawn, state.tensors.clone()));
        agree(
            collective.as_ref(),
            &place,
            "goes on from another step than rank 0: all must see one folder of checkpoints",
        )?;
        let config = without_place(&stage.config);
        agree(collective.as_ref(), &config, "has another configuration than rank 0")?;
        let catalogue = Catalogue::open(data)?;
        let pairs = stage.open_pairs(data, &catalogue, latest.as_ref().map(|(state, _)| state), collective.as_ref())?;
        let data_hash = format!("{:08x}{:08x}", catalogue.crc32(), pairs.crc32());
        let hashes = Hashes { model: stage.encoder.fingerprint()?, data: data_hash };
        agree(collective.as_ref(), &hashes.data, "sees other data than rank 0")?;
        agree(collective.as_ref(), &hashes.model, "begins with another model than rank 0")?;
        let lora = stage.settings.lora.as_ref().map(|lora| (lora, stage.settings.seed));
        let named = stage.encoder.trainable(lora, stage.objective.needs().writes())?;
        let mut optimizer = Optimizer::new(&stage.settings.optimizer, named)?;
        let data_files = (Arc::new(catalogue), pairs);
        let mut teaching = stage.teaching(data)?;
        let mut done = (0, 0);
        if let Some((state, tensors)) = latest {
            let began = Hashes { model: state.model_hash, data: state.data_hash };
            check_same((&state.config, &began), (&stage.config, &hashes))?;
            let (waiting, tensors) = tensors.into_iter().partition(|(name, _)| name.starts_with(WAITING));
            optimizer.restore(tensors, state.updates)?;
            done = (state.step, state.drawn);
            match &mut teaching {
                Teaching::Retrieved(corrector) => {
                    corrector.restore(&stage.parts(&data_files, collective.as_ref()), waiting, done.0)?;
                }
                Teaching::Mined(miner) => miner.load(out)?,
                Teaching::Pairs | Teaching::Written(_) | Teaching::Words(_) => {}
            }
        }
        stage.settings.check_pairs(data_files.1.len(), stage.objective.needs())?;
        let held = (collective.rank() == 0).then(|| start_out(out, resume, &stage.config)).transpose()?;
        collective.barrier()?;
        let (data, out) = (data_files, out.into());
        Ok(Self { stage, teaching, data, hashes, optimizer, collective, checkpoints, out, done, skipped: 0, held })
    }

    /// What it learns from.
    pub fn pairs(&self) -> &Pairs {
        &self.data.1
    }

    /// Until the last step, or until a process is asked to stop. The first process hears of every step.
    pub fn train(mut self, stop: &AtomicBool, mut report: impl FnMut(Progress)) -> Result<Summary> {
        let (_, steps) = self.stage.settings.length(self.data.1.len());
        if !self.prepare(stop, &mut report)? {
            return self.finish(steps, None);
        }
        let mut log = self.is_first().then(|| StepLog::open(&self.out, self.done.0)).transpose()?;
        let mut loss = None;
        let mut stopped = false;
        while self.done.0 < steps && !stopped {
            let at = self.done.0;
            let begin = Instant::now();
            let turn = Turn { at, steps, rate: self.stage.settings.optimizer.rate(at, steps) };
            let draws = self.stage.parts(&self.data, self.collective.as_ref()).draws(at);
            let Some(stepped) = self.step(turn, stop)? else {
                self.checkpoint(steps)?;
                break;
            };
            stopped = stepped.stop;
            let skipped = self.skip(draws, &stepped)?;
            self.done = (at + 1, draws.1);
            loss = if skipped { loss } else { Some(stepped.loss) };
            let texts = (stepped.texts * self.collective.size()) as f64;
            let texts_per_second = texts / begin.elapsed().as_secs_f64();
            let learned = Learned { step: at + 1, steps, learning_rate: turn.rate, texts_per_second, stepped };
            if let Some(log) = log.as_mut().filter(|_| !skipped) {
                TRAIN.step(&learned.stepped.seconds.by_phase(), learned.stepped.loss, turn.rate);
                learned.stepped.policy.iter().for_each(Policy::note);
                log.write(&learned)?;
                report(Progress::Learning(&learned));
            }
            if stopped || self.done.0 == steps || self.done.0.is_multiple_of(self.stage.settings.checkpoint_steps) {
                log.iter().try_for_each(StepLog::sync)?;
                self.checkpoint(steps)?;
            }
        }
        self.finish(steps, loss)
    }

    /// Whether a step came to nothing and is passed over; an error once there were too many of them.
    fn skip(&mut self, draws: (u64, u64), stepped: &Stepped) -> Result<bool> {
        if stepped.loss.is_finite() && stepped.grad_norm.is_finite() {
            return Ok(false);
        }
        let problem =
            format!("the loss is {}, the gradient's norm {}: no weight was changed", stepped.loss, stepped.grad_norm);
        let error = self.diverged(draws, &problem);
        if self.skipped == self.stage.settings.skip_diverged {
            return Err(error);
        }
        self.skipped += 1;
        TRAIN.skipped.inc();
        tracing::error!(%error, "a batch was passed over");
        Ok(true)
    }

    /// What comes before the first step; false if the stage was asked to stop before.
    fn prepare(&mut self, stop: &AtomicBool, report: &mut dyn FnMut(Progress)) -> Result<bool> {
        let first = self.is_first();
        let mut told = |queries, of| {
            if first {
                report(Progress::Mining { queries, of });
            }
        };
        let parts = self.stage.parts(&self.data, self.collective.as_ref());
        match &mut self.teaching {
            Teaching::Mined(miner) if self.done.0 == 0 => {
                miner.mine((&parts, &self.stage.encoder), &self.out, stop, &mut told)
            }
            _ => Ok(true),
        }
    }

    /// One step, whatever is learned from; `None` if the stage was asked to stop before there was something to learn.
    fn step(&mut self, turn: Turn, stop: &AtomicBool) -> Result<Option<Stepped>> {
        let parts = self.stage.parts(&self.data, self.collective.as_ref());
        let learner = (&self.stage.encoder, &mut self.optimizer);
        match &mut self.teaching {
            Teaching::Pairs => {
                let draws = parts.draws(turn.at);
                step(&parts, learner, draws, turn.rate, stop.load(Ordering::Relaxed)).map(Some)
            }
            Teaching::Retrieved(corrector) => corrector.step(&parts, learner, turn, stop),
            Teaching::Mined(miner) => miner.step(&parts, learner, turn, stop).map(Some),
            Teaching::Written(rationales) => {
                rationales.step(&parts, learner, turn, stop.load(Ordering::Relaxed)).map(Some)
            }
            Teaching::Words(words) => {
                words.step(&parts, learner, turn.at, (turn.rate, stop.load(Ordering::Relaxed))).map(Some)
            }
        }
    }

    fn finish(mut self, steps: u64, loss: Option<f64>) -> Result<Summary> {
        self.checkpoints.finish()?;
        let finished = self.done.0 == steps;
        if finished && self.is_first() {
            if let Some(lora) = &self.stage.settings.lora {
                self.stage.encoder.save_adapter(lora, &self.out.join("adapter"))?;
            }
            export(&mut self.stage.encoder, &self.out)?;
        }
        self.collective.barrier()?;
        drop(self.held);
        let num_parameters = self.optimizer.num_parameters();
        Ok(Summary { step: self.done.0, steps, loss, num_parameters, finished })
    }

    fn is_first(&self) -> bool {
        self.collective.rank() == 0
    }

    fn checkpoint(&mut self, steps: u64) -> Result<()> {
        let (step, drawn) = self.done;
        if !self.optimizer.is_finite() {
            // the last good checkpoint stays
            let last = drawn.saturating_sub((self.stage.settings.batch * self.stage.settings.accumulate) as u64);
            return Err(self.diverged((last, drawn), "a weight is not finite after the last update"));
        }
        let parts = self.stage.parts(&self.data, self.collective.as_ref());
        let (mut tensors, mut reward_source) = (BTreeMap::new(), None);
        match &self.teaching {
            Teaching::Pairs | Teaching::Written(_) | Teaching::Words(_) => {}
            Teaching::Retrieved(corrector) => {
                tensors = corrector.state(&parts)?;
                reward_source = Some(corrector.judge_id().to_owned());
            }
            Teaching::Mined(miner) => reward_source = Some(miner.judge_id().to_owned()),
        }
        if !self.is_first() {
            return Ok(());
        }
        let order = parts.order();
        let state = State {
            format: State::FORMAT,
            step,
            steps,
            updates: self.optimizer.steps(),
            drawn,
            seed: self.stage.settings.seed,
            low_water: self.data.1.low_water(order, drawn),
            span: self.data.1.span().cloned(),
            config: self.stage.config.clone(),
            config_hash: State::hash(&self.stage.config),
            model_hash: self.hashes.model.clone(),
            data_hash: self.hashes.data.clone(),
            reward_source,
            world_size: self.collective.size(),
            tensors: String::new(),
        };
        tensors.extend(self.optimizer.state());
        self.checkpoints.save(state, tensors)
    }

    /// Writes down what was being learned.
    fn diverged(&self, draws: (u64, u64), problem: &str) -> Error {
        let number = self.done.0 + 1;
        let file = self.out.join(format!("diverged-{number}.json"));
        let parts = self.stage.parts(&self.data, self.collective.as_ref());
        let batch = parts.draw(draws.0, draws.1);
        let id = |row: u32| self.data.0.item(row).map_or_else(|_| row.to_string(), |item| item.id);
        let pairs: Vec<Value> =
            batch.pairs.iter().map(|pair| json!({"query": pair.query, "item": id(pair.item)})).collect();
        let text = json!({"step": number, "draws": [draws.0, draws.1], "pairs": pairs});
        if self.is_first()
            && let Err(error) = fs::write(&file, format!("{text:#}\n"))
        {
            tracing::error!("{}: cannot be written: {error}", file.display());
        }
        let problem = format!(
            "{problem}. Lower train.optimizer.learning_rate and go on with --resume, or look for what is wrong with the data"
        );
        Error::Diverged { step: number, problem, file }
    }
}

impl Stage {
    fn teaching(&mut self, data: &DataFolder) -> Result<Teaching> {
        let needs = self.objective.needs();
        if self.settings.writer.is_some() && !matches!(self.objective, Objective::Grace(_)) {
            let problem = "has no effect: of all objectives `grace` alone learns from what is written";
            return Err(Error::config("train.writer", problem));
        }
        match &self.objective {
            Objective::Grace(rule) => {
                let writer = Writer::open(self.settings.writer.as_ref())?;
                return Ok(Teaching::Written(Rationales::new(rule.clone(), writer)));
            }
            Objective::NextToken(rule) => return Ok(Teaching::Words(Words::new(rule.clone()))),
            _ if needs.candidates == Candidates::None => return Ok(Teaching::Pairs),
            _ => {}
        }
        let Some(Rewards { blend, candidates, reference, twin }) = self.rewards.take() else {
            return Err(Error::input("this objective learns from rewards, and nobody gives them"));
        };
        candidates.check()?;
        let reference = reference.filter(|_| needs.reference).map(Reference::new).transpose()?;
        let bench = Bench::new(data, blend, reference)?;
        Ok(match (&self.objective, needs.candidates) {
            (Objective::RGrpo(rule), _) => {
                let lora = self.settings.lora.as_ref().map(|lora| (lora, self.settings.seed));
                let twin = twin.filter(|_| candidates.source == Source::Catalogue);
                let twin = twin.map(|encoder| Twin::new(encoder, lora)).transpose()?;
                let proposals = twin.map(|twin| Proposals::new(candidates, twin));
                Teaching::Retrieved(Box::new(Corrector::new(rule.clone(), bench, proposals)))
            }
            (_, Candidates::Mined { judged, shown }) => Teaching::Mined(Box::new(Miner::new(bench, (judged, shown)))),
            _ => Teaching::Pairs,
        })
    }

    fn parts<'a>(&'a self, data: &'a (Arc<Catalogue>, Pairs), collective: &'a dyn Collective) -> Parts<'a> {
        Parts {
            settings: &self.settings,
            objective: &self.objective,
            catalogue: &data.0,
            pairs: &data.1,
            collective,
            bf16: self.bf16,
            device: self.encoder.device(),
        }
    }

    /// The pairs that the stage began with; at its beginning those that the first process finds, whatever comes after.
    fn open_pairs(
        &self,
        data: &DataFolder,
        catalogue: &Catalogue,
        began: Option<&State>,
        collective: &dyn Collective,
    ) -> Result<Pairs> {
        let TrainSettings { pairs: source, split, .. } = &self.settings;
        let again = |span: Option<&Span>| {
            let source = match (span, source) {
                (Some(_), _) => PairSource::Examples,
                (None, PairSource::Items) => PairSource::Items,
                (None, _) => PairSource::Qrels,
            };
            Pairs::open(data, catalogue, (source, split), span)
        };
        if let Some(state) = began {
            return again(state.span.as_ref());
        }
        let first = collective.rank() == 0;
        let open = || Pairs::open(data, catalogue, (*source, split), self.span.as_ref());
        let own = first.then(open).transpose()?;
        let spans = gather_json(collective, &own.as_ref().and_then(Pairs::span).cloned())?;
        own.map_or_else(|| again(spans[0].as_ref()), Ok)
    }
}

/// All processes must have the same as the first.
fn agree<T: Serialize + DeserializeOwned + PartialEq>(
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

/// Begins a folder, or takes up one that a stage began; holds it against a second process.
fn start_out(out: &Path, resume: bool, config: &Value) -> Result<File> {
    let path = out.join(STAGE);
    if !resume || !path.exists() {
        let hint = if resume { "no stage began in it" } else { "or --resume to go on" };
        start_folder(out).map_err(|e| match e {
            Error::Config { place, .. } => Error::config(place, format!("is not empty: give a new folder, {hint}")),
            other => other,
        })?;
    }
    let held = File::options().create(true).append(true).open(&path).map_err(Error::store(&path, "open it"))?;
    match held.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::config(out.display(), "another process trains in it: wait for it, or stop it"));
        }
        Err(TryLockError::Error(error)) => return Err(Error::store(&path, "lock it")(error)),
    }
    let write = held.set_len(0).and_then(|()| writeln!(&held, "{config:#}"));
    write.map_err(Error::store(&path, "write it"))?;
    Ok(held)
}

/// Moves the finished model into the stage's folder, what makes it a model last.
fn export(encoder: &mut Encoder, out: &Path) -> Result<()> {
    let whole = out.join(".export");
    for left in [&whole, &whole.with_extension("part")] {
        if left.exists() {
            fs::remove_dir_all(left).map_err(Error::store(left, "remove what a killed process left"))?;
        }
    }
    encoder.export(&whole)?;
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
    sync_one(out)
}
