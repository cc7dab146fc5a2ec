//! Generations come to be here: the items of the one that is served, or of a data folder, meet a model. Written aside and
//! whole; who searches notices nothing.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::generation::{Canary, Record, gone};
use super::place::Taker;
use super::settings::SearchSettings;
use crate::index::{Index, IndexSettings, Live, Snapshot};
use souk_io::atomic_dir::sync_one;
use souk_io::beir::DataFolder;
use souk_io::domain::{Item, TextKind};
use souk_io::error::{Error, Result};
use souk_nn::backbone::hub;
use souk_nn::encoder::{Encoder, Worker, encode};

/// Opens the model at a path, ready to search with.
pub type Models = Arc<dyn Fn(&str) -> Result<Encoder> + Send + Sync>;

/// Where vectors that were made ahead lie, in the model's folder.
const MADE: &str = "index";
const NUM_CANARIES: usize = 8;
const RECALL_QUERIES: usize = 64;
const RECALL_K: usize = 10;
const MAX_WORDS: usize = 6;
const PAGE: usize = 1000;

/// A build that goes on.
#[derive(Default, Debug, Serialize)]
pub struct Building {
    pub version: String,
    pub done: AtomicU64,
    pub of: AtomicU64,
}

/// Where the items come from.
pub enum Source {
    Data(DataFolder),
    /// What an index holds, as it stands in the journal at this change at least; its vectors are used where the model is
    /// the same.
    Index {
        index: Arc<dyn Index>,
        catalogue: u64,
        same_model: bool,
        /// Vectors that the model has made ahead, for as many items as are still the same.
        made: Option<Box<Live>>,
    },
}

/// A model that was opened.
pub struct Model {
    pub worker: Arc<Worker>,
    pub fingerprint: String,
    pub dimensions: i64,
}

impl Model {
    pub fn open(models: &Models, path: &str, limits: souk_nn::encoder::Limits) -> Result<Self> {
        let encoder = models(path)?;
        let (fingerprint, dimensions) = (encoder.fingerprint()?, encoder.dimensions());
        Ok(Self { worker: Arc::new(Worker::start(encoder, limits)?), fingerprint, dimensions })
    }
}

/// Does what takes long on a thread of its own that lets all others go first: who searches must not feel it.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (runtime, (give, given)) = (Handle::current(), oneshot::channel());
    let run = move || {
        let _runtime = runtime.enter();
        souk_native::step_back();
        // who no longer waits does not want it
        drop(give.send(work()));
    };
    let started = thread::Builder::new().name("build".into()).spawn(run);
    started.map_err(|e| Error::device("no thread can be started to build on").because(e))?;
    given.await.map_err(gone)?
}

/// What a build is told beside: how, and where to say how far it is.
pub type Told<'a> = (&'a SearchSettings, &'a IndexSettings, &'a Building);

/// Builds what `record` names in `dir`, and gives it whole, or leaves nothing of it. Blocks for as long as it takes.
pub fn build(dir: &Path, record: Record, model: &Model, source: &Source, told: Told<'_>) -> Result<Record> {
    std::fs::create_dir_all(dir).map_err(Error::store(dir, "make the folder"))?;
    let out = dir.join(&record.snapshot);
    let built = build_whole(dir, record, model, source, told);
    if built.is_err() {
        // there may be none yet
        drop(std::fs::remove_dir_all(out));
    }
    built
}

fn build_whole(
    dir: &Path,
    mut record: Record,
    model: &Model,
    source: &Source,
    (settings, index, building): Told<'_>,
) -> Result<Record> {
    let mut making =
        Making { taker: Taker::open(dir, &record, model, (settings, index))?, canaries: Vec::new(), building };
    match source {
        Source::Data(data) => from_data(data, model, &mut making)?,
        Source::Index { index, catalogue, same_model, made } => {
            record.catalogue = *catalogue;
            from_index(&**index, (!same_model).then_some((model, made.as_deref())), &mut making)?;
        }
    }
    let embedded = matches!(making.taker, Taker::Embedded(_));
    making.taker.finish()?;
    let mut canaries = making.canaries;
    if embedded {
        let out = dir.join(&record.snapshot);
        let snapshot = Snapshot::open(&out, &model.fingerprint, model.dimensions)?;
        if let Some(options) = settings.lexical {
            Live::add_lexical(&out, &snapshot, options)?;
        }
        canaries = snapshot.sample(NUM_CANARIES)?.into_iter().map(|(item, _)| item.passage()).collect();
        record.recall = Some(check_recall(&snapshot, model, settings)?);
    }
    let canaries = vectors(canaries, TextKind::Item, model)?;
    record.canaries = canaries.into_iter().map(|(text, vector)| Canary { text, vector }).collect();
    record.save(dir)?;
    // the pointer that will name it is synced as well
    dir.parent().map_or(Ok(()), sync_one)?;
    Ok(record)
}

/// A generation on its way.
struct Making<'a> {
    taker: Taker,
    /// The texts of the first items.
    canaries: Vec<String>,
    building: &'a Building,
}

