//! Builds a generation's index from a data folder or from the served items. Written completely before it is used;
//! searches do not slow down.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::backend::IndexWriter;
use super::generation::worker_lost;
use super::model::LoadedModel;
use super::record::{Canary, GenerationRecord};
use super::settings::SearchSettings;
use crate::index::{Index, IndexSettings, Live, Snapshot};
use souk_io::atomic_dir::{create_folder, fsync};
use souk_io::beir::DataFolder;
use souk_io::domain::{Item, TextKind};
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_nn::backbone::hub;
use souk_nn::encoder::encode;

/// Subfolder of the model with a prebuilt index.
const PREBUILT: &str = "index";
const NUM_CANARIES: usize = 8;
const RECALL_QUERIES: usize = 256;
const RECALL_K: usize = 10;
/// The setting that a recall is compared with.
const MIN_RECALL: &str = "search.min_recall";
const MAX_WORDS: usize = 6;
const PAGE: usize = 1000;

/// Progress of a build.
#[derive(Default, Debug, Serialize)]
pub struct BuildProgress {
    pub version: String,
    pub done: AtomicU64,
    pub of: AtomicU64,
}

/// Source of the items.
pub enum ItemSource {
    Data(DataFolder),
    /// An index that includes the journal up to `catalogue` at least; its vectors are reused if the model is the same.
    Index {
        index: Arc<dyn Index>,
        catalogue: u64,
        same_model: bool,
        /// Prebuilt vectors of the new model, used for items whose text is unchanged.
        prebuilt: Option<Box<Live>>,
    },
}

/// Runs long work on a low-priority thread, so that searches do not slow down.
pub async fn run_in_background<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (runtime, (sender, receiver)) = (Handle::current(), oneshot::channel());
    let run = move || {
        let _runtime = runtime.enter();
        souk_native::step_back();
        // the caller may have stopped waiting
        drop(sender.send(work()));
    };
    let started = thread::Builder::new().name("build".into()).spawn(run);
    started.map_err(|e| Error::device("cannot start the build thread").because(e))?;
    receiver.await.map_err(worker_lost)?
}

/// Settings of a build, and where it reports its progress.
#[derive(Clone, Copy)]
pub struct BuildContext<'a> {
    pub settings: &'a SearchSettings,
    pub index: &'a IndexSettings,
    pub progress: &'a BuildProgress,
}

/// Builds what `record` names in `dir`; on failure, leaves nothing behind. Blocks until done.
pub fn build(
    dir: &Path,
    record: GenerationRecord,
    model: &LoadedModel,
    source: &ItemSource,
    context: BuildContext<'_>,
) -> Result<GenerationRecord> {
    create_folder(dir)?;
    let out = dir.join(&record.snapshot);
    let built = build_inner(dir, record, model, source, context);
    if built.is_err() {
        // the folder may not exist yet
        drop(std::fs::remove_dir_all(out));
    }
    built
}

fn build_inner(
    dir: &Path,
    mut record: GenerationRecord,
    model: &LoadedModel,
    source: &ItemSource,
    context: BuildContext<'_>,
) -> Result<GenerationRecord> {
    let BuildContext { settings, index, progress } = context;
    let writer = IndexWriter::open(dir, &record, model, settings, index)?;
    let mut output = BuildOutput { writer, canaries: Vec::new(), progress, item_text: model.item_text() };
    match source {
        ItemSource::Data(data) => from_data(data, model, &mut output)?,
        ItemSource::Index { index, catalogue, same_model, prebuilt } => {
            record.catalogue = *catalogue;
            from_index(&**index, (!same_model).then_some((model, prebuilt.as_deref())), &mut output)?;
        }
    }
    let is_embedded = matches!(output.writer, IndexWriter::Embedded(_));
    output.writer.finish()?;
    let mut canaries = output.canaries;
    if is_embedded {
        let out = dir.join(&record.snapshot);
        let snapshot = Snapshot::open(&out, &model.fingerprint, model.dimensions)?;
        if let Some(options) = settings.lexical {
            Live::add_lexical(&out, &snapshot, options, model.item_text())?;
        }
        let sample = snapshot.sample(NUM_CANARIES)?.into_iter();
        canaries = sample.map(|(item, _)| model.item_text().render(&item)).collect();
        record.recall = Some(check_recall(&snapshot, model, settings)?);
        record.base_ef = Some(snapshot.base_ef());
    }
    let canaries = vectors(canaries, TextKind::Item, model)?;
    record.canaries = canaries.into_iter().map(|(text, vector)| Canary { text, vector }).collect();
    record.save(dir)?;
    // sync the new folder before a pointer names it
    dir.parent().map_or(Ok(()), fsync)?;
    Ok(record)
}

/// Items written so far.
struct BuildOutput<'a> {
    writer: IndexWriter,
    /// Texts of the first items.
    canaries: Vec<String>,
    progress: &'a BuildProgress,
    item_text: &'a ItemText,
}

