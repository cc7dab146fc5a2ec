//! A model and an index that it made, opened as one. It says of itself how far in the journal it is; what it misses it
//! takes from there, with vectors of its own model.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc};

use super::place::Held;
use super::settings::SearchSettings;
use crate::index::{Change, Index, JournalReader};
use souk_cache::Cache;
use souk_io::atomic_dir::write_whole;
use souk_io::domain::TextKind;
use souk_io::error::{Error, Result};
use souk_io::telemetry::SEARCH;
use souk_nn::encoder::{Text, Worker};

const RECORD: &str = "generation.json";
/// Calls of the journal that may wait to be applied.
const AHEAD: usize = 16;

/// What a generation is, in its folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub generation: String,
    pub version: String,
    /// Where the model is.
    pub path: String,
    /// The model's fingerprint, and the entries of a vector.
    pub model: String,
    pub dimensions: i64,
    /// The snapshot's folder.
    pub snapshot: String,
    /// The last change to the catalogue that the snapshot knows.
    pub catalogue: u64,
    /// Texts whose vectors are known: a model that gives others is not the one that made the index.
    pub canaries: Vec<Canary>,
    /// The share of the nearest that a search found when the index was built; of a server it is not measured.
    pub recall: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    pub text: String,
    pub vector: Vec<f32>,
}

impl Record {
    /// Nothing where the folder holds no generation, as one whose build was interrupted.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(RECORD);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::store(&path, "read it")(error)),
        };
        let broken = |e| Error::data(&path, None, "is no generation: remove its folder").because(e);
        serde_json::from_slice(&text).map(Some).map_err(broken)
    }

    pub fn save(&self, dir: &Path) -> Result<()> {
        write_whole(&dir.join(RECORD), self)
    }
}

pub struct Generation {
    record: Record,
    worker: Arc<Worker>,
    held: Held,
    index: Arc<dyn Index>,
    cache: Arc<dyn Cache>,
    cache_away: AtomicBool,
    /// The last change that the index knows.
    applied: AtomicU64,
    catching_up: Mutex<()>,
}

impl Generation {
    /// Opens the generation in `dir` for the model that `worker` runs.
    pub fn open(
        dir: &Path,
        record: Record,
        (worker, model): (Arc<Worker>, &str),
        cache: Arc<dyn Cache>,
        settings: &SearchSettings,
    ) -> Result<Self> {
        if record.model != model {
            let problem = format!(
                "generation `{}` is of model {}, but {} holds model {model}: put the model back that was there, or register this one under another name",
                record.generation, record.model, record.path
            );
            return Err(Error::data(&dir.join(RECORD), None, problem));
        }
        let held = Held::open(dir, &record, settings)?;
        let (index, applied, cache_away) = (held.index(), AtomicU64::new(record.catalogue), AtomicBool::new(false));
        let generation =
            Self { record, worker, held, index, cache, cache_away, applied, catching_up: Mutex::default() };
        generation.check_canaries(settings.canary_tolerance)?;
        Ok(generation)
    }

