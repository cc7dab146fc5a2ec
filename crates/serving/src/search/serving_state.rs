//! State of a search service: the served generation, standby generations, and the journal of catalogue changes, which
//! `follow` fills from the stream. A new generation is built in the background, catches up from the journal, and replaces
//! the served one in one step.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, RwLock as AsyncRwLock};
use tokio::task::spawn_blocking;

use super::backend::point_alias;
use super::build::{BuildContext, BuildProgress, ItemSource, build, is_low_recall, prebuilt_index, run_in_background};
use super::generation::{OpenGeneration, worker_lost};
use super::model::LoadedModel;
use super::record::GenerationRecord;
use super::service_deps::{BuildRequest, ServiceDeps, remove_others, snapshot_name};
use super::settings::SearchSettings;
use super::stream_position::StreamPosition;
use crate::index::Journal;
use souk_cache::Cache;
use souk_io::beir::DataFolder;
use souk_io::disk::missing_space;
use souk_io::error::{Error, Result};
use souk_io::telemetry::SEARCH;

/// Generations kept on disk and open, for rollback and comparison.
const NUM_KEPT_GENERATIONS: usize = 3;
/// Fewest changes that justify a rebuild.
const MIN_CHANGED: u64 = 1000;

pub struct ServingState {
    pub(super) deps: ServiceDeps,
    served: RwLock<Arc<OpenGeneration>>,
    /// Other open generations, least recently used first.
    standby: Mutex<Vec<Arc<OpenGeneration>>>,
    pub(super) journal: Arc<AsyncMutex<Journal>>,
    pub(super) position: StreamPosition,
    /// Ensures that one task follows the stream.
    pub(super) follow_lock: AsyncMutex<()>,
    /// Whether the stream was found to be the one that the journal is a copy of.
    pub(super) is_stream_known: AtomicBool,
    /// Allows one new generation at a time to be built.
    build_lock: AsyncMutex<()>,
    /// Allows one new snapshot at a time to be built.
    rebuild_lock: AsyncMutex<()>,
    /// Read-locked while something is built: its files look unused, and it needs the journal from where it began. Deleting files and
    /// trimming the journal need the write lock, and are left to the next build if it is taken.
    unfinished: AsyncRwLock<()>,
    /// Allows one version to be opened at a time, and none while unused generations are deleted.
    open_lock: AsyncMutex<()>,
    building: Mutex<Option<Arc<BuildProgress>>>,
    /// Last change in the served generation's record on disk.
    saved_catalogue: AtomicU64,
    _lock: File,
}

impl ServingState {
    /// Opens the generation that was served last and applies all changes; on the first start, begins with a backup, or indexes
    /// the data folder with the model at `path`. `on_build` gets the progress of that build. Blocks; needs a Tokio runtime.
    pub fn open(
        deps: ServiceDeps,
        version: &str,
        path: &str,
        on_build: impl FnOnce(Arc<BuildProgress>),
    ) -> Result<Self> {
        let lock = deps.lock()?;
        let begun = match deps.last_served()? {
            None => deps.begin_from_backup()?,
            served => served,
        };
        let (journal, generation) = match begun {
            Some((dir, record)) => {
                let journal = Journal::open(&deps.journal(), record.catalogue)?;
                (journal, deps.open_with_model(&dir, record)?)
            }
            None => {
                let problem = "is not set, and there is neither an index nor a backup yet: set it to a data folder";
                let missing = || Error::config("search.data", problem);
                let data = DataFolder::open(deps.settings.data.as_deref().ok_or_else(missing)?)?;
                // a copy of the stream, which is replayed from its start
                deps.remove_journal()?;
                let journal = Journal::open(&deps.journal(), 0)?;
                let building = Arc::new(BuildProgress { version: version.into(), ..BuildProgress::default() });
                on_build(building.clone());
                let model = LoadedModel::open(&deps.load_model, path, deps.limits)?;
                let source = ItemSource::Data(data);
                let request = BuildRequest { version, path, source: &source, catalogue: 0 };
                let (dir, record) = deps.build_new(&request, &model, &building)?;
                (journal, deps.open(&dir, record, &model)?)
            }
        };
        Handle::current().block_on(generation.catch_up(journal.reader()))?;
        deps.point_to(generation.record())?;
        Handle::current().block_on(point_alias(generation.record(), &deps.settings))?;
        let saved_catalogue = generation.record().catalogue;
        let state = Self {
            deps,
            served: RwLock::new(Arc::new(generation)),
            standby: Mutex::default(),
            position: StreamPosition::new(journal.last()),
            follow_lock: AsyncMutex::default(),
            is_stream_known: AtomicBool::new(false),
            journal: Arc::new(AsyncMutex::new(journal)),
            build_lock: AsyncMutex::default(),
            rebuild_lock: AsyncMutex::default(),
            unfinished: AsyncRwLock::default(),
            open_lock: AsyncMutex::default(),
            building: Mutex::default(),
            saved_catalogue: AtomicU64::new(saved_catalogue),
            _lock: lock,
        };
        let last = Handle::current().block_on(state.journal.lock()).last();
        state.remove_unused_blocking(last)?;
        Ok(state)
    }

