//! Holds a candidate against what is served: both answer every query of the gate's splits, and the gate decides. What was
//! measured of a model is kept and used again, for as long as the questions are the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use souk::atomic_dir::{Claim, write_whole};
use souk::beir::DataFolder;
use souk::config::Config;
use souk::domain::TextKind;
use souk::encoder::{EncoderWorker, encode};
use souk::lexical::Lexical;
use souk::report::{Asked, Comparison, Engine, Held, Measurement, Page, Run, Task, TrainingLog, Verdict};
use souk::reward::RewardSource;
use souk::telemetry::TRAINER;
use souk::{Error, Result};

use crate::watch::Signals;

const MEASURED: &str = "measured";
const GATE: &str = "gate.json";
/// Queries whose vectors are watched from round to round.
const CANARIES: usize = 256;

/// A model that is measured.
#[derive(Clone, Serialize, Deserialize)]
pub struct Model {
    /// As reports call it.
    pub name: String,
    pub path: String,
    pub fingerprint: String,
}

/// What the gate found.
#[derive(Serialize, Deserialize)]
pub struct Gated {
    pub passed: bool,
    pub reasons: Vec<String>,
    /// What the candidate scored, by split, and what is served.
    pub reports: Vec<(String, Value)>,
    pub served_reports: Vec<(String, Value)>,
    /// How far queries' vectors have moved, on the split where that is most.
    pub drift: Option<f64>,
}

/// What all measurements of a trainer share.
pub struct Gauge<'a> {
    pub config: &'a Config,
    pub data: &'a DataFolder,
    pub signals: &'a Signals,
}

/// One split, ready to be asked.
struct Bench {
    task: Task,
    judge: std::sync::Arc<dyn RewardSource>,
    lexical: Lexical,
}

impl Gauge<'_> {
    /// Opens a model as it will be served, and says what it is.
    pub fn model(&self, name: &str, path: &str) -> Result<Model> {
        let fingerprint = self.config(path).open_encoder()?.fingerprint()?;
        Ok(Model { name: name.into(), path: path.into(), fingerprint })
    }

    /// Decides on a candidate; reports for people go to `place`.
    pub fn gate(&self, served: &Model, candidate: &Model, place: &Path) -> Result<Gated> {
        let gate = &self.config.trainer.gate;
        let (mut reasons, mut verdicts) = (Vec::new(), serde_json::Map::new());
        let (mut reports, mut served_reports) = (Vec::new(), Vec::new());
        let mut moved: Option<f64> = None;
        for split in &gate.splits {
            let bench = self.bench(split)?;
            let (before, old) = self.run(served, &bench)?;
            let (after, new) = self.run(candidate, &bench)?;
            let drift = drift(&old, &new);
            let verdict = gate.judge(&Held { served: &before, candidate: &after, drift })?;
            self.page(&before, &after, (&candidate.path, &place.join(format!("report-{split}.html"))))?;
            if let Some(drift) = drift {
                moved = Some(moved.map_or(drift, |most| most.max(drift)));
            }
            reasons.extend(verdict.reasons.iter().cloned());
            for (run, reports) in [(&after, &mut reports), (&before, &mut served_reports)] {
                let metrics = serde_json::to_value(&run.metrics);
                reports.push((split.clone(), metrics.map_err(|e| Error::input("metrics are no JSON").because(e))?));
            }
            verdicts.insert(split.clone(), shown(&verdict));
        }
        if let Some(drift) = moved {
            TRAINER.drift.with_label_values(&["vectors"]).set(drift);
        }
        write_whole(&place.join(GATE), &verdicts)?;
        Ok(Gated { passed: reasons.is_empty(), reasons, reports, served_reports, drift: moved })
    }

    /// Removes what was measured of other models.
    pub fn tidy(&self, kept: &[&Model]) -> Result<()> {
        let folder = self.folder();
        let kept: BTreeSet<&str> = kept.iter().map(|model| model.fingerprint.as_str()).collect();
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(()) };
        for entry in entries {
            let path = entry.map_err(Error::store(&folder, "list what was measured"))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !kept.iter().any(|fingerprint| name.starts_with(fingerprint)) {
                fs::remove_dir_all(&path).map_err(Error::store(&path, "remove it"))?;
            }
        }
        Ok(())
    }

    fn folder(&self) -> PathBuf {
        self.config.trainer.state.join(MEASURED)
    }

    fn config(&self, path: &str) -> Config {
        let mut config = self.config.clone();
        config.model.path = Some(path.into());
        config
    }

    fn bench(&self, split: &str) -> Result<Bench> {
        let task = Task::load(self.data, split)?;
        let lexical = Lexical::build(task.items.iter().map(|item| Ok(item.passage())))?;
        Ok(Bench { task, judge: self.config.open_referee(self.data, split)?, lexical })
    }

    /// What a model scores, and its vectors of the canaries. Measured where that has not been done.
    fn run(&self, model: &Model, bench: &Bench) -> Result<(Run, Vec<Vec<f32>>)> {
        let Bench { task, judge, lexical } = bench;
        let depth = self.config.trainer.gate.depth;
        let encoder = self.config(&model.path).open_encoder()?.for_search()?.freeze()?;
        let worker = EncoderWorker::start(encoder, self.config.worker)?;
        let canaries = canaries(&worker, task)?;
        let place = self.folder().join(format!("{}-{}", model.fingerprint, task.split));
        let asked = Asked::of(task, judge.as_ref(), depth);
        if let Some(known) = Run::load(&place).ok().filter(|run| run.metrics.asked.differences(&asked).is_empty()) {
            return Ok((known, canaries));
        }
        let engine = Engine::encode(task, &worker, || match self.signals.stopped() {
            true => Err(Error::Busy { problem: "asked to stop".into() }),
            false => Ok(()),
        })?;
        fs::create_dir_all(self.folder()).map_err(Error::store(&place, "make its folder"))?;
        // of other questions, or half written by a process that was killed
        for old in [&place, &place.with_file_name(format!("{}-{}.part", model.fingerprint, task.split))] {
            if old.exists() {
                fs::remove_dir_all(old).map_err(Error::store(old, "remove it"))?;
            }
        }
        let claim = Claim::new(&place)?;
        let measurement = Measurement {
            name: &model.name,
            task,
            engine: &engine,
            lexical,
            judge: judge.as_ref(),
            depth,
            perplexity: None,
        };
        let run = measurement.write(&claim.aside, &|_| ())?;
        claim.finish()?;
        Ok((run, canaries))
    }

    fn page(&self, served: &Run, candidate: &Run, (model, file): (&str, &Path)) -> Result<()> {
        let baselines = [Run { metrics: served.metrics.clone(), queries: served.queries.clone() }];
        let comparison = Comparison::of(&[(served, candidate)], false)?;
        let training = TrainingLog::load(Path::new(model))?;
        let page = Page { run: candidate, baselines: &baselines, comparison: &comparison, training: training.as_ref() };
        fs::write(file, page.html()).map_err(Error::store(file, "write it"))
    }
}

