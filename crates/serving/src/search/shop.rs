//! What is served: one generation at a time, the journal of changes to its items, and the folder where both are. A change
//! is on disk before it is answered for and is found by the next search; another generation is built beside and takes the
//! place of the first at once, with every change that came meanwhile.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;

use super::build::{Building, Model, Source, aside, build, made_ahead};
use super::folder::{Parts, remove_others, snapshot_name};
use super::generation::{Generation, Record, gone};
use super::place::announce;
use super::settings::SearchSettings;
use crate::index::{Change, Journal};
use souk_io::beir::DataFolder;
use souk_io::domain::{Item, TextKind};
use souk_io::error::{Error, Result};
use souk_io::telemetry::SEARCH;

/// Generations that stay on disk, and open, to go back to or to compare with.
const KEPT: usize = 3;
/// Fewer changes are not worth a rebuild.
const MIN_CHANGED: u64 = 1000;

/// What shall become of an item.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    Put(Item),
    Delete(String),
}

/// What became of wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// Items that were there before.
    pub there: usize,
    /// The number of the last change.
    pub catalogue: u64,
}

pub struct Shop {
    parts: Parts,
    served: RwLock<Arc<Generation>>,
    /// Others that are open, the one used last at the end.
    beside: Mutex<Vec<Arc<Generation>>>,
    journal: Arc<AsyncMutex<Journal>>,
    /// One build at a time, of any kind.
    at_work: AsyncMutex<()>,
    /// One version is opened at a time, and none while what is not kept is removed.
    opening: AsyncMutex<()>,
    building: Mutex<Option<Arc<Building>>>,
    /// The change that the record on disk of what is served was last noted to know.
    noted: AtomicU64,
    _lock: File,
}

impl Shop {
    /// Opens what was served last, with all changes; where nothing was, indexes the data folder with the model at `path`.
    /// `told` hears how a first build goes on. Blocks; needs a runtime around it.
    pub fn open(parts: Parts, (version, path): (&str, &str), told: impl FnOnce(Arc<Building>)) -> Result<Self> {
        let lock = parts.lock()?;
        let (journal, generation) = match parts.last_served()? {
            Some((dir, record)) => {
                let journal = Journal::open(&parts.journal(), record.catalogue)?;
                (journal, parts.open_with_model(&dir, record)?)
            }
            None => {
                let missing = || Error::config("search.data", "names no data folder, and nothing was indexed before");
                let data = DataFolder::open(parts.settings.data.as_deref().ok_or_else(missing)?)?;
                let journal = Journal::open(&parts.journal(), 0)?;
                let building = Arc::new(Building { version: version.into(), ..Building::default() });
                told(building.clone());
                let model = Model::open(&parts.models, path, parts.limits)?;
                // a journal that is there changed these items: it is what follows
                let source = (Source::Data(data), journal.forgotten());
                let (dir, record) = parts.first((version, path), &model, &source, &building)?;
                (journal, parts.open(&dir, record, &model)?)
            }
        };
        Handle::current().block_on(generation.catch_up(journal.reader()))?;
        parts.point_to(generation.record())?;
        Handle::current().block_on(announce(generation.record(), &parts.settings))?;
        let noted = generation.record().catalogue;
        let shop = Self {
            parts,
            served: RwLock::new(Arc::new(generation)),
            beside: Mutex::default(),
            journal: Arc::new(AsyncMutex::new(journal)),
            at_work: AsyncMutex::default(),
            opening: AsyncMutex::default(),
            building: Mutex::default(),
            noted: AtomicU64::new(noted),
            _lock: lock,
        };
        let last = Handle::current().block_on(shop.journal.lock()).last();
        shop.clean_up(last)?;
        Ok(shop)
    }

    pub fn settings(&self) -> &SearchSettings {
        &self.parts.settings
    }

    /// The generation that is searched; a request goes through with the one that it began with.
    pub fn served(&self) -> Arc<Generation> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The build that goes on, if any.
    pub fn building(&self) -> Option<Arc<Building>> {
        unpoisoned(&self.building).clone()
    }

    /// The versions that a search may name.
    pub fn open_versions(&self) -> Vec<String> {
        self.all_open().iter().map(|generation| generation.record().version.clone()).collect()
    }

