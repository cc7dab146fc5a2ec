//! A relevance model as a part of a version: the folder `reranker` in the encoder's folder. It orders the first hits of hybrid search
//! again. The score of a hit becomes `fused + weight * output`, with the relevance model's output; the weight is fitted.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tch::Device;

use super::judge::batches;
use super::model::CrossEncoder;
use super::reader::{PairReader, PairText};
use souk_io::atomic_dir::write_json_atomic;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_io::telemetry::{RELEVANCE, WorkerMetrics};
use souk_nn::encoder::Placement;
use souk_nn::worker::{Limits, Model, Reply, Worker};

/// Folder in a model's folder.
pub const RERANKER: &str = "reranker";
/// More hits are never reranked.
pub const MAX_RERANKED: usize = 200;
const SETTINGS: &str = "rerank.json";
const FORMAT: u32 = 1;
const BATCH_TOKENS: usize = 2048;

/// Content of `rerank.json`: how a relevance model reranks the hits of the encoder it belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RerankFit {
    format: u32,
    /// Hits per query that it reads, if a search does not say.
    pub depth: usize,
    /// Weight of its output, relative to fused scores.
    pub weight: f32,
    /// Queries that the weight was fitted to.
    pub queries: usize,
    pub quality: RerankQuality,
}

/// nDCG@10 over the queries that have a judged item with a gain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RerankQuality {
    pub fused: f64,
    /// By cross-validation: each fifth of the queries is ordered by a weight that was fitted to the others.
    pub reranked: f64,
}

impl RerankFit {
    pub fn new(depth: usize, weight: f32, queries: usize, quality: RerankQuality) -> Self {
        Self { format: FORMAT, depth, weight, queries, quality }
    }

    /// None if the model in a folder has no reranker.
    pub fn of_model(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(RERANKER).join(SETTINGS);
        if !path.exists() {
            return Ok(None);
        }
        let remedy = "fit it again with `souk fit-fusion --reranker`, or remove the folder";
        let text = fs::read(&path).map_err(Error::store(&path, "read it"))?;
        let fit: Self = serde_json::from_slice(&text).map_err(|e| {
            Error::data(&path, None, format!("is not written by `souk fit-fusion`: {remedy}")).because(e)
        })?;
        if fit.format != FORMAT || !fit.weight.is_finite() || !(1..=MAX_RERANKED).contains(&fit.depth) {
            let problem = format!("has another format, a weight that is no number, or a depth above {MAX_RERANKED}");
            return Err(Error::data(&path, None, format!("{problem}: {remedy}")));
        }
        Ok(Some(fit))
    }

    /// Makes a copy of a relevance model the reranker of the model in the folder `model`, instead of the one it has.
    pub fn install(&self, relevance_model: &Path, model: &Path) -> Result<()> {
        let new = model.join(format!(".{RERANKER}"));
        copy_files(relevance_model, &new)?;
        write_json_atomic(&new.join(SETTINGS), self)?;
        let to = model.join(RERANKER);
        if to.exists() {
            fs::remove_dir_all(&to).map_err(Error::store(&to, "replace it"))?;
        }
        fs::rename(&new, &to).map_err(Error::store(&to, "put it in place"))
    }
}

/// Turns off the reranker of a model. Its relevance model stays, and can be fitted again.
pub fn disable_reranker(model: &Path) -> Result<()> {
    let settings = model.join(RERANKER).join(SETTINGS);
    match fs::remove_file(&settings) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::store(&settings, "remove it")(error)),
        _ => Ok(()),
    }
}

/// Copies the reranker of one model, if it has one, into the folder of another.
pub fn copy_reranker(from: &Path, to: &Path) -> Result<()> {
    let from = from.join(RERANKER);
    if from.exists() { copy_files(&from, &to.join(RERANKER)) } else { Ok(()) }
}

/// Copies the files of a folder, without its subfolders, into a new one.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).map_err(Error::store(to, "replace it"))?;
    }
    fs::create_dir_all(to).map_err(Error::store(to, "create the folder"))?;
    for entry in fs::read_dir(from).map_err(Error::store(from, "list the folder"))? {
        let path = entry.map_err(Error::store(from, "list the folder"))?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            let copy = to.join(name);
            fs::copy(&path, &copy).map_err(Error::store(&copy, "copy it"))?;
        }
    }
    Ok(())
}

/// A relevance model that gives outputs instead of levels. In int8, no pair is read twice.
pub struct PairScorer(CrossEncoder);

impl PairScorer {
    /// Opens a relevance model that was trained on items of the template `item_text`.
    pub fn open(dir: &Path, placement: Placement, item_text: &ItemText) -> Result<Self> {
        let model = CrossEncoder::open(dir, placement)?;
        model.check_item_text(dir, item_text)?;
        Ok(Self(model.without_exact().freeze()?))
    }

    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// Output of each item's text for a query.
    pub fn outputs(&self, query: &str, texts: &[&str]) -> Result<Vec<f32>> {
        let pairs = self.0.reader.read_all(query, texts)?;
        let mut outputs = vec![0.0; pairs.len()];
        for batch in batches(&pairs, BATCH_TOKENS) {
            let read: Vec<&PairText> = batch.iter().map(|place| &pairs[*place]).collect();
            for (place, output) in batch.iter().zip(self.run(&read)?) {
                outputs[*place] = output;
            }
        }
        Ok(outputs)
    }
}