fn canaries(worker: &EncoderWorker, task: &Task) -> Result<Vec<Vec<f32>>> {
    let mut vectors = Vec::new();
    let queries = task.queries.iter().take(CANARIES).map(Ok);
    let of =
        (|query: &&souk::report::TaskQuery| query.text.clone(), |query: &&souk::report::TaskQuery| query.id.clone());
    encode(worker, Some(TextKind::Query), queries, of, |_, vector| {
        vectors.push(vector);
        Ok::<(), Error>(())
    })?;
    Ok(vectors)
}

/// The mean of 1 less the cosine; none between vectors of different lengths.
fn drift(old: &[Vec<f32>], new: &[Vec<f32>]) -> Option<f64> {
    if old.first()?.len() != new.first()?.len() {
        return None;
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let apart = |(a, b): (&Vec<f32>, &Vec<f32>)| 1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    Some(old.iter().zip(new).map(apart).sum::<f64>() / old.len() as f64)
}

/// What of a verdict is kept.
fn shown(verdict: &Verdict) -> Value {
    serde_json::json!({
        "passed": verdict.passed, "reasons": verdict.reasons, "drift": verdict.drift, "rows": verdict.rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_the_mean_of_what_cosines_lack() {
        let old = [vec![1.0, 0.0], vec![0.0, 2.0]];
        assert_eq!(drift(&old, &old), Some(0.0));
        assert_eq!(drift(&old, &[vec![0.0, 1.0], vec![0.0, 5.0]]), Some(0.5));
        assert_eq!(drift(&old, &[vec![1.0], vec![1.0]]), None);
        assert_eq!(drift(&[], &[]), None);
        assert!(drift(&old, &[vec![f32::NAN, 0.0], vec![0.0, 1.0]]).unwrap().is_nan());
    }
}
