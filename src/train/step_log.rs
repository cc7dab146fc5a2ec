//! The log of a stage: `steps.jsonl`, a line for each step; `evaluations.jsonl`; `groups.jsonl`, one query's judged candidates of each
//! step. Sends the numbers to TensorBoard's event files and to experiment trackers, too, if the stage asks for them. A resumed stage drops the lines
//! after its checkpoint.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::TrainSettings;
use super::event_file::{EventFile, numbers};
use super::metrics::{Evaluation, StepReport};
use super::resume_check::{flat, without_place};
use super::tracking::{RunStatus, TrackedRun};
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
    runs: Vec<TrackedRun>,
    out: PathBuf,
    done: u64,
}

struct Lines {
    path: PathBuf,
    file: File,
}

impl StepLog {
    /// Keeps the lines of the first `done` steps. Opens event files and runs at trackers if the settings ask for them.
    pub fn open(out: &Path, done: u64, settings: &TrainSettings, config: &Value) -> Result<Self> {
        let steps = Lines::open(out.join(STEPS), Some(done))?;
        // the model is evaluated before the first step, too
        let first = if done == 0 { 0 } else { done + 1 };
        let events = settings.tensorboard.then(|| EventFile::create(out, first)).transpose()?;
        let parameters = parameters(config);
        let mlflow = settings.mlflow.as_ref().map(|mlflow| TrackedRun::mlflow(mlflow, out, &parameters)).transpose()?;
        let wandb = settings.wandb.as_ref().map(|wandb| TrackedRun::wandb(wandb, out, &parameters)).transpose()?;
        let runs = mlflow.into_iter().chain(wandb).collect();
        let log = Self { steps, groups: None, evaluations: None, events, runs, out: out.into(), done };
        log.send_again()?;
        Ok(log)
    }

    /// Sends the numbers of the steps before a checkpoint to the trackers: a process that was killed may not have sent them all.
    fn send_again(&self) -> Result<()> {
        if self.done == 0 || self.runs.is_empty() {
            return Ok(());
        }
        let mut all: BTreeMap<u64, Vec<(String, f64)>> = BTreeMap::new();
        for (name, values) in [(STEPS, step_values as fn(&Value) -> Vec<_>), (EVALUATIONS, evaluation_values)] {
            let path = self.out.join(name);
            if !path.exists() {
                continue;
            }
            for line in beir::lines(&path)? {
                let (_, line) = line?;
                let Some((step, line)) = step_of(&line).filter(|(step, _)| *step <= self.done) else { continue };
                all.entry(step).or_default().extend(values(&line));
            }
        }
        for (step, values) in all {
            self.runs.iter().for_each(|run| run.send(step, values.clone()));
        }
        Ok(())
    }

    /// Ends the runs at trackers. A log that is dropped without this call marks them as failed.
    pub fn finish(mut self, is_finished: bool) {
        let status = if is_finished { RunStatus::Finished } else { RunStatus::Stopped };
        self.runs.iter_mut().for_each(|run| run.finish(status));
    }

    /// Opens the log of evaluations, which keeps those up to the one after `last` steps.
    pub fn open_evaluations(&mut self, last: Option<u64>) -> Result<()> {
        self.evaluations = Some(Lines::open(self.out.join(EVALUATIONS), last)?);
        Ok(())
    }

    pub fn write_evaluation(&mut self, evaluation: &Evaluation) -> Result<()> {
        let line = json!(evaluation);
        self.evaluations.as_mut().map_or(Ok(()), |evaluations| evaluations.write(&line))?;
        self.send(evaluation.step, evaluation_values(&line))
    }

    /// Sends values to TensorBoard and the trackers.
    fn send(&mut self, step: u64, values: Vec<(String, f64)>) -> Result<()> {
        self.events.as_mut().map_or(Ok(()), |events| events.scalars(step, &values))?;
        self.runs.iter().for_each(|run| run.send(step, values.clone()));
        Ok(())
    }