impl Making<'_> {
    fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
        if self.canaries.len() < NUM_CANARIES {
            self.canaries.push(item.passage());
        }
        self.building.done.fetch_add(1, Ordering::Relaxed);
        self.taker.add(item, vector)
    }
}

fn from_data(data: &DataFolder, model: &Model, making: &mut Making<'_>) -> Result<()> {
    let mut num = 0;
    for item in data.items()? {
        item?;
        num += 1;
    }
    making.building.of.store(num, Ordering::Relaxed);
    let corpus = data.corpus();
    let place = |(line, item): &(u64, Item)| format!("{}, line {line}, item `{}`", corpus.display(), item.id);
    let passage = |(_, item): &(u64, Item)| item.passage();
    encode(&model.worker, Some(TextKind::Item), data.items()?, (passage, place), |(_, item), vector| {
        making.add(item, &vector)
    })
}

/// What `souk index` has made of a model ahead of time, in the folder `index` inside the model's own; nothing where there is none
/// or it is another model's.
pub fn made_ahead(path: &str, model: &Model) -> Result<Option<Box<Live>>> {
    let dir = hub::resolve(path)?.join(MADE);
    if !dir.exists() {
        return Ok(None);
    }
    match Live::open(&dir, &model.fingerprint, model.dimensions) {
        Ok(made) => Ok(Some(Box::new(made))),
        Err(error) => {
            tracing::warn!(?error, "what was made ahead is of no use: every item is encoded");
            Ok(None)
        }
    }
}

/// With the vectors as they are, or with those of a model.
fn from_index(index: &dyn Index, model: Option<(&Model, Option<&Live>)>, making: &mut Making<'_>) -> Result<()> {
    let runtime = Handle::current();
    making.building.of.store(runtime.block_on(index.num_items())? as u64, Ordering::Relaxed);
    let (mut after, mut seen): (Option<String>, HashSet<String>) = (None, HashSet::new());
    loop {
        let page = runtime.block_on(index.page(after.as_deref(), PAGE))?;
        // an item that changes meanwhile comes again, and is taken from the journal later
        let items = page.items.into_iter().filter(|(item, _)| seen.insert(item.id.clone()));
        let mut add = |(item, vector): (Item, Vec<f32>)| making.add(item, &vector);
        match model {
            None => items.into_iter().try_for_each(&mut add)?,
            Some((model, made)) => {
                let items: Vec<Item> = items.map(|(item, _)| item).collect();
                let known = |item: &Item| made.map_or(Ok(None), |made| made.vector_of(item));
                let known: Vec<Option<&[f32]>> = items.iter().map(known).collect::<Result<_>>()?;
                let missing = items.iter().zip(&known).filter(|(_, known)| known.is_none());
                let of = (|item: &&Item| item.passage(), |item: &&Item| format!("item `{}`", item.id));
                let mut encoded = Vec::new();
                encode(&model.worker, Some(TextKind::Item), missing.map(|(item, _)| Ok(item)), of, |_, vector| {
                    encoded.push(vector);
                    Ok::<(), Error>(())
                })?;
                // in the order of the catalogue, which decides between items that are as near
                let mut encoded = encoded.into_iter();
                let short = || Error::device("the encoder gave fewer vectors than it was given items");
                let mut vectors = Vec::with_capacity(items.len());
                for known in known {
                    vectors.push(match known {
                        Some(known) => known.to_vec(),
                        None => encoded.next().ok_or_else(short)?,
                    });
                }
                items.into_iter().zip(vectors).try_for_each(&mut add)?;
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Of searches for some of the words of items, which is what shoppers say.
fn check_recall(snapshot: &Snapshot, model: &Model, settings: &SearchSettings) -> Result<f64> {
    let begun = |item: Item| {
        let passage = item.passage();
        let words: Vec<&str> = passage.split_whitespace().collect();
        words[..words.len().div_ceil(2).min(MAX_WORDS)].join(" ")
    };
    let texts: Vec<String> = snapshot.sample(RECALL_QUERIES)?.into_iter().map(|(item, _)| begun(item)).collect();
    let queries: Vec<Vec<f32>> =
        vectors(texts, TextKind::Query, model)?.into_iter().map(|(_, vector)| vector).collect();
    let recall = snapshot.recall(&queries, RECALL_K)?;
    if recall < settings.min_recall {
        let problem = format!(
            "the new index finds {recall:.3} of the nearest, and {} is wanted: raise index.links or index.build_reach",
            settings.min_recall
        );
        return Err(Error::config("search.min_recall", problem));
    }
    Ok(recall)
}

fn vectors(texts: Vec<String>, kind: TextKind, model: &Model) -> Result<Vec<(String, Vec<f32>)>> {
    let mut made = Vec::new();
    let of = (String::clone, |text: &String| format!("{text:?}"));
    encode(&model.worker, Some(kind), texts.into_iter().map(Ok), of, |text, vector| {
        made.push((text, vector));
        Ok::<(), Error>(())
    })?;
    Ok(made)
}
