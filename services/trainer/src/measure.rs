//! Compares a candidate with the served model: both answer all queries of the judged splits as they are served (`search.hybrid`),
//! and the gate decides. Measurements are cached by model and reused while the settings are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use souk::atomic_dir::{AtomicDir, write_json_atomic};
use souk::beir::DataFolder;
use souk::config::Config;
use souk::domain::TextKind;
use souk::encoder::{EncoderWorker, encode};
use souk::item_text::ItemText;
use souk::lexical::{Lexical, ModelFusion};
use souk::report::{
    Engine, EvaluationRun, GateInput, Measurement, QueryChanges, RUN, ReportPage, RunComparison, RunSettings, Task,
    TrainingLog, pipeline_of,
};
use souk::reward::RewardSource;
use souk::telemetry::TRAINER;
use souk::{Error, Result};

use crate::exposure::Sellers;
use crate::signals::Signals;

/// Name of the model before the first version.
pub const BASE: &str = "base";

const MEASURED: &str = "measured";
/// Verdict of each split, and what changed for its queries.
pub const GATE: &str = "gate.json";
pub const CHANGES: &str = "changes.json";
/// Queries whose vectors are compared between rounds.
const CANARIES: usize = 256;

/// A model to measure.
#[derive(Clone, Serialize, Deserialize)]
pub struct MeasuredModel {
    /// Name in reports.
    pub name: String,
    pub path: String,
    pub fingerprint: String,
    /// Template of the items' texts.
    #[serde(default)]
    pub item_text: ItemText,
}

/// The gate's decision, with the reports behind it.
#[derive(Serialize, Deserialize)]
pub struct GateDecision {
    pub passed: bool,
    pub reasons: Vec<String>,
    /// Metrics of the candidate and of the served model, by split.
    pub reports: Vec<(String, Value)>,
    pub served_reports: Vec<(String, Value)>,
    /// Largest drift of the query vectors over the splits.
    pub drift: Option<f64>,
}

/// Judgements to measure with.
pub struct JudgedSplit {
    pub data: DataFolder,
    pub split: String,
}

/// Measures models and applies the gate.
pub struct Evaluator<'a> {
    pub config: &'a Config,
    pub signals: &'a Signals,
}

/// Evaluation task of one split, with its judge.
struct SplitTask {
    task: Task,
    judge: Arc<dyn RewardSource>,
    lexical: Lexical,
}