    /// Makes all wishes come true, or none, in their order.
    pub async fn apply(&self, wishes: Vec<Wish>) -> Result<Applied> {
        loop {
            let generation = self.served();
            let changes = self.changes(&generation, &wishes).await?;
            let journal = self.journal.clone().lock_owned().await;
            // vectors must be of the model that is served when the change is written
            if !Arc::ptr_eq(&generation, &self.served()) {
                continue;
            }
            generation.catch_up(journal.reader()).await?;
            // what cannot be applied must not be written: it would be met again and again
            generation.index().takes(&changes)?;
            let (_journal, changes, last) = written(journal, generation.record().model.clone(), changes).await?;
            let there = generation.apply(&changes, last).await?;
            return Ok(Applied { there, catalogue: last });
        }
    }

    async fn changes(&self, generation: &Generation, wishes: &[Wish]) -> Result<Vec<Change>> {
        let passages = wishes.iter().filter_map(|wish| match wish {
            Wish::Put(item) => Some(item.passage()),
            Wish::Delete(_) => None,
        });
        let mut vectors = generation.encode(passages.collect(), Some(TextKind::Item)).await?.into_iter();
        let change = |wish: &Wish| match wish {
            Wish::Put(item) => Change::Put(item.clone(), vectors.next().unwrap_or_default()),
            Wish::Delete(id) => Change::Delete(id.clone()),
        };
        Ok(wishes.iter().map(change).collect())
    }

    /// Brings in what was written and, its caller gone, never applied.
    pub async fn catch_up(&self) -> Result<()> {
        let journal = self.journal.lock().await;
        self.served().catch_up(journal.reader()).await
    }

    /// A generation of a version, caught up: the served one, one that is open, or one that lies on disk. Who stops waiting
    /// stops nothing: what is being opened is there for the next who asks.
    pub async fn version(self: &Arc<Self>, version: &str) -> Result<Option<Arc<Generation>>> {
        let served = self.served();
        if served.record().version == version {
            return Ok(Some(served));
        }
        let generation = match self.open_beside(version) {
            Some(generation) => generation,
            None => {
                let (shop, version) = (self.clone(), version.to_owned());
                match tokio::spawn(async move { shop.opened(version).await }).await.map_err(gone)?? {
                    Some(generation) => generation,
                    None => return Ok(None),
                }
            }
        };
        let reader = self.journal.lock().await.reader();
        generation.catch_up(reader).await?;
        Ok(Some(generation))
    }

    /// One that is open; now it is the one used last.
    fn open_beside(&self, version: &str) -> Option<Arc<Generation>> {
        let mut beside = unpoisoned(&self.beside);
        let at = beside.iter().position(|open| open.record().version == version)?;
        let generation = beside.remove(at);
        beside.push(generation.clone());
        Some(generation)
    }

    /// Opens what lies on disk, unless another caller did meanwhile.
    async fn opened(self: Arc<Self>, version: String) -> Result<Option<Arc<Generation>>> {
        let shop = self.clone();
        let records = spawn_blocking(move || shop.parts.records()).await.map_err(gone)??;
        if !records.iter().any(|(_, record)| record.version == version) {
            return Ok(None);
        }
        let _alone = self.opening.lock().await;
        if let Some(generation) = self.open_beside(&version) {
            return Ok(Some(generation));
        }
        let shop = self.clone();
        let opened = spawn_blocking(move || shop.open_version(&version)).await.map_err(gone)??;
        Ok(opened.map(|generation| self.put_beside(Arc::new(generation))))
    }

    fn open_version(&self, version: &str) -> Result<Option<Generation>> {
        let records = self.parts.records()?;
        let Some((dir, record)) = records.into_iter().rev().find(|(_, record)| record.version == version) else {
            return Ok(None);
        };
        self.parts.open_with_model(&dir, record).map(Some)
    }

    fn put_beside(&self, generation: Arc<Generation>) -> Arc<Generation> {
        let mut beside = unpoisoned(&self.beside);
        beside.retain(|open| open.record().version != generation.record().version);
        beside.push(generation.clone());
        let surplus = beside.len().saturating_sub(KEPT - 1);
        beside.drain(..surplus);
        generation
    }