    pub fn settings(&self) -> &SearchSettings {
        &self.deps.settings
    }

    pub fn cache(&self) -> &Arc<dyn Cache> {
        &self.deps.cache
    }

    /// The served generation; a request keeps the one it started with.
    pub fn served(&self) -> Arc<OpenGeneration> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails while the disk is nearly full.
    pub fn check_disk(&self) -> Result<()> {
        let SearchSettings { state, free_bytes, .. } = &self.deps.settings;
        match missing_space(state, *free_bytes) {
            Some(problem) => Err(Error::device(format!("{problem}: free some space (search.free_bytes)"))),
            None => Ok(()),
        }
    }

    /// Progress of the running build, if any.
    pub fn build_progress(&self) -> Option<Arc<BuildProgress>> {
        lock_ignoring_poison(&self.building).clone()
    }

    /// Versions that a search can name.
    pub fn open_versions(&self) -> Vec<String> {
        self.all_open().iter().map(|generation| generation.record().version.clone()).collect()
    }

    /// Applies changes that were written to the journal but not applied.
    pub async fn catch_up(&self) -> Result<()> {
        let journal = self.journal.lock().await;
        self.served().catch_up(journal.reader()).await
    }

    /// Open generation of a version, caught up: the served one, a standby, or one on disk. If the caller stops waiting,
    /// opening continues for the next one.
    pub async fn version(self: &Arc<Self>, version: &str) -> Result<Option<Arc<OpenGeneration>>> {
        let served = self.served();
        if served.record().version == version {
            return Ok(Some(served));
        }
        let generation = match self.take_standby(version) {
            Some(generation) => generation,
            None => {
                let (state, version) = (self.clone(), version.to_owned());
                match tokio::spawn(async move { state.open_from_disk(version).await }).await.map_err(worker_lost)?? {
                    Some(generation) => generation,
                    None => return Ok(None),
                }
            }
        };
        let reader = self.journal.lock().await.reader();
        generation.catch_up(reader).await?;
        Ok(Some(generation))
    }

    /// Standby generation of a version; marks it as most recently used.
    fn take_standby(&self, version: &str) -> Option<Arc<OpenGeneration>> {
        let mut standby = lock_ignoring_poison(&self.standby);
        let at = standby.iter().position(|open| open.record().version == version)?;
        let generation = standby.remove(at);
        standby.push(generation.clone());
        Some(generation)
    }

    /// Opens a generation from disk, unless another caller just did.
    async fn open_from_disk(self: Arc<Self>, version: String) -> Result<Option<Arc<OpenGeneration>>> {
        let state = self.clone();
        let records = spawn_blocking(move || state.deps.records()).await.map_err(worker_lost)??;
        if !records.iter().any(|(_, record)| record.version == version) {
            return Ok(None);
        }
        let _lock = self.open_lock.lock().await;
        if let Some(generation) = self.take_standby(&version) {
            return Ok(Some(generation));
        }
        let state = self.clone();
        let opened = spawn_blocking(move || state.open_version(&version)).await.map_err(worker_lost)??;
        Ok(opened.map(|generation| self.add_standby(Arc::new(generation))))
    }