impl BuildOutput<'_> {
    fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
        if self.canaries.len() < NUM_CANARIES {
            self.canaries.push(self.item_text.render(&item));
        }
        self.progress.done.fetch_add(1, Ordering::Relaxed);
        self.writer.add(item, vector)
    }
}

fn from_data(data: &DataFolder, model: &LoadedModel, output: &mut BuildOutput<'_>) -> Result<()> {
    let mut num = 0;
    for item in data.items()? {
        item?;
        num += 1;
    }
    output.progress.of.store(num, Ordering::Relaxed);
    let corpus = data.corpus();
    let place = |(line, item): &(u64, Item)| format!("{}, line {line}, item `{}`", corpus.display(), item.id);
    let text = |(_, item): &(u64, Item)| model.item_text().render(item);
    encode(&model.worker, Some(TextKind::Item), data.items()?, (text, place), |(_, item), vector| {
        output.add(item, &vector)
    })
}

/// Opens the index that `souk index` prebuilt in the folder `index` of the model; None if there is none or another
/// model made it.
pub fn prebuilt_index(path: &str, model: &LoadedModel) -> Result<Option<Box<Live>>> {
    let dir = hub::resolve(path)?.join(PREBUILT);
    if !dir.exists() {
        return Ok(None);
    }
    match Live::open(&dir, &model.fingerprint, model.dimensions, model.item_text()) {
        Ok(index) => Ok(Some(Box::new(index))),
        Err(error) => {
            tracing::warn!(?error, "cannot use the prebuilt index: every item is encoded");
            Ok(None)
        }
    }
}

/// Copies the items, with their vectors or with vectors of the given model.
fn from_index(
    index: &dyn Index,
    model: Option<(&LoadedModel, Option<&Live>)>,
    output: &mut BuildOutput<'_>,
) -> Result<()> {
    let runtime = Handle::current();
    output.progress.of.store(runtime.block_on(index.num_items())? as u64, Ordering::Relaxed);
    let (mut after, mut seen): (Option<String>, HashSet<String>) = (None, HashSet::new());
    loop {
        let page = runtime.block_on(index.page(after.as_deref(), PAGE))?;
        // a changed item can appear twice; its latest state comes from the journal
        let items = page.items.into_iter().filter(|(item, _)| seen.insert(item.id.clone()));
        let mut add = |(item, vector): (Item, Vec<f32>)| output.add(item, &vector);
        match model {
            None => items.into_iter().try_for_each(&mut add)?,
            Some((model, prebuilt)) => {
                let items: Vec<Item> = items.map(|(item, _)| item).collect();
                let known = |item: &Item| prebuilt.map_or(Ok(None), |prebuilt| prebuilt.vector_of(item));
                let known: Vec<Option<&[f32]>> = items.iter().map(known).collect::<Result<_>>()?;
                let missing = items.iter().zip(&known).filter(|(_, known)| known.is_none());
                let of = (|item: &&Item| model.item_text().render(item), |item: &&Item| format!("item `{}`", item.id));
                let mut encoded = Vec::new();
                encode(&model.worker, Some(TextKind::Item), missing.map(|(item, _)| Ok(item)), of, |_, vector| {
                    encoded.push(vector);
                    Ok::<(), Error>(())
                })?;
                // keep the catalogue order, which breaks ties
                let mut encoded = encoded.into_iter();
                let short = || Error::device("the encoder returned fewer vectors than items");
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

/// Makes searches as wide as `search.recall` needs, with the first words of items as queries, which resemble what shoppers type.
fn check_recall(snapshot: &Snapshot, model: &LoadedModel, settings: &SearchSettings) -> Result<f64> {
    let first_words = |item: Item| {
        let text = model.item_text().render(&item);
        let words: Vec<&str> = text.split_whitespace().collect();
        words[..words.len().div_ceil(2).min(MAX_WORDS)].join(" ")
    };
    let texts: Vec<String> = snapshot.sample(RECALL_QUERIES)?.into_iter().map(|(item, _)| first_words(item)).collect();
    let queries: Vec<Vec<f32>> =
        vectors(texts, TextKind::Query, model)?.into_iter().map(|(_, vector)| vector).collect();
    let recall = snapshot.hold_recall(&queries, RECALL_K, settings.recall)?;
    if recall < settings.min_recall {
        let problem = format!(
            "the new index has recall {recall:.3}, below the required {}: raise index.links or index.build_reach",
            settings.min_recall
        );
        return Err(Error::config(MIN_RECALL, problem));
    }
    Ok(recall)
}

/// Whether a build failed because the new index finds too little.
pub fn is_low_recall(error: &Error) -> bool {
    matches!(error, Error::Config { place, .. } if place == MIN_RECALL)
}

fn vectors(texts: Vec<String>, kind: TextKind, model: &LoadedModel) -> Result<Vec<(String, Vec<f32>)>> {
    let mut made = Vec::new();
    let of = (String::clone, |text: &String| format!("{text:?}"));
    encode(&model.worker, Some(kind), texts.into_iter().map(Ok), of, |text, vector| {
        made.push((text, vector));
        Ok::<(), Error>(())
    })?;
    Ok(made)
}
