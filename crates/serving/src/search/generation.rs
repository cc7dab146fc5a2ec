//! A model and the index of its vectors, opened as one unit. Tracks its journal position and catches up from the
//! journal, encoding items again if another model made their vectors.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc};

use super::backend::OpenIndex;
use super::model::LoadedModel;
use super::query::compare;
use super::record::{GenerationRecord, RECORD};
use super::settings::SearchSettings;
use crate::index::{Frame, Index, ItemChange, JournalReader};
use souk_cache::Cache;
use souk_cross_encoder::Reranker;
use souk_io::domain::{Item, TextKind};
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_io::telemetry::SEARCH;
use souk_lexical::ModelFusion;
use souk_native::bytes_of;
use souk_nn::encoder::{EncoderWorker, Reader, Text, Urgency};

/// Least texts of a large request that are encoded at once. A query that arrives meanwhile waits for them, not for a thousand items.
const MIN_SLICE: usize = 8;
/// Tokens of a batch for each text of a slice: a device with larger batches takes larger slices.
const SLICE_TOKENS: usize = 256;
/// Time after a success within which the encoder counts as working.
const FRESH: Duration = Duration::from_secs(1);
/// Frames of the journal buffered while catching up.
const MAX_PENDING_FRAMES: usize = 16;

pub struct OpenGeneration {
    record: GenerationRecord,
    worker: Arc<EncoderWorker>,
    fusion: Option<ModelFusion>,
    reranker: Option<Arc<Reranker>>,
    open_index: OpenIndex,
    index: Arc<dyn Index>,
    cache: Arc<dyn Cache>,
    is_cache_down: AtomicBool,
    is_reranker_down: AtomicBool,
    /// Position of the last change applied to the index.
    applied: AtomicU64,
    catch_up_lock: Mutex<()>,
}

impl OpenGeneration {
    /// Opens the generation in `dir` for a loaded model.
    pub fn open(
        dir: &Path,
        record: GenerationRecord,
        model: &LoadedModel,
        cache: Arc<dyn Cache>,
        settings: &SearchSettings,
    ) -> Result<Self> {
        if record.model != model.fingerprint {
            let problem = format!(
                "generation `{}` was built by model {}, but {} holds model {}: restore that model, or register this \
                 one under another name",
                record.generation, record.model, record.path, model.fingerprint
            );
            return Err(Error::data(&dir.join(RECORD), None, problem));
        }
        let open_index = OpenIndex::open(dir, &record, settings, model.item_text())?;
        let (worker, fusion, reranker) = (model.worker.clone(), model.fusion.clone(), model.reranker.clone());
        let (index, applied) = (open_index.index(), AtomicU64::new(record.catalogue));
        let generation = Self {
            record,
            worker,
            fusion,
            reranker,
            open_index,
            index,
            cache,
            is_cache_down: AtomicBool::new(false),
            is_reranker_down: AtomicBool::new(false),
            applied,
            catch_up_lock: Mutex::default(),
        };
        generation.check_canaries(settings.canary_tolerance)?;
        Ok(generation)
    }

    fn check_canaries(&self, tolerance: f32) -> Result<()> {
        let canaries = &self.record.canaries;
        let texts = canaries.iter().map(|canary| self.worker.reader().read(&canary.text, Some(TextKind::Item)));
        let reply = self.worker.submit_blocking(texts.collect::<Result<_>>()?)?;
        let vectors = reply.blocking_recv().map_err(worker_lost)??;
        for (canary, vector) in canaries.iter().zip(vectors) {
            let distance: f32 = canary.vector.iter().zip(&vector).map(|(a, b)| (a - b).powi(2)).sum();
            let length: f32 = canary.vector.iter().map(|x| x * x).sum();
            let distance = (distance / length.max(f32::MIN_POSITIVE)).sqrt();
            if vector.len() != canary.vector.len() || distance.is_nan() || distance > tolerance {
                let problem = format!(
                    "model {} of version `{}` gives another vector for {:?} than when generation `{}` was built \
                     (relative distance {distance:.4}, allowed {tolerance}): restore the library version or precision \
                     that built it, or register the model under another name to build a new index",
                    self.record.model, self.record.version, canary.text, self.record.generation
                );
                return Err(Error::config("search.canary_tolerance", problem));
            }
        }
        Ok(())
    }

    pub fn record(&self) -> &GenerationRecord {
        &self.record
    }

    pub fn index(&self) -> &dyn Index {
        &*self.index
    }

    pub(super) fn open_index(&self) -> &OpenIndex {
        &self.open_index
    }

    pub(super) fn worker(&self) -> &Arc<EncoderWorker> {
        &self.worker
    }

    /// Weights of hybrid search that were fitted to the model.
    pub fn fusion(&self) -> Option<ModelFusion> {
        self.fusion.clone()
    }

    /// Relevance model that reranks the first hits of hybrid search.
    pub fn reranker(&self) -> Option<&Arc<Reranker>> {
        self.reranker.as_ref()
    }

