//! What a stage writes down of its steps: `steps.jsonl`, a line about each, and `groups.jsonl`, one query's candidates of
//! each where they are judged. A resumed stage goes on after the last step that is in its checkpoint.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::run::Learned;
use crate::beir;
use crate::error::{Error, Result};

const STEPS: &str = "steps.jsonl";
const GROUPS: &str = "groups.jsonl";

pub struct StepLog {
    steps: Lines,
    groups: Option<Lines>,
    out: PathBuf,
    done: u64,
}

struct Lines {
    path: PathBuf,
    file: File,
}

impl StepLog {
    /// Keeps the lines of the steps that are done.
    pub fn open(out: &Path, done: u64) -> Result<Self> {
        Ok(Self { steps: Lines::open(out.join(STEPS), done)?, groups: None, out: out.into(), done })
    }

    pub fn write(&mut self, learned: &Learned) -> Result<()> {
        self.steps.write(&json!(learned))?;
        let Some(shown) = &learned.stepped.shown else { return Ok(()) };
        if self.groups.is_none() {
            self.groups = Some(Lines::open(self.out.join(GROUPS), self.done)?);
        }
        let mut line = json!(shown);
        line["step"] = json!(learned.step);
        self.groups.as_mut().map_or(Ok(()), |groups| groups.write(&line))
    }

    pub fn sync(&self) -> Result<()> {
        std::iter::once(&self.steps)
            .chain(&self.groups)
            .try_for_each(|lines| lines.file.sync_data().map_err(Error::store(&lines.path, "write it to disk")))
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
        // at once, so that who reads meanwhile finds whole lines
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(Error::store(&self.path, "write to it"))
    }
}