    pub fn write(&mut self, report: &StepReport) -> Result<()> {
        let line = json!(report);
        self.steps.write(&line)?;
        self.send(report.step, step_values(&line))?;
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

/// Numbers of a line of `steps.jsonl`.
fn step_values(line: &Value) -> Vec<(String, f64)> {
    numbers_except(SECTION, line, &["step", "steps"])
}

/// Numbers of a line of `evaluations.jsonl`.
fn evaluation_values(line: &Value) -> Vec<(String, f64)> {
    numbers_except("evaluate", line, &["step", "seconds"])
}

fn numbers_except(section: &str, line: &Value, left_out: &[&str]) -> Vec<(String, f64)> {
    let mut line = line.clone();
    if let Some(fields) = line.as_object_mut() {
        fields.retain(|name, _| !left_out.contains(&name.as_str()));
    }
    numbers(section, &line)
}

/// A line and its step; none if it is not whole.
fn step_of(line: &[u8]) -> Option<(u64, Value)> {
    let line: Value = serde_json::from_slice(line).ok()?;
    Some((line["step"].as_u64()?, line))
}

/// The settings that the result depends on, by their dotted names.
fn parameters(config: &Value) -> Vec<(String, Value)> {
    flat(&without_place(config)).into_iter().filter(|(_, value)| !value.is_null()).collect()
}

impl Lines {
    /// Keeps the lines of the first `done` steps; without it, none.
    fn open(path: PathBuf, done: Option<u64>) -> Result<Self> {
        let mut kept = Vec::new();
        if path.exists() {
            for line in beir::lines(&path)? {
                let (_, line) = line?;
                if step_of(&line).zip(done).is_some_and(|((step, _), done)| step <= done) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use souk_testing::fake_judge::{FakeJudge, JudgeReply};

    /// A server of Weights & Biases that has the steps up to the first.
    fn server() -> FakeJudge {
        FakeJudge::start(|_, request| {
            let project = json!({"name": "souk", "entity": {"name": "team"}});
            let bucket = json!({"historyLineCount": 1, "summaryMetrics": "{\"_step\": 1}", "project": project});
            let is_begin = request.path == "/graphql";
            JudgeReply::Json(if is_begin { json!({"data": {"upsertBucket": {"bucket": bucket}}}) } else { json!({}) })
        })
    }

    #[test]
    fn a_resumed_stage_sends_what_a_killed_process_had_not_sent() {
        let (home, server) = (tempfile::tempdir().unwrap(), server());
        let wandb = json!({"url": server.url(), "key_env": "CARGO_PKG_NAME"});
        let wandb = Some(serde_json::from_value(wandb).unwrap());
        let settings = TrainSettings { wandb, ..TrainSettings::default() };
        let steps: String = (1..5).map(|step| format!("{{\"step\":{step},\"steps\":9,\"loss\":0.5}}\n")).collect();
        fs::write(home.path().join(STEPS), steps).unwrap();
        let evaluation = "{\"step\":2,\"ndcg@10\":40.5,\"is_best\":true,\"seconds\":1.5}\n";
        fs::write(home.path().join(EVALUATIONS), evaluation).unwrap();
        StepLog::open(home.path(), 3, &settings, &json!({})).unwrap().finish(true);
        let update = server.seen().pop().unwrap().body;
        let mut lines = update["files"]["wandb-history.jsonl"]["content"].as_array().unwrap().iter();
        let mut next = || serde_json::from_str::<Value>(lines.next().unwrap().as_str().unwrap()).unwrap();
        let (second, third) = (next(), next());
        assert_eq!((&second["_step"], &second["train/loss"]), (&json!(2), &json!(0.5)));
        assert_eq!(second["evaluate/ndcg@10"], 40.5);
        assert_eq!((&third["_step"], third.get("train/steps")), (&json!(3), None));
        assert!(lines.next().is_none(), "the steps after the checkpoint are made again");
    }
}