    /// Template of the items' texts, as this generation's model and lexical index read them.
    pub fn item_text(&self) -> &ItemText {
        self.worker.reader().item_text()
    }

    /// Text of an item.
    pub fn text_of(&self, item: &Item) -> String {
        self.item_text().render(item)
    }

    /// Fraction of a query's terms that an item has, weighted by idf; none without lexical search.
    pub fn overlap(&self, query: &str, item: &Item) -> Option<f32> {
        Some(compare(&mut self.index().matcher(query)?, self.item_text(), item).overlap)
    }

    /// Position of the last catalogue change that searches see.
    pub fn catalogue(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Vectors of texts, from the cache where possible. A failing cache costs time, never an answer.
    pub async fn vectors(&self, texts: &[&str], kind: Option<TextKind>) -> Result<Vec<Vec<f32>>> {
        let keys: Vec<Vec<u8>> = texts.iter().map(|text| self.key(text, kind)).collect();
        let answer = self.cache.get_many(&keys).await;
        self.log_cache_state(answer.as_ref().err());
        let known = answer.unwrap_or_else(|_| vec![None; keys.len()]);
        let mut vectors: Vec<Option<Vec<f32>>> =
            known.iter().map(|value| self.decode_cached(value.as_deref()?)).collect();
        let missing: Vec<usize> = (0..texts.len()).filter(|at| vectors[*at].is_none()).collect();
        SEARCH.record_cache(texts.len() - missing.len(), missing.len());
        let slice = self.slice();
        let is_query = kind != Some(TextKind::Item) && missing.len() <= slice;
        let urgency = if is_query { Urgency::Urgent } else { Urgency::Patient };
        for missing in missing.chunks(slice) {
            let texts = missing.iter().map(|at| texts[*at].to_owned()).collect();
            let made = self.encode(texts, kind, urgency).await?;
            let entry = |(at, vector): (&usize, &Vec<f32>)| (keys[*at].clone(), bytes_of(vector).to_vec().into());
            let entries: Vec<_> = missing.iter().zip(&made).map(entry).collect();
            if let Err(error) = self.cache.put_many(&entries).await {
                tracing::debug!(?error, "cannot write to the cache");
            }
            for (at, vector) in missing.iter().zip(made) {
                vectors[*at] = Some(vector);
            }
        }
        Ok(vectors.into_iter().flatten().collect())
    }

    /// Vectors of texts with the lengths that the model gave them, bypassing the cache.
    pub async fn unscaled_vectors(&self, texts: &[&str], kind: Option<TextKind>) -> Result<Vec<Vec<f32>>> {
        let mut vectors = Vec::with_capacity(texts.len());
        for texts in texts.chunks(self.slice()) {
            let texts = texts.iter().map(|text| (*text).to_owned()).collect();
            let read = move |reader: &Reader, text: &str| Ok(Text { keeps_length: true, ..reader.read(text, kind)? });
            vectors.extend(self.encode_as(texts, Urgency::Patient, read).await?);
        }
        Ok(vectors)
    }

    /// Number of texts that are encoded at once.
    fn slice(&self) -> usize {
        (self.worker.batch_tokens() / SLICE_TOKENS).max(MIN_SLICE)
    }

    /// Logs when the cache goes down or comes back, not on every request in between.
    fn log_cache_state(&self, problem: Option<&Error>) {
        match (problem, self.is_cache_down.swap(problem.is_some(), Ordering::Relaxed)) {
            (Some(error), false) => {
                tracing::warn!(?error, "the cache is down: queries are encoded without it");
            }
            (None, true) => tracing::info!("the cache is back"),
            _ => {}
        }
    }

    /// Logs when reranking stops or goes on, not on every request in between.
    pub(super) fn log_reranker_state(&self, problem: Option<&Error>) {
        match (problem, self.is_reranker_down.swap(problem.is_some(), Ordering::Relaxed)) {
            (Some(error), false) => {
                tracing::warn!(?error, "the reranker is late or fails: hits keep their fused order")
            }
            (None, true) => tracing::info!("the reranker is back"),
            _ => {}
        }
    }

    /// Encodes texts, bypassing the cache.
    pub(super) async fn encode(
        &self,
        texts: Vec<String>,
        kind: Option<TextKind>,
        urgency: Urgency,
    ) -> Result<Vec<Vec<f32>>> {
        self.encode_as(texts, urgency, move |reader, text| reader.read(text, kind)).await
    }

    #[tracing::instrument(level = "info", name = "encode", skip_all, fields(texts = texts.len()))]
    async fn encode_as(
        &self,
        texts: Vec<String>,
        urgency: Urgency,
        read: impl Fn(&Reader, &str) -> Result<Text> + Send + 'static,
    ) -> Result<Vec<Vec<f32>>> {
        // reserve first, so that nothing is tokenized for a full queue
        let places = self.worker.reserve(texts.len())?;
        let worker = self.worker.clone();
        let read_all = move || {
            let named =
                |at: usize, e| Error::input(format!("cannot tokenize text {} of {}", at + 1, texts.len())).because(e);
            let read = |(at, text): (usize, &String)| read(worker.reader(), text).map_err(|e| named(at, e));
            texts.iter().enumerate().map(read).collect::<Result<Vec<Text>>>()
        };
        let texts = tokio::task::spawn_blocking(read_all).await.map_err(worker_lost)??;
        self.worker.submit_into(places, texts, urgency)?.await.map_err(worker_lost)?
    }

    /// Fails unless the encoder works. Waits for other requests only if none has been answered for a second.
    pub async fn check_encoder(&self) -> Result<()> {
        if self.worker.since_success().is_some_and(|since| since < FRESH) {
            return Ok(());
        }
        self.encode(vec!["ready".into()], Some(TextKind::Query), Urgency::Urgent).await.map(drop)
    }

    /// Number of tokens of all texts.
    pub fn num_tokens(&self, texts: &[&str], kind: Option<TextKind>) -> Result<usize> {
        texts.iter().map(|text| Ok(self.worker.reader().read(text, kind)?.ids.len())).sum()
    }

    /// Text of token ids, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.worker.reader().decode(ids)
    }