impl Model for PairScorer {
    type Input = PairText;
    type Output = f32;
    const NAME: &'static str = "reranker";

    fn num_tokens(pair: &PairText) -> usize {
        pair.ids.len()
    }

    fn run(&self, pairs: &[&PairText]) -> Result<Vec<f32>> {
        Ok(self.0.outputs_of(pairs)?.iter().map(|outputs| self.0.grading().output(outputs)).collect())
    }

    fn metrics() -> &'static WorkerMetrics {
        &RELEVANCE
    }

    fn device(&self) -> Device {
        self.0.device()
    }
}

/// A version's reranker, on its own thread.
pub struct Reranker {
    fit: RerankFit,
    reader: Arc<PairReader>,
    worker: Worker<PairScorer>,
}

impl Reranker {
    /// None if the model in a folder has no reranker.
    pub fn of_model(dir: &Path, placement: Placement, limits: Limits, item_text: &ItemText) -> Result<Option<Self>> {
        let Some(fit) = RerankFit::of_model(dir)? else { return Ok(None) };
        let scorer = PairScorer::open(&dir.join(RERANKER), placement, item_text)?;
        let reader = scorer.0.reader();
        Ok(Some(Self { fit, reader, worker: Worker::start(scorer, limits)? }))
    }

    pub fn fit(&self) -> &RerankFit {
        &self.fit
    }

    /// Tokenizes the query once, and each text.
    pub fn read(&self, query: &str, texts: &[&str]) -> Result<Vec<PairText>> {
        self.reader.read_all(query, texts)
    }

    /// An error at once if the queue is full.
    pub fn submit(&self, pairs: Vec<PairText>) -> Result<Reply<PairScorer>> {
        self.worker.submit(pairs)
    }
}

/// A new order of the first hits.
#[derive(Debug, PartialEq)]
pub struct Reordered {
    /// Old places and new scores of the hits that were read, best first; equal ones keep their order.
    pub hits: Vec<(usize, f32)>,
    /// Added to the scores of the other hits, so that they stay below.
    pub shift: f32,
}

/// Orders the first hits by `fused + weight * output`. `next`: the score of the first hit that was not read.
pub fn reorder(fused: &[f32], outputs: &[f32], weight: f32, next: Option<f32>) -> Reordered {
    let score = |(place, (fused, output)): (usize, (&f32, &f32))| (place, fused + weight * output);
    let mut hits: Vec<(usize, f32)> = fused.iter().zip(outputs).enumerate().map(score).collect();
    hits.sort_by(|a, b| b.1.total_cmp(&a.1));
    let last = hits.last().map_or(f32::INFINITY, |(_, score)| *score);
    Reordered { hits, shift: next.map_or(0.0, |next| (last - next).min(0.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_ordered_by_the_weighted_sum_and_stay_above_the_rest() {
        let reordered = reorder(&[3.0, 2.0, 1.0], &[-1.0, 0.5, 3.0], 0.5, Some(1.5));
        assert_eq!(reordered, Reordered { hits: vec![(0, 2.5), (2, 2.5), (1, 2.25)], shift: 0.0 });
        assert_eq!(reorder(&[3.0, 2.0], &[-4.0, 0.0], 0.5, Some(1.5)).shift, -0.5);
        assert_eq!(reorder(&[], &[], 0.5, None), Reordered { hits: vec![], shift: 0.0 });
    }

    #[test]
    fn an_installed_fit_is_read_again_and_a_broken_one_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let [judge, model, other] = ["judge", "model", "other"].map(|name| home.path().join(name));
        for dir in [&judge, &model, &other] {
            fs::create_dir(dir).unwrap();
        }
        fs::write(judge.join("config.json"), "{}").unwrap();
        assert_eq!(RerankFit::of_model(&model).unwrap(), None);
        let fit = RerankFit::new(50, 0.25, 900, RerankQuality { fused: 0.4, reranked: 0.45 });
        fit.install(&judge, &model).unwrap();
        fit.install(&model.join(RERANKER), &model).unwrap();
        copy_reranker(&model, &other).unwrap();
        assert_eq!(RerankFit::of_model(&other).unwrap(), Some(fit.clone()));
        assert!(other.join(RERANKER).join("config.json").exists() && !judge.join(SETTINGS).exists());
        for bad in [
            RerankFit { depth: 0, ..fit.clone() },
            RerankFit { depth: 999, ..fit.clone() },
            RerankFit { format: 2, ..fit },
        ] {
            bad.install(&judge, &model).unwrap();
            assert!(RerankFit::of_model(&model).unwrap_err().to_string().contains("souk fit-fusion"));
        }
        for _ in 0..2 {
            disable_reranker(&model).unwrap();
            assert_eq!(RerankFit::of_model(&model).unwrap(), None);
        }
        assert!(model.join(RERANKER).join("config.json").exists(), "it can be fitted again");
    }
}