    /// The index of the served items with the model of a version, which is at `path` and has this fingerprint; built where
    /// there is none.
    pub async fn prepare(self: &Arc<Self>, version: &str, path: &str, model: &str) -> Result<Arc<Generation>> {
        let check = |found: &str, path: &str| match found == model {
            true => Ok(()),
            false => Err(Error::input(format!(
                "version `{version}` was registered as model {model}, but {path} holds model {found}: register that \
                 under another name"
            ))),
        };
        if let Some(generation) = self.version(version).await? {
            check(&generation.record().model, &generation.record().path)?;
            return Ok(generation);
        }
        let _alone = self.at_work.lock().await;
        let building = Arc::new(Building { version: version.into(), ..Building::default() });
        *unpoisoned(&self.building) = Some(building.clone());
        let build = async {
            // what takes long is not begun for another model
            let (shop, place) = (self.clone(), path.to_owned());
            check(&spawn_blocking(move || shop.fingerprint(&place)).await.map_err(gone)??, path)?;
            self.built((version, path), &building).await
        };
        let built = build.await;
        *unpoisoned(&self.building) = None;
        let (shop, (dir, record)) = (self.clone(), built?);
        let open = spawn_blocking(move || shop.parts.open_with_model(&dir, record));
        let generation = self.put_beside(Arc::new(open.await.map_err(gone)??));
        self.tidy().await?;
        Ok(generation)
    }

    async fn built(
        self: &Arc<Self>,
        (version, path): (&str, &str),
        building: &Arc<Building>,
    ) -> Result<(PathBuf, Record)> {
        let (served, catalogue) = self.caught_up(self.served()).await?;
        let (shop, building) = (self.clone(), building.clone());
        let (name, path) = (version.to_owned(), path.to_owned());
        aside(move || {
            // of its own, whose threads let others go first as well
            let model = Model::open(&shop.parts.models, &path, shop.parts.limits)?;
            let same_model = served.record().model == model.fingerprint;
            let made = if same_model { None } else { made_ahead(&path, &model)? };
            let source = Source::Index { index: served.held().index(), catalogue, same_model, made };
            shop.parts.first((&name, &path), &model, &(source, catalogue), &building)
        })
        .await
    }

    /// The generation, and the last change, which it knows.
    async fn caught_up(&self, generation: Arc<Generation>) -> Result<(Arc<Generation>, u64)> {
        let journal = self.journal.lock().await;
        generation.catch_up(journal.reader()).await?;
        Ok((generation, journal.last()))
    }

    /// From now on this version is searched; what it was not told of, it takes from the journal first.
    pub async fn swap(self: &Arc<Self>, version: &str) -> Result<()> {
        let missing = || Error::input(format!("version `{version}` has no index here: build it first"));
        let next = self.version(version).await?.ok_or_else(missing)?;
        self.take_over(next).await?;
        // a build that goes on will do it
        if let Ok(_alone) = self.at_work.try_lock()
            && let Err(error) = self.tidy().await
        {
            tracing::warn!(?error, "what is not kept could not be removed");
        }
        Ok(())
    }