    fn open_version(&self, version: &str) -> Result<Option<OpenGeneration>> {
        let records = self.deps.records()?;
        let Some((dir, record)) = records.into_iter().rev().find(|(_, record)| record.version == version) else {
            return Ok(None);
        };
        self.deps.open_with_model(&dir, record).map(Some)
    }

    fn add_standby(&self, generation: Arc<OpenGeneration>) -> Arc<OpenGeneration> {
        let mut standby = lock_ignoring_poison(&self.standby);
        standby.retain(|open| open.record().version != generation.record().version);
        standby.push(generation.clone());
        let surplus = standby.len().saturating_sub(NUM_KEPT_GENERATIONS - 1);
        standby.drain(..surplus);
        generation
    }

    /// Generation with the served items for a version, whose model is at `path` with this fingerprint; built if
    /// missing.
    pub async fn prepare(
        self: &Arc<Self>,
        version: &str,
        path: &str,
        model: &str,
    ) -> std::result::Result<Arc<OpenGeneration>, Unprepared> {
        let check = |found: &str, path: &str| {
            if found == model {
                return Ok(());
            }
            Err(Unprepared::Unfit(Error::input(format!(
                "version `{version}` was registered as model {model}, but {path} holds model {found}: register that \
                 model under another name"
            ))))
        };
        if let Some(generation) = self.version(version).await? {
            check(&generation.record().model, &generation.record().path)?;
            return Ok(generation);
        }
        self.check_disk()?;
        let _lock = self.build_lock.lock().await;
        let unfinished = self.unfinished.read().await;
        let building = Arc::new(BuildProgress { version: version.into(), ..BuildProgress::default() });
        *lock_ignoring_poison(&self.building) = Some(building.clone());
        let build = async {
            // check the model before the long build
            let (state, place) = (self.clone(), path.to_owned());
            let found = spawn_blocking(move || state.fingerprint(&place)).await.map_err(worker_lost)??;
            check(&found, path)?;
            let built = self.build_generation(version, path, &building).await;
            built.map_err(|error| if is_low_recall(&error) { Unprepared::Unfit(error) } else { error.into() })
        };
        let built = build.await;
        *lock_ignoring_poison(&self.building) = None;
        let (state, (dir, record)) = (self.clone(), built?);
        let open = spawn_blocking(move || state.deps.open_with_model(&dir, record));
        let generation = self.add_standby(Arc::new(open.await.map_err(worker_lost)??));
        drop(unfinished);
        self.remove_unused().await?;
        Ok(generation)
    }

    async fn build_generation(
        self: &Arc<Self>,
        version: &str,
        path: &str,
        building: &Arc<BuildProgress>,
    ) -> Result<(PathBuf, GenerationRecord)> {
        let (served, catalogue) = self.catch_up_with_position(self.served()).await?;
        let (state, building) = (self.clone(), building.clone());
        let (name, path) = (version.to_owned(), path.to_owned());
        run_in_background(move || {
            // a worker of its own, whose threads also run at low priority
            let model = LoadedModel::open(&state.deps.load_model, &path, state.deps.limits)?;
            let same_model = served.record().model == model.fingerprint;
            let prebuilt = if same_model { None } else { prebuilt_index(&path, &model)? };
            let source = ItemSource::Index { index: served.open_index().index(), catalogue, same_model, prebuilt };
            let request = BuildRequest { version: &name, path: &path, source: &source, catalogue };
            state.deps.build_new(&request, &model, &building)
        })
        .await
    }

    /// Catches up a generation; returns it with the number of the last change.
    async fn catch_up_with_position(&self, generation: Arc<OpenGeneration>) -> Result<(Arc<OpenGeneration>, u64)> {
        let journal = self.journal.lock().await;
        generation.catch_up(journal.reader()).await?;
        Ok((generation, journal.last()))
    }

