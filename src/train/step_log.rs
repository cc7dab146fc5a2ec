//! The log of a stage: `steps.jsonl`, a line for each step, and `groups.jsonl`, one query's judged candidates of each step; the same
//! numbers as TensorBoard's event files, if the stage asks for them. A resumed stage drops the lines after its checkpoint.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::event_file::{EventFile, numbers};
use super::metrics::StepReport;
use souk_io::beir;
use souk_io::error::{Error, Result};

const STEPS: &str = "steps.jsonl";
const GROUPS: &str = "groups.jsonl";
/// First part of the names of scalars in event files.
const SECTION: &str = "train";

pub struct StepLog {
    steps: Lines,
    groups: Option<Lines>,
    events: Option<EventFile>,
    out: PathBuf,
    done: u64,
}

struct Lines {
    path: PathBuf,
    file: File,
}

impl StepLog {
    /// Keeps the lines of the first `done` steps. Writes an event file, too, with `tensorboard`.
    pub fn open(out: &Path, done: u64, tensorboard: bool) -> Result<Self> {
        let steps = Lines::open(out.join(STEPS), done)?;
        let events = tensorboard.then(|| EventFile::create(out, done + 1)).transpose()?;
        Ok(Self { steps, groups: None, events, out: out.into(), done })
    }

    pub fn write(&mut self, report: &StepReport) -> Result<()> {
        let line = json!(report);
        self.steps.write(&line)?;
        if let Some(events) = &mut self.events {
            let counts = [format!("{SECTION}/step"), format!("{SECTION}/steps")];
            let mut values = numbers(SECTION, &line);
            values.retain(|(name, _)| !counts.contains(name));
            events.scalars(report.step, &values)?;
        }
        let Some(shown) = &report.metrics.shown else { return Ok(()) };
        if self.groups.is_none() {
            self.groups = Some(Lines::open(self.out.join(GROUPS), self.done)?);
        }
        let mut line = json!(shown);
        line["step"] = json!(report.step);
        self.groups.as_mut().map_or(Ok(()), |groups| groups.write(&line))
    }

    pub fn sync(&self) -> Result<()> {
        std::iter::once(&self.steps)
            .chain(&self.groups)
            .try_for_each(|lines| lines.file.sync_data().map_err(Error::store(&lines.path, "write it to disk")))?;
        self.events.as_ref().map_or(Ok(()), EventFile::sync)
    }
}

impl Lines {
    fn open(path: PathBuf, done: u64) -> Result<Self> {
        let mut kept = Vec::new();
        if path.exists() {
            for line in beir::lines(&path)? {
                let (_, line) = line?;
                let step = serde_json::from_slice::<Value>(&line).ok().and_then(|json| json["step"].as_u64());
                if step.is_some_and(|step| step <= done) {
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
