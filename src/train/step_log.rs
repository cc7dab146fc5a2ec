//! The log of a stage: `steps.jsonl`, a line for each step; `evaluations.jsonl`; `groups.jsonl`, one query's judged candidates of each
//! step. Sends the numbers to TensorBoard's event files and to MLflow, too, if the stage asks for them. A resumed stage drops the lines
//! after its checkpoint.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::TrainSettings;
use super::event_file::{EventFile, numbers};
use super::metrics::{Evaluation, StepReport};
use super::mlflow::{Mlflow, RunStatus};
use super::resume_check::{flat, without_place};
use souk_io::beir;
use souk_io::error::{Error, Result};

const STEPS: &str = "steps.jsonl";
const GROUPS: &str = "groups.jsonl";
const EVALUATIONS: &str = "evaluations.jsonl";
/// First part of the names of scalars in event files.
const SECTION: &str = "train";

pub struct StepLog {
    steps: Lines,
    groups: Option<Lines>,
    evaluations: Option<Lines>,
    events: Option<EventFile>,
    mlflow: Option<Mlflow>,
    out: PathBuf,
    done: u64,
}

struct Lines {
    path: PathBuf,
    file: File,
}

impl StepLog {
    /// Keeps the lines of the first `done` steps. Opens event files and MLflow if the settings ask for them.
    pub fn open(out: &Path, done: u64, settings: &TrainSettings, config: &Value) -> Result<Self> {
        let steps = Lines::open(out.join(STEPS), Some(done))?;
        // the model is evaluated before the first step, too
        let first = if done == 0 { 0 } else { done + 1 };
        let events = settings.tensorboard.then(|| EventFile::create(out, first)).transpose()?;
        let open_mlflow = |mlflow| Mlflow::open(mlflow, out, parameters(config));
        let mlflow = settings.mlflow.as_ref().map(open_mlflow).transpose()?;
        Ok(Self { steps, groups: None, evaluations: None, events, mlflow, out: out.into(), done })
    }

    /// Ends the MLflow run. A log that is dropped without this call marks its run as failed.
    pub fn finish(mut self, is_finished: bool) {
        let status = if is_finished { RunStatus::Finished } else { RunStatus::Killed };
        self.mlflow.iter_mut().for_each(|mlflow| mlflow.finish(status));
    }

    /// Opens the log of evaluations, which keeps those up to the one after `last` steps.
    pub fn open_evaluations(&mut self, last: Option<u64>) -> Result<()> {
        self.evaluations = Some(Lines::open(self.out.join(EVALUATIONS), last)?);
        Ok(())
    }

    pub fn write_evaluation(&mut self, evaluation: &Evaluation) -> Result<()> {
        let line = json!(evaluation);
        self.evaluations.as_mut().map_or(Ok(()), |evaluations| evaluations.write(&line))?;
        let values: Vec<(String, f64)> =
            evaluation.metrics.iter().map(|(name, value)| (format!("evaluate/{name}"), *value)).collect();
        self.send(evaluation.step, values)
    }

    /// Sends values to TensorBoard and MLflow.
    fn send(&mut self, step: u64, values: Vec<(String, f64)>) -> Result<()> {
        self.events.as_mut().map_or(Ok(()), |events| events.scalars(step, &values))?;
        self.mlflow.iter().for_each(|mlflow| mlflow.send(step, values.clone()));
        Ok(())
    }

    pub fn write(&mut self, report: &StepReport) -> Result<()> {
        let line = json!(report);
        self.steps.write(&line)?;
        let counts = [format!("{SECTION}/step"), format!("{SECTION}/steps")];
        let mut values = numbers(SECTION, &line);
        values.retain(|(name, _)| !counts.contains(name));
        self.send(report.step, values)?;
        let Some(shown) = &report.metrics.shown else { return Ok(()) };
        if self.groups.is_none() {
            self.groups = Some(Lines::open(self.out.join(GROUPS), Some(self.done))?);
        }
        let mut line = json!(shown);
        line["step"] = json!(report.step);
        self.groups.as_mut().map_or(Ok(()), |groups| groups.write(&line))
    }

    pub fn sync(&self) -> Result<()> {
        std::iter::once(&self.steps)
            .chain(&self.groups)
            .chain(&self.evaluations)
            .try_for_each(|lines| lines.file.sync_data().map_err(Error::store(&lines.path, "write it to disk")))?;
        self.events.as_ref().map_or(Ok(()), EventFile::sync)
    }
}

/// The settings that the result depends on, by their dotted names.
fn parameters(config: &Value) -> Vec<(String, String)> {
    let given = flat(&without_place(config)).into_iter().filter(|(_, value)| !value.is_null());
    given.map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned))).collect()
}

impl Lines {
    /// Keeps the lines of the first `done` steps; without it, none.
    fn open(path: PathBuf, done: Option<u64>) -> Result<Self> {
        let mut kept = Vec::new();
        if path.exists() {
            for line in beir::lines(&path)? {
                let (_, line) = line?;
                let step = serde_json::from_slice::<Value>(&line).ok().and_then(|json| json["step"].as_u64());
                if step.zip(done).is_some_and(|(step, done)| step <= done) {
                    kept.extend_from_slice(&line);
                    kept.push(b'\n');
                }
            }
        }
        let aside = path.with_extension("jsonl.part");
        fs::write(&aside, kept).map_err(Error::store(&aside, "write it"))?;
        fs::rename(&aside, &path).map_err(Error::store(&path, "put it in place"))?;
        let file = File::options().append(true).open(&path).map_err(Error::store(&path, "open it"))?;
        Ok(Self { path, file })
    }

    fn write(&mut self, line: &Value) -> Result<()> {
        // in one write, so that readers find whole lines
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(Error::store(&self.path, "write to it"))
    }
}