    async fn take_over(&self, next: Arc<Generation>) -> Result<()> {
        // nothing is written meanwhile
        let journal = self.journal.lock().await;
        next.catch_up(journal.reader()).await?;
        self.parts.point_to(next.record())?;
        let before = {
            let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *served, next.clone())
        };
        drop(journal);
        unpoisoned(&self.beside).retain(|open| !Arc::ptr_eq(open, &next));
        if before.record().version != next.record().version {
            self.put_beside(before);
        }
        if let Err(error) = announce(next.record(), &self.parts.settings).await {
            // who goes by the alias is late; this service goes by the collection
            tracing::warn!(?error, "the alias could not be changed");
        }
        SEARCH.swaps.inc();
        Ok(())
    }

    /// The fingerprint of the model at a path. Blocks.
    pub fn fingerprint(&self, path: &str) -> Result<String> {
        (self.parts.models)(path)?.fingerprint()
    }

    /// Those that are open, the served one first.
    fn all_open(&self) -> Vec<Arc<Generation>> {
        let mut open = vec![self.served()];
        open.extend(unpoisoned(&self.beside).iter().cloned());
        open
    }

    /// What came lately is found faster afterwards.
    pub async fn tend(&self) -> Result<()> {
        let open = self.all_open();
        let tend = move || open.iter().filter_map(|generation| generation.held().live()).for_each(|live| live.tend());
        spawn_blocking(tend).await.map_err(gone)
    }

    pub fn num_changed(&self) -> usize {
        self.served().held().live().map_or(0, |live| live.num_changed())
    }

    /// What a server keeps need not be kept here: notes how far it is, and lets go of the journal before that.
    pub async fn let_go(self: &Arc<Self>) -> Result<()> {
        let served = self.served();
        let (known, noted) = (served.catalogue(), self.noted.load(Ordering::Relaxed));
        if served.held().live().is_some() || known < noted + MIN_CHANGED {
            return Ok(());
        }
        let shop = self.clone();
        let noting = spawn_blocking(move || {
            let dir = shop.parts.dir(&served.record().generation);
            Record { catalogue: known, ..served.record().clone() }.save(&dir)?;
            Ok::<u64, Error>(shop.parts.records()?.iter().map(|(_, record)| record.catalogue).min().unwrap_or(0))
        });
        let forget_before = noting.await.map_err(gone)??;
        self.noted.store(known, Ordering::Relaxed);
        self.journal.lock().await.forget(forget_before)
    }

    /// One that is open and of which so much has changed that a new snapshot would be searched faster.
    async fn worn(&self) -> Option<Arc<Generation>> {
        let last = self.journal.lock().await.last();
        let share = self.parts.settings.rebuild_share;
        self.all_open().into_iter().find(|generation| {
            generation.held().live().is_some_and(|live| {
                let least = (live.snapshot().num_items() as f64 * share) as u64;
                let changed = (live.num_changed() as u64).max(last.saturating_sub(generation.catalogue()));
                changed >= least.max(MIN_CHANGED) && !live.is_empty()
            })
        })
    }

    /// Makes a new snapshot of a generation that needs one, with all changes in it, and lets go of what nobody needs any more.
    /// Whether there was one.
    pub async fn renew(self: &Arc<Self>) -> Result<bool> {
        let _alone = self.at_work.lock().await;
        let Some(old) = self.worn().await else { return Ok(false) };
        let (old, catalogue) = self.caught_up(old).await?;
        let (shop, from) = (self.clone(), old.clone());
        let built = aside(move || {
            let record = Record { snapshot: snapshot_name(catalogue), ..from.record().clone() };
            let dir = shop.parts.dir(&record.generation);
            let (fingerprint, dimensions) = (record.model.clone(), record.dimensions);
            let model = Model { worker: from.worker().clone(), fingerprint, dimensions };
            let source = Source::Index { index: from.held().index(), catalogue, same_model: true, made: None };
            let Parts { settings, index, .. } = &shop.parts;
            let record = build(&dir, record, &model, &source, (settings, index, &Building::default()))?;
            shop.parts.open(&dir, record, &model)
        });
        let next = Arc::new(built.await?);
        let reader = self.journal.lock().await.reader();
        next.catch_up(reader).await?;
        if Arc::ptr_eq(&old, &self.served()) {
            self.take_over(next).await?;
        } else {
            self.put_beside(next);
        }
        self.tidy().await?;
        Ok(true)
    }

    /// Removes what no generation that is kept needs. Who calls it has `at_work`, for a build is no generation yet.
    async fn tidy(self: &Arc<Self>) -> Result<()> {
        let _opening = self.opening.lock().await;
        let last = self.journal.lock().await.last();
        let shop = self.clone();
        let forget_before = spawn_blocking(move || shop.clean_up(last)).await.map_err(gone)??;
        self.journal.lock().await.forget(forget_before)
    }

    /// Removes what no generation that is kept needs, and says which changes they all know. Those that are open are kept, and
    /// of the others the latest, unless building anew takes less than what they miss of the changes until `last`.
    fn clean_up(&self, last: u64) -> Result<u64> {
        let served = self.served();
        let open: Vec<String> = self.all_open().iter().map(|open| open.record().generation.clone()).collect();
        let is_open = |record: &Record| open.contains(&record.generation);
        let max_missed = Handle::current().block_on(served.index().num_items()).map_or(u64::MAX, |num| num as u64);
        let (mut kept, rest): (Vec<_>, Vec<_>) =
            self.parts.records()?.into_iter().partition(|(_, record)| is_open(record));
        for (dir, record) in rest.into_iter().rev() {
            if kept.len() < KEPT && last.saturating_sub(record.catalogue) < max_missed.max(MIN_CHANGED) {
                kept.push((dir, record));
                continue;
            }
            tracing::info!(generation = record.generation, "is not kept any longer");
            self.parts.remove(&dir)?;
        }
        for dir in self.parts.unfinished()? {
            self.parts.remove(&dir)?;
        }
        for (dir, record) in &kept {
            remove_others(dir, &record.snapshot)?;
        }
        Ok(kept.iter().map(|(_, record)| record.catalogue).min().unwrap_or(0))
    }
}

type Written = (OwnedMutexGuard<Journal>, Vec<Change>, u64);

/// Writes beside what else the runtime does; the journal stays held, even where nobody waits any longer.
async fn written(mut journal: OwnedMutexGuard<Journal>, model: String, changes: Vec<Change>) -> Result<Written> {
    let write = move || {
        let last = journal.append(&model, &changes)?;
        Ok((journal, changes, last))
    };
    spawn_blocking(write).await.map_err(gone)?
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