    /// Number of token ids, which begin with 0.
    pub fn num_ids(&self) -> usize {
        self.worker.reader().num_ids()
    }

    /// Maximum number of tokens of a text.
    pub fn max_tokens(&self) -> Option<usize> {
        self.worker.reader().max_tokens()
    }

    /// Index of the first text that the model would truncate.
    pub fn first_truncated(&self, texts: &[&str], kind: Option<TextKind>) -> Result<Option<usize>> {
        for (at, text) in texts.iter().enumerate() {
            if self.worker.reader().truncates(text, kind)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn key(&self, text: &str, kind: Option<TextKind>) -> Vec<u8> {
        let mut hash = Sha256::new();
        hash.update(&self.record.model);
        hash.update([0, kind.map_or(0, |kind| 1 + kind as u8), 0]);
        hash.update(text);
        [b"vector:".as_slice(), &hash.finalize()].concat()
    }

    fn decode_cached(&self, bytes: &[u8]) -> Option<Vec<f32>> {
        let is_complete = bytes.len() == self.record.dimensions as usize * 4;
        is_complete.then(|| bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect())
    }

    /// Applies journal changes up to `last`, which follow the index's position.
    pub(super) async fn apply(&self, changes: &[ItemChange], last: u64) -> Result<usize> {
        let num_existing = self.index.apply(changes).await?;
        self.applied.store(last, Ordering::Release);
        Ok(num_existing)
    }

    /// Applies the journal changes that the index lacks.
    pub(super) async fn catch_up(&self, journal: JournalReader) -> Result<()> {
        let _alone = self.catch_up_lock.lock().await;
        let (after, last) = (self.catalogue(), journal.last());
        if after >= last {
            return Ok(());
        }
        let (sender, mut frames) = mpsc::channel::<Frame>(MAX_PENDING_FRAMES);
        let read = tokio::task::spawn_blocking(move || {
            journal.replay(after, &mut |frame| {
                // if the receiver is gone, it has failed and reports its own error
                drop(sender.blocking_send(frame));
                Ok(())
            })
        });
        while let Some(Frame { model, changes, last }) = frames.recv().await {
            let changes = if model == self.record.model { changes } else { self.reencode(changes).await? };
            self.apply(&changes, last).await?;
        }
        read.await.map_err(worker_lost)??;
        Ok(())
    }

    /// Same changes with vectors of this model.
    async fn reencode(&self, mut changes: Vec<ItemChange>) -> Result<Vec<ItemChange>> {
        let items: Vec<Item> = changes.iter().filter_map(ItemChange::item).cloned().collect();
        let mut vectors = self.item_vectors(&items).await?.into_iter();
        for change in &mut changes {
            if let ItemChange::Put(_, vector) = change {
                *vector = vectors.next().unwrap_or_default();
            }
        }
        Ok(changes)
    }

    /// Vectors of items: from the index if it has the same text, else from the cache or the model.
    pub(super) async fn item_vectors(&self, items: &[Item]) -> Result<Vec<Vec<f32>>> {
        let known = self.index.known_vectors(items, self.item_text()).await?;
        let unknown = items.iter().zip(&known).filter(|(_, vector)| vector.is_none());
        let texts: Vec<String> = unknown.map(|(item, _)| self.text_of(item)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut made =
            if texts.is_empty() { Vec::new() } else { self.vectors(&texts, Some(TextKind::Item)).await? }.into_iter();
        Ok(known.into_iter().map(|vector| vector.unwrap_or_else(|| made.next().unwrap_or_default())).collect())
    }
}

/// Error for a background task that panicked or was shut down.
pub(super) fn worker_lost(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::device("a background task ended without a result").because(error)
}