    fn check_canaries(&self, tolerance: f32) -> Result<()> {
        let canaries = &self.record.canaries;
        let texts = canaries.iter().map(|canary| self.worker.reader().read(&canary.text, Some(TextKind::Item)));
        let reply = self.worker.submit_in_turn(texts.collect::<Result<_>>()?)?;
        let vectors = reply.blocking_recv().map_err(gone)??;
        for (canary, vector) in canaries.iter().zip(vectors) {
            let apart: f32 = canary.vector.iter().zip(&vector).map(|(a, b)| (a - b).powi(2)).sum();
            let length: f32 = canary.vector.iter().map(|x| x * x).sum();
            let apart = (apart / length.max(f32::MIN_POSITIVE)).sqrt();
            if vector.len() != canary.vector.len() || apart.is_nan() || apart > tolerance {
                let problem = format!(
                    "model {} of version `{}` gives another vector for {:?} than when generation `{}` was built \
                     (apart by {apart:.4} of its length, {tolerance} is allowed): put back the library or the precision \
                     that built it, or register the model under another name, which builds another index",
                    self.record.model, self.record.version, canary.text, self.record.generation
                );
                return Err(Error::config("search.canary_tolerance", problem));
            }
        }
        Ok(())
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    pub fn index(&self) -> &dyn Index {
        &*self.index
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    pub(super) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// The last change to the catalogue that a search knows.
    pub fn catalogue(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// The vectors of texts, from the cache where it has them. A cache that fails costs time, not an answer.
    pub async fn vectors(&self, texts: &[&str], kind: Option<TextKind>) -> Result<Vec<Vec<f32>>> {
        let keys: Vec<Vec<u8>> = texts.iter().map(|text| self.key(text, kind)).collect();
        let answer = self.cache.get_many(&keys).await;
        self.say_once(answer.as_ref().err());
        let known = answer.unwrap_or_else(|_| vec![None; keys.len()]);
        let mut vectors: Vec<Option<Vec<f32>>> = known.iter().map(|value| self.cached(value.as_deref()?)).collect();
        let missing: Vec<usize> = (0..texts.len()).filter(|at| vectors[*at].is_none()).collect();
        SEARCH.cached(texts.len() - missing.len(), missing.len());
        if !missing.is_empty() {
            let made = self.encode(missing.iter().map(|at| texts[*at].to_owned()).collect(), kind).await?;
            let bytes = |vector: &[f32]| vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into();
            let entries: Vec<_> =
                missing.iter().zip(&made).map(|(at, vector)| (keys[*at].clone(), bytes(vector))).collect();
            if let Err(error) = self.cache.put_many(&entries).await {
                tracing::debug!(?error, "the cache does not take");
            }
            for (at, vector) in missing.into_iter().zip(made) {
                vectors[at] = Some(vector);
            }
        }
        Ok(vectors.into_iter().flatten().collect())
    }

    /// That the cache went away, and that it came back: not for each request in between.
    fn say_once(&self, problem: Option<&Error>) {
        match (problem, self.cache_away.swap(problem.is_some(), Ordering::Relaxed)) {
            (Some(error), false) => {
                tracing::warn!(?error, "the cache does not answer: every query is encoded until it does");
            }
            (None, true) => tracing::info!("the cache answers again"),
            _ => {}
        }
    }

    /// The vectors of texts, made now.
    #[tracing::instrument(level = "info", name = "encode", skip_all, fields(texts = texts.len()))]
    pub(super) async fn encode(&self, texts: Vec<String>, kind: Option<TextKind>) -> Result<Vec<Vec<f32>>> {
        // room comes first, so that nobody tokenizes for a full queue
        let places = self.worker.reserve(texts.len())?;
        let worker = self.worker.clone();
        let read = move || {
            let named =
                |at: usize, e| Error::input(format!("text {} of {} cannot be read", at + 1, texts.len())).because(e);
            let read = |(at, text): (usize, &String)| worker.reader().read(text, kind).map_err(|e| named(at, e));
            texts.iter().enumerate().map(read).collect::<Result<Vec<Text>>>()
        };
        let texts = tokio::task::spawn_blocking(read).await.map_err(gone)??;
        self.worker.submit_into(places, texts)?.await.map_err(gone)?
    }

    /// The vector of a text, made now whatever the cache knows.
    pub async fn probe(&self, text: &str, kind: TextKind) -> Result<Vec<f32>> {
        Ok(self.encode(vec![text.to_owned()], Some(kind)).await?.pop().unwrap_or_default())
    }

    /// The tokens that the model reads of texts, all together.
    pub fn num_tokens(&self, texts: &[&str], kind: Option<TextKind>) -> Result<usize> {
        texts.iter().map(|text| Ok(self.worker.reader().read(text, kind)?.ids.len())).sum()
    }

    /// The first text that is too long to be read whole.
    pub fn first_cut(&self, texts: &[&str], kind: Option<TextKind>) -> Result<Option<usize>> {
        for (at, text) in texts.iter().enumerate() {
            if self.worker.reader().cuts(text, kind)? {
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

    fn cached(&self, bytes: &[u8]) -> Option<Vec<f32>> {
        let whole = bytes.len() == self.record.dimensions as usize * 4;
        whole.then(|| bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect())
    }

    /// Makes changes that are in the journal up to `last`, which follow what the index knows.
    pub(super) async fn apply(&self, changes: &[Change], last: u64) -> Result<usize> {
        let there = self.index.apply(changes).await?;
        self.applied.store(last, Ordering::Release);
        Ok(there)
    }

    /// Takes from the journal what the index misses.
    pub(super) async fn catch_up(&self, journal: JournalReader) -> Result<()> {
        let _alone = self.catching_up.lock().await;
        let (after, last) = (self.catalogue(), journal.last());
        if after >= last {
            return Ok(());
        }
        let (give, mut calls) = mpsc::channel::<(String, Vec<Change>)>(AHEAD);
        let read = tokio::task::spawn_blocking(move || {
            journal.replay(after, &mut |model, changes| {
                // who no longer listens has failed, and says so
                drop(give.blocking_send((model.to_owned(), changes)));
                Ok(())
            })
        });
        let mut known = after;
        while let Some((model, changes)) = calls.recv().await {
            let changes = if model == self.record.model { changes } else { self.renewed(changes).await? };
            known += changes.len() as u64;
            self.apply(&changes, known).await?;
        }
        read.await.map_err(gone)??;
        Ok(())
    }

    /// The same changes with vectors of this model.
    async fn renewed(&self, changes: Vec<Change>) -> Result<Vec<Change>> {
        let passages: Vec<String> = changes.iter().filter_map(Change::item).map(|item| item.passage()).collect();
        let mut vectors = self.encode(passages, Some(TextKind::Item)).await?.into_iter();
        let renew = |change| match change {
            Change::Put(item, _) => Change::Put(item, vectors.next().unwrap_or_default()),
            delete => delete,
        };
        Ok(changes.into_iter().map(renew).collect())
    }
}

/// Work that ended without an answer, by a panic or because the process ends.
pub(super) fn gone(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::device("what was begun has ended without an answer").because(error)
}