    /// Serves this version from now on, after applying the changes it lacks.
    pub async fn swap(self: &Arc<Self>, version: &str) -> Result<()> {
        let missing = || Error::input(format!("version `{version}` has no index: promote it to build one"));
        let next = self.version(version).await?.ok_or_else(missing)?;
        self.activate(next, None).await?;
        if let Err(error) = self.remove_unused().await {
            tracing::warn!(?error, "cannot remove unused generations");
        }
        Ok(())
    }

    /// Serves a generation, if `replaced` is the served one or is not given.
    async fn activate(&self, next: Arc<OpenGeneration>, replaced: Option<&Arc<OpenGeneration>>) -> Result<()> {
        // the lock keeps out writes and other switches
        let journal = self.journal.lock().await;
        next.catch_up(journal.reader()).await?;
        if replaced.is_some_and(|replaced| !Arc::ptr_eq(replaced, &self.served())) {
            self.add_standby(next);
            return Ok(());
        }
        self.deps.point_to(next.record())?;
        let previous = {
            let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *served, next.clone())
        };
        drop(journal);
        lock_ignoring_poison(&self.standby).retain(|open| !Arc::ptr_eq(open, &next));
        if previous.record().version != next.record().version {
            self.add_standby(previous);
        }
        if let Err(error) = point_alias(next.record(), &self.deps.settings).await {
            // only users of the alias are affected: this service uses the collection's name
            tracing::warn!(?error, "cannot change the alias");
        }
        SEARCH.swaps.inc();
        Ok(())
    }

    /// Fingerprint of the model at a path. Blocks.
    pub fn fingerprint(&self, path: &str) -> Result<String> {
        (self.deps.load_model)(path)?.encoder.fingerprint()
    }

    /// Open generations, the served one first.
    fn all_open(&self) -> Vec<Arc<OpenGeneration>> {
        let mut open = vec![self.served()];
        open.extend(lock_ignoring_poison(&self.standby).iter().cloned());
        open
    }

    /// Adds recent items to the graphs, which makes searches faster.
    pub async fn grow_graphs(&self) -> Result<()> {
        let open = self.all_open();
        let grow = move || {
            open.iter().filter_map(|generation| generation.open_index().live()).for_each(|live| live.grow_graph())
        };
        spawn_blocking(grow).await.map_err(worker_lost)
    }

    pub fn num_changed(&self) -> usize {
        self.served().open_index().live().map_or(0, |live| live.num_changed())
    }

    /// Trims the journal for an index on a server, which stores changes itself: records the position, then drops older
    /// changes, unless something is built that needs them.
    pub async fn trim_journal(self: &Arc<Self>) -> Result<()> {
        let served = self.served();
        let (known, saved_catalogue) = (served.catalogue(), self.saved_catalogue.load(Ordering::Relaxed));
        if served.open_index().live().is_some() || known < saved_catalogue + MIN_CHANGED {
            return Ok(());
        }
        let Ok(_alone) = self.unfinished.try_write() else { return Ok(()) };
        let state = self.clone();
        let saving = spawn_blocking(move || {
            let dir = state.deps.dir(&served.record().generation);
            GenerationRecord { catalogue: known, ..served.record().clone() }.save(&dir)?;
            Ok::<u64, Error>(state.deps.records()?.iter().map(|(_, record)| record.catalogue).min().unwrap_or(0))
        });
        let trim_until = saving.await.map_err(worker_lost)??;
        self.saved_catalogue.store(known, Ordering::Relaxed);
        self.journal.lock().await.trim(trim_until)
    }

    /// First open generation with so many changes that a new snapshot would be faster.
    async fn needs_rebuild(&self) -> Option<Arc<OpenGeneration>> {
        let last = self.journal.lock().await.last();
        let fraction = self.deps.settings.rebuild_share;
        self.all_open().into_iter().find(|generation| {
            generation.open_index().live().is_some_and(|live| {
                let least = (live.snapshot().num_items() as f64 * fraction) as u64;
                let changed = (live.num_changed() as u64).max(last.saturating_sub(generation.catalogue()));
                changed >= least.max(MIN_CHANGED) && !live.is_empty()
            })
        })
    }

    /// Builds a new snapshot, with all changes, of a generation that needs one, and deletes what is unused. Returns whether there was
    /// one. Does not wait for a new generation that is being built.
    pub async fn rebuild(self: &Arc<Self>) -> Result<bool> {
        let _lock = self.rebuild_lock.lock().await;
        let unfinished = self.unfinished.read().await;
        self.check_disk()?;
        let Some(old) = self.needs_rebuild().await else { return Ok(false) };
        let (old, catalogue) = self.catch_up_with_position(old).await?;
        let (state, from) = (self.clone(), old.clone());
        let built = run_in_background(move || {
            let record = GenerationRecord { snapshot: snapshot_name(catalogue), ..from.record().clone() };
            let dir = state.deps.dir(&record.generation);
            let (fingerprint, dimensions) = (record.model.clone(), record.dimensions);
            let (worker, fusion, reranker) = (from.worker().clone(), from.fusion(), from.reranker().cloned());
            let model = LoadedModel { worker, fingerprint, dimensions, fusion, reranker };
            let source =
                ItemSource::Index { index: from.open_index().index(), catalogue, same_model: true, prebuilt: None };
            let ServiceDeps { settings, index, .. } = &state.deps;
            let context = BuildContext { settings, index, progress: &BuildProgress::default() };
            let record = build(&dir, record, &model, &source, context)?;
            state.deps.open(&dir, record, &model)
        });
        let next = Arc::new(built.await?);
        let reader = self.journal.lock().await.reader();
        next.catch_up(reader).await?;
        self.activate(next, Some(&old)).await?;
        drop(unfinished);
        self.remove_unused().await?;
        Ok(true)
    }

    /// Deletes unused generations, unless something is being built.
    async fn remove_unused(self: &Arc<Self>) -> Result<()> {
        let Ok(_alone) = self.unfinished.try_write() else { return Ok(()) };
        let _opening = self.open_lock.lock().await;
        let last = self.journal.lock().await.last();
        let state = self.clone();
        let trim_until = spawn_blocking(move || state.remove_unused_blocking(last)).await.map_err(worker_lost)??;
        self.journal.lock().await.trim(trim_until)
    }

    /// Deletes unused generations, and returns the last change that all kept ones include. Keeps the open ones and the
    /// latest others, unless rebuilding would be cheaper than replaying the changes they lack until `last`.
    fn remove_unused_blocking(&self, last: u64) -> Result<u64> {
        let served = self.served();
        let open: Vec<String> = self.all_open().iter().map(|open| open.record().generation.clone()).collect();
        let is_open = |record: &GenerationRecord| open.contains(&record.generation);
        let max_missed = Handle::current().block_on(served.index().num_items()).map_or(u64::MAX, |num| num as u64);
        let (mut kept, rest): (Vec<_>, Vec<_>) =
            self.deps.records()?.into_iter().partition(|(_, record)| is_open(record));
        for (dir, record) in rest.into_iter().rev() {
            if kept.len() < NUM_KEPT_GENERATIONS && last.saturating_sub(record.catalogue) < max_missed.max(MIN_CHANGED)
            {
                kept.push((dir, record));
                continue;
            }
            tracing::info!(generation = record.generation, "removing an unused generation");
            self.deps.remove(&dir)?;
        }
        for dir in self.deps.incomplete()? {
            self.deps.remove(&dir)?;
        }
        for (dir, record) in &kept {
            remove_others(dir, &record.snapshot)?;
        }
        Ok(kept.iter().map(|(_, record)| record.catalogue).min().unwrap_or(0))
    }
}

/// Why no index of a version can be served.
#[derive(Debug)]
pub enum Unprepared {
    /// The version is another model than was registered, or its index finds too little: it will not be served anywhere.
    Unfit(Error),
    /// Trouble of this process, a disk, a network or a server, which may pass.
    Trouble(Error),
}

impl From<Error> for Unprepared {
    fn from(error: Error) -> Self {
        Self::Trouble(error)
    }
}

impl From<Unprepared> for Error {
    fn from(unprepared: Unprepared) -> Self {
        match unprepared {
            Unprepared::Unfit(error) | Unprepared::Trouble(error) => error,
        }
    }
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
