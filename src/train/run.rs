//! A stage from its first step to the model's folder: repeats the step, writes a line about each, keeps checkpoints, goes
//! on from the last one after a kill, and stops before an update that would ruin the weights.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};

use super::TrainSettings;
use super::step::{Parts, Stepped, step};
use crate::beir::{self, DataFolder};
use crate::checkpoint::{Checkpoints, State};
use crate::claim::start_folder;
use crate::collective::{Collective, gather_json};
use crate::dataset::{Catalogue, Pairs};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::objective::Objective;
use crate::optimizer::Optimizer;
use crate::telemetry::TRAIN;

const CHECKPOINTS: &str = "checkpoints";
const STEPS: &str = "steps.jsonl";
const STAGE: &str = "stage.json";
/// What may differ between a stage and its continuation: where and how fast it runs, not what it computes.
const FREE: [&str; 8] = [
    "model.device",
    "model.threads",
    "collective",
    "worker",
    "train.chunk_tokens",
    "train.keep_tokens",
    "train.checkpoint_steps",
    "train.keep_checkpoints",
];

/// What is to be trained, and how.
pub struct Stage {
    /// In f32, not frozen.
    pub encoder: Encoder,
    pub settings: TrainSettings,
    pub objective: Objective,
    /// Products in bf16 (autocast); weights stay in f32.
    pub bf16: bool,
    /// The resolved configuration, kept with every checkpoint.
    pub config: Value,
}

/// After a step.
#[derive(Clone, Debug, Serialize)]
pub struct Progress {
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
    data: (Catalogue, Pairs),
    data_hash: String,
    optimizer: Optimizer,
    collective: Box<dyn Collective>,
    checkpoints: Checkpoints,
    out: PathBuf,
    /// Updates made, and draws they took.
    done: (u64, u64),
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
        let catalogue = Catalogue::open(data)?;
        let source = (stage.settings.pairs, stage.settings.split.as_str());
        let extent = latest.as_ref().and_then(|(state, _)| state.extent.as_ref());
        let pairs = Pairs::open(data, &catalogue, source, extent)?;
        let data_hash = format!("{:08x}{:08x}", catalogue.crc32(), pairs.crc32());
        let lora = stage.settings.lora.as_ref().map(|lora| (lora, stage.settings.seed));
        let named = stage.encoder.trainable(lora)?;
        let mut optimizer = Optimizer::new(&stage.settings.optimizer, named)?;
        let mut done = (0, 0);
        if let Some((state, tensors)) = latest {
            check_same(&state, &stage.config, &data_hash)?;
            optimizer.restore(tensors, state.step)?;
            done = (state.step, state.drawn);
        }
        let run = Self {
            stage,
            data: (catalogue, pairs),
            data_hash,
            optimizer,
            collective,
            checkpoints,
            out: out.into(),
            done,
        };
        run.agree()?;
        if run.is_first() {
            run.start_out(resume)?;
        }
        run.collective.barrier()?;
        Ok(run)
    }

    /// Until the last step, or until a process is asked to stop. The first process hears of every step.
    pub fn train(mut self, stop: &AtomicBool, mut report: impl FnMut(&Progress)) -> Result<Summary> {
        let (draws, steps) = self.stage.settings.length(self.data.1.len());
        let per_step = (self.stage.settings.batch * self.stage.settings.accumulate) as u64;
        let mut log = self.is_first().then(|| self.open_log()).transpose()?;
        let mut loss = None;
        let mut stopped = false;
        while self.done.0 < steps && !stopped {
            let (at, from) = self.done;
            let rate = self.stage.settings.optimizer.rate(at, steps);
            let begin = Instant::now();
            let draws = (from, draws.min(from + per_step));
            let asked = stop.load(Ordering::Relaxed);
            let parts = self.stage.parts(&self.data, self.collective.as_ref());
            let stepped = step(&parts, (&self.stage.encoder, &mut self.optimizer), draws, rate, asked)?;
            if !stepped.loss.is_finite() || !stepped.grad_norm.is_finite() {
                return Err(self.diverged(draws, &stepped));
            }
            self.done = (at + 1, draws.1);
            (loss, stopped) = (Some(stepped.loss), stepped.stop);
            let texts = (stepped.texts * self.collective.size()) as f64;
            let texts_per_second = texts / begin.elapsed().as_secs_f64();
            let progress = Progress { step: at + 1, steps, learning_rate: rate, texts_per_second, stepped };
            if let Some(log) = &mut log {
                TRAIN.step(&progress.stepped.seconds_by_phase(), progress.stepped.loss, rate);
                let path = self.out.join(STEPS);
                writeln!(log, "{}", json!(progress)).map_err(Error::store(&path, "write to it"))?;
                report(&progress);
                if stopped || self.done.0 == steps || self.done.0.is_multiple_of(self.stage.settings.checkpoint_steps) {
                    log.sync_data().map_err(Error::store(&path, "write it to disk"))?;
                    self.checkpoint(steps)?;
                }
            }
        }
        self.finish(steps, loss)
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
        let num_parameters = self.optimizer.num_parameters();
        Ok(Summary { step: self.done.0, steps, loss, num_parameters, finished })
    }

    fn is_first(&self) -> bool {
        self.collective.rank() == 0
    }

    fn checkpoint(&mut self, steps: u64) -> Result<()> {
        let (step, drawn) = self.done;
        let order = self.stage.parts(&self.data, self.collective.as_ref()).order();
        let state = State {
            format: State::FORMAT,
            step,
            steps,
            drawn,
            seed: self.stage.settings.seed,
            low_water: self.data.1.low_water(order, drawn),
            extent: self.data.1.extent().cloned(),
            config: self.stage.config.clone(),
            config_hash: State::hash(&self.stage.config),
            data_hash: self.data_hash.clone(),
            reward_source: None,
            world_size: self.collective.size(),
            tensors: String::new(),
        };
        self.checkpoints.save(state, self.optimizer.state())
    }

    /// All processes must stand at one place, in one data folder, with one configuration.
    fn agree(&self) -> Result<()> {
        let config = State::hash(&without_free(&self.stage.config));
        let own = (self.done, self.data_hash.clone(), config);
        let all = gather_json(self.collective.as_ref(), &own)?;
        let Some(rank) = all.iter().position(|other| *other != all[0]) else { return Ok(()) };
        let problem = match &all[rank] {
            (done, ..) if *done != all[0].0 => {
                format!("is at step {}, rank 0 at step {}: all must see one folder of checkpoints", done.0, all[0].0.0)
            }
            (_, data, _) if *data != all[0].1 => "sees other data than rank 0".into(),
            _ => "has another configuration than rank 0".into(),
        };
        Err(Error::config("collective", format!("rank {rank} {problem}")))
    }

    fn start_out(&self, resume: bool) -> Result<()> {
        if resume {
            fs::create_dir_all(&self.out).map_err(Error::store(&self.out, "make the folder"))?;
        } else {
            start_folder(&self.out).map_err(|e| match e {
                Error::Config { place, .. } => {
                    Error::config(place, "is not empty: give a new folder, or --resume to go on")
                }
                other => other,
            })?;
        }
        let path = self.out.join(STAGE);
        let text = format!("{:#}\n", self.stage.config);
        fs::write(&path, text).map_err(Error::store(&path, "write it"))
    }

    /// The lines of the steps that are done, and the file to go on with.
    fn open_log(&self) -> Result<File> {
        let path = self.out.join(STEPS);
        let mut kept = Vec::new();
        if path.exists() {
            for line in beir::lines(&path)? {
                let (_, line) = line?;
                let step = serde_json::from_slice::<Value>(&line).ok().and_then(|json| json["step"].as_u64());
                if step.is_some_and(|step| step <= self.done.0) {
                    kept.extend_from_slice(&line);
                    kept.push(b'\n');
                }
            }
        }
        let aside = self.out.join("steps.jsonl.part");
        fs::write(&aside, kept).map_err(Error::store(&aside, "write it"))?;
        fs::rename(&aside, &path).map_err(Error::store(&path, "put it in place"))?;
        File::options().append(true).open(&path).map_err(Error::store(&path, "open it"))
    }

    /// Writes down what was being learned.
    fn diverged(&self, draws: (u64, u64), stepped: &Stepped) -> Error {
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
            "the loss is {} and the gradient's norm {}: no weight was changed. Lower train.optimizer.learning_rate, or look \
             for what is wrong with the data",
            stepped.loss, stepped.grad_norm
        );
        Error::Diverged { step: number, problem, file }
    }
}