impl Evaluator<'_> {
    /// Opens a model as it would be served, and computes its fingerprint.
    pub fn model(&self, name: &str, path: &str) -> Result<MeasuredModel> {
        let encoder = self.config(path).open_encoder()?;
        let (fingerprint, item_text) = (encoder.fingerprint()?, encoder.item_text().clone());
        Ok(MeasuredModel { name: name.into(), path: path.into(), fingerprint, item_text })
    }

    /// Applies the gate to a candidate. Writes HTML reports, `gate.json` and `changes.json` to `place`.
    pub fn gate(
        &self,
        served: &MeasuredModel,
        candidate: &MeasuredModel,
        judged: &[JudgedSplit],
        place: &Path,
    ) -> Result<GateDecision> {
        let gate = &self.config.trainer.gate;
        let (mut reasons, mut verdicts, mut changes) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (mut reports, mut served_reports) = (Vec::new(), Vec::new());
        let mut moved: Option<f64> = None;
        for judged in judged {
            let split = &judged.split;
            let mut task = self.task(judged, &served.item_text)?;
            let (before, old) = self.run(served, &task)?;
            if candidate.item_text != served.item_text {
                task = self.task(judged, &candidate.item_text)?;
            }
            let (after, new) = self.run(candidate, &task)?;
            let drift = drift(&old, &new);
            let mut verdict = gate.judge(&GateInput { served: &before, candidate: &after, drift })?;
            if gate.max_exposure > 0.0 && served.name != BASE {
                let runs = [served, candidate].map(|model| self.place(model, split).join(RUN));
                let grown = Sellers::read(&judged.data)?.grown(&runs[0], &runs[1], gate.max_exposure)?;
                verdict.refuse(grown.into_iter().map(|reason| format!("{split}: {reason}")));
            }
            self.write_report(&before, &after, &candidate.path, &place.join(format!("report-{split}.html")))?;
            if let Some(drift) = drift {
                moved = Some(moved.map_or(drift, |largest| largest.max(drift)));
            }
            reasons.extend(verdict.reasons.iter().cloned());
            for (run, reports) in [(&after, &mut reports), (&before, &mut served_reports)] {
                let metrics = serde_json::to_value(&run.metrics);
                reports.push((
                    split.clone(),
                    metrics.map_err(|e| Error::input("cannot write metrics as JSON").because(e))?,
                ));
            }
            verdicts.insert(split.clone(), verdict);
            changes.insert(split.clone(), QueryChanges::of(&before, &after));
        }
        if let Some(drift) = moved {
            TRAINER.drift.with_label_values(&["vectors"]).set(drift);
        }
        write_json_atomic(&place.join(CHANGES), &changes)?;
        write_json_atomic(&place.join(GATE), &verdicts)?;
        Ok(GateDecision { passed: reasons.is_empty(), reasons, reports, served_reports, drift: moved })
    }

    /// Removes cached measurements of all models but these.
    pub fn tidy(&self, kept: &[&MeasuredModel]) -> Result<()> {
        let folder = self.folder();
        let kept: BTreeSet<&str> = kept.iter().map(|model| model.fingerprint.as_str()).collect();
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(()) };
        for entry in entries {
            let path = entry.map_err(Error::store(&folder, "list the measurements"))?.path();
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

    /// Folder of a model's measurement on a split.
    fn place(&self, model: &MeasuredModel, split: &str) -> PathBuf {
        self.folder().join(format!("{}-{split}", model.fingerprint))
    }

    fn config(&self, path: &str) -> Config {
        let mut config = self.config.clone();
        config.model.path = Some(path.into());
        config
    }

    fn task(&self, judged: &JudgedSplit, item_text: &ItemText) -> Result<SplitTask> {
        let JudgedSplit { data, split } = judged;
        let task = Task::load(data, split, item_text)?;
        let lexical = task.lexical(self.config.search.lexical.unwrap_or_default())?;
        Ok(SplitTask { task, judge: self.config.open_referee(data, split, item_text)?, lexical })
    }

    /// A model's measurement, from the cache if there is one, and its vectors of the canary queries.
    fn run(&self, model: &MeasuredModel, split: &SplitTask) -> Result<(EvaluationRun, Vec<Vec<f32>>)> {
        let SplitTask { task, judge, lexical } = split;
        let depth = self.config.trainer.gate.depth;
        let encoder = self.config(&model.path).open_encoder()?.for_search()?.freeze()?;
        let fusion = self.config.search.hybrid.fusion(ModelFusion::load(encoder.dir())?);
        let item_text = encoder.item_text();
        let reranker = self.config.open_served_reranker(encoder.dir(), fusion.as_ref(), item_text)?;
        let mut pipeline = pipeline_of(fusion.as_ref());
        if let Some((by, num)) = &reranker {
            pipeline = by.pipeline(&pipeline, *num);
        }
        let worker = EncoderWorker::start(encoder, self.config.worker)?;
        let canaries = canaries(&worker, task)?;
        let place = self.place(model, &task.split);
        let asked = RunSettings::of(task, judge.as_ref(), depth);
        let is_same =
            |run: &EvaluationRun| run.metrics.asked.differences(&asked).is_empty() && run.metrics.pipeline == pipeline;
        if let Some(known) = EvaluationRun::load(&place).ok().filter(is_same) {
            return Ok((known, canaries));
        }
        let engine = Engine::encode(task, &worker, || {
            if self.signals.stopped() { Err(Error::Busy { problem: "the trainer is stopping".into() }) } else { Ok(()) }
        })?;
        let engine = match fusion {
            Some(fusion) => engine.hybrid(task, fusion)?,
            None => engine,
        };
        let engine = match reranker {
            Some((by, num)) => engine.reranked(by, num),
            None => engine,
        };
        fs::create_dir_all(self.folder()).map_err(Error::store(&place, "create its folder"))?;
        if place.exists() {
            // measured with other settings
            fs::remove_dir_all(&place).map_err(Error::store(&place, "remove it"))?;
        }
        let atomic_dir = AtomicDir::new(&place)?;
        let measurement = Measurement {
            name: &model.name,
            task,
            engine: &engine,
            lexical,
            judge: judge.as_ref(),
            depth,
            perplexity: None,
        };
        let run = measurement.write(&atomic_dir.staging, &|_| ())?;
        atomic_dir.finish()?;
        Ok((run, canaries))
    }

    fn write_report(&self, served: &EvaluationRun, candidate: &EvaluationRun, model: &str, file: &Path) -> Result<()> {
        let baselines = [EvaluationRun { metrics: served.metrics.clone(), queries: served.queries.clone() }];
        let comparison = RunComparison::of(&[(served, candidate)], false)?;
        let training = TrainingLog::load(Path::new(model))?;
        let page =
            ReportPage { run: candidate, baselines: &baselines, comparison: &comparison, training: training.as_ref() };
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

/// Mean cosine distance; none between vectors of different lengths.
fn drift(old: &[Vec<f32>], new: &[Vec<f32>]) -> Option<f64> {
    if old.first()?.len() != new.first()?.len() {
        return None;
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let distance = |(a, b): (&Vec<f32>, &Vec<f32>)| 1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    Some(old.iter().zip(new).map(distance).sum::<f64>() / old.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_the_mean_cosine_distance() {
        let old = [vec![1.0, 0.0], vec![0.0, 2.0]];
        assert_eq!(drift(&old, &old), Some(0.0));
        assert_eq!(drift(&old, &[vec![0.0, 1.0], vec![0.0, 5.0]]), Some(0.5));
        assert_eq!(drift(&old, &[vec![1.0], vec![1.0]]), None);
        assert_eq!(drift(&[], &[]), None);
        assert!(drift(&old, &[vec![f32::NAN, 0.0], vec![0.0, 1.0]]).unwrap().is_nan());
    }
}