impl Stage {
    fn parts<'a>(&'a self, data: &'a (Catalogue, Pairs), collective: &'a dyn Collective) -> Parts<'a> {
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
}

/// Moves the finished model into the stage's folder, what makes it a model last.
fn export(encoder: &mut Encoder, out: &Path) -> Result<()> {
    let whole = out.join("model");
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
    fs::remove_dir(&whole).map_err(Error::store(&whole, "remove it"))
}

/// Refuses to go on with something else.
fn check_same(state: &State, config: &Value, data_hash: &str) -> Result<()> {
    let (before, now) = (flat(&without_free(&state.config)), flat(&without_free(config)));
    let differs = before.iter().chain(&now).find(|(name, _)| {
        let of = |all: &[(String, Value)]| all.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
        of(&before) != of(&now)
    });
    if let Some((name, _)) = differs {
        let of = |all: &[(String, Value)]| {
            all.iter().find(|(other, _)| other == name).map_or("not set".into(), |(_, value)| value.to_string())
        };
        let problem =
            format!("was {} when the stage began, and is {} now: a stage goes on as it began", of(&before), of(&now));
        return Err(Error::config(name, problem));
    }
    if state.data_hash != data_hash {
        let problem = "is not what the stage began with: its catalogue or its pairs have changed; begin a new stage";
        return Err(Error::config("--data", problem));
    }
    Ok(())
}

fn without_free(config: &Value) -> Value {
    let mut config = config.clone();
    for name in FREE {
        let mut at = &mut config;
        let mut names = name.split('.').peekable();
        while let Some(part) = names.next() {
            let Some(table) = at.as_object_mut() else { break };
            if names.peek().is_none() {
                table.remove(part);
                break;
            }
            let Some(below) = table.get_mut(part) else { break };
            at = below;
        }
    }
    config
}

/// Every value under its whole name.
fn flat(value: &Value) -> Vec<(String, Value)> {
    let Some(table) = value.as_object() else { return vec![(String::new(), value.clone())] };
    let named = |(name, below): (&String, &Value)| {
        let name = name.clone();
        flat(below).into_iter().map(move |(rest, value)| {
            let whole = if rest.is_empty() { name.clone() } else { format!("{name}.{rest}") };
            (whole, value)
        })
    };
    table.iter().flat_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_differ_is_left_out_and_the_rest_is_named() {
        let config = json!({"model": {"device": "cpu", "path": "a"}, "train": {"batch": 4, "chunk_tokens": 9}});
        assert_eq!(without_free(&config), json!({"model": {"path": "a"}, "train": {"batch": 4}}));
        let names: Vec<String> = flat(&config).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["model.device", "model.path", "train.batch", "train.chunk_tokens"]);
    }
}
