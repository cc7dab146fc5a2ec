//! Folder of a search service: the lock, the pointer to the served generation, and one folder per generation. Opens and
//! creates generations, and deletes unused ones.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::backend::remove_remote;
use super::build::{BuildContext, BuildProgress, ItemSource, build};
use super::generation::OpenGeneration;
use super::model::{LoadedModel, ModelLoader};
use super::record::GenerationRecord;
use super::settings::SearchSettings;
use crate::index::IndexSettings;
use souk_cache::Cache;
use souk_io::atomic_dir::{create_folder, write_atomic, write_json_atomic};
use souk_io::catalogue_stream::CatalogueStream;
use souk_io::error::{Error, Result};
use souk_nn::encoder::Limits;

const LOCK: &str = "lock";
const SERVED: &str = "served.json";
const GENERATIONS: &str = "generations";
const JOURNAL: &str = "journal";
const LOST: &str = "lost-stream";
const STREAM: &str = "stream";

#[derive(Serialize, Deserialize)]
struct Pointer {
    generation: String,
}

/// Version to build an index for: its name, the path of its model, the items, and the last change that they include.
pub(super) struct BuildRequest<'a> {
    pub version: &'a str,
    pub path: &'a str,
    pub source: &'a ItemSource,
    pub catalogue: u64,
}

/// Dependencies of a search service.
pub struct ServiceDeps {
    pub settings: SearchSettings,
    pub index: IndexSettings,
    pub limits: Limits,
    pub load_model: ModelLoader,
    pub cache: Arc<dyn Cache>,
    pub stream: Arc<dyn CatalogueStream>,
}

impl ServiceDeps {
    /// Locks the folder for this process while the returned file is open.
    pub fn lock(&self) -> Result<File> {
        let state = &self.settings.state;
        create_folder(state)?;
        let lock = File::create(state.join(LOCK)).map_err(Error::store(state, "lock the folder"))?;
        if lock.try_lock().is_err() {
            let problem =
                format!("is {}, which another process serves from: give each process its own folder", state.display());
            return Err(Error::config("search.state", problem));
        }
        Ok(lock)
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.settings.state.join(JOURNAL)
    }

    /// Removes the copy of a stream.
    pub(super) fn remove_journal(&self) -> Result<()> {
        let (journal, stream) = (self.journal(), self.settings.state.join(STREAM));
        let is_failure = |error: &std::io::Error| error.kind() != std::io::ErrorKind::NotFound;
        for (path, removed) in [(&journal, fs::remove_dir_all(&journal)), (&stream, fs::remove_file(&stream))] {
            if let Err(error) = removed
                && is_failure(&error)
            {
                return Err(Error::store(path, "remove it")(error));
            }
        }
        Ok(())
    }

    /// Id of the stream that the catalogue here is a copy of; None before it was known.
    pub(super) fn noted_stream(&self) -> Result<Option<String>> {
        let path = self.settings.state.join(STREAM);
        match fs::read_to_string(&path) {
            Ok(id) => Ok(Some(id)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::store(&path, "read it")(error)),
        }
    }

    pub fn note_stream(&self, id: &str) -> Result<()> {
        write_atomic(&self.settings.state.join(STREAM), id.as_bytes())
    }

    /// File that says why this catalogue cannot follow the stream any more.
    pub(super) fn lost_note(&self) -> PathBuf {
        self.settings.state.join(LOST)
    }

    pub(super) fn dir(&self, generation: &str) -> PathBuf {
        self.settings.state.join(GENERATIONS).join(generation)
    }

    /// Stores which generation the next start opens.
    pub fn point_to(&self, record: &GenerationRecord) -> Result<()> {
        write_json_atomic(&self.settings.state.join(SERVED), &Pointer { generation: record.generation.clone() })
    }

    pub(super) fn open(&self, dir: &Path, record: GenerationRecord, model: &LoadedModel) -> Result<OpenGeneration> {
        OpenGeneration::open(dir, record, model, self.cache.clone(), &self.settings)
    }

    /// Generation that was served last, if any.
    pub fn last_served(&self) -> Result<Option<(PathBuf, GenerationRecord)>> {
        let pointer = self.settings.state.join(SERVED);
        let text = match fs::read(&pointer) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::store(&pointer, "read it")(error)),
        };
        let remedy = "restore it, or remove it to rebuild from the data folder and the catalogue stream";
        let broken = |e| Error::data(&pointer, None, format!("does not name a generation: {remedy}")).because(e);
        let Pointer { generation } = serde_json::from_slice(&text).map_err(broken)?;
        let dir = self.dir(&generation);
        let missing = || Error::data(&pointer, None, format!("names `{generation}`, which does not exist: {remedy}"));
        let record = GenerationRecord::load(&dir)?.ok_or_else(missing)?;
        Ok(Some((dir, record)))
    }

    pub(super) fn open_with_model(&self, dir: &Path, record: GenerationRecord) -> Result<OpenGeneration> {
        let model = LoadedModel::open(&self.load_model, &record.path, self.limits)?;
        self.open(dir, record, &model)
    }

    /// Builds the first snapshot of a new generation in its folder.
    pub(super) fn build_new(
        &self,
        request: &BuildRequest<'_>,
        model: &LoadedModel,
        progress: &BuildProgress,
    ) -> Result<(PathBuf, GenerationRecord)> {
        let BuildRequest { version, path, source, catalogue } = *request;
        let number = self.records()?.last().map_or(1, |(_, record)| number(&record.generation) + 1);
        let record = GenerationRecord {
            generation: format!("{version}-{number}"),
            version: version.into(),
            path: path.into(),
            model: model.fingerprint.clone(),
            dimensions: model.dimensions,
            snapshot: snapshot_name(catalogue),
            catalogue,
            canaries: Vec::new(),
            recall: None,
            base_ef: None,
        };
        let dir = self.dir(&record.generation);
        // left by an interrupted build
        if dir.exists() {
            self.remove(&dir)?;
        }
        let context = BuildContext { settings: &self.settings, index: &self.index, progress };
        let record = build(&dir, record, model, source, context)?;
        Ok((dir, record))
    }

    /// Generations on disk, in order of creation.
    pub(super) fn records(&self) -> Result<Vec<(PathBuf, GenerationRecord)>> {
        let mut records = Vec::new();
        for path in folders(&self.settings.state.join(GENERATIONS))? {
            match GenerationRecord::load(&path) {
                Ok(record) => records.extend(record.map(|record| (path, record))),
                // the served generation is opened by name, where this is an error
                Err(error) => tracing::warn!(?error, "skipping an unreadable generation"),
            }
        }
        records.sort_by_key(|(_, record)| number(&record.generation));
        Ok(records)
    }

    /// Folders of interrupted builds; call it while no build runs.
    pub(super) fn incomplete(&self) -> Result<Vec<PathBuf>> {
        let mut folders = folders(&self.settings.state.join(GENERATIONS))?;
        folders.retain(|path| matches!(GenerationRecord::load(path), Ok(None)));
        Ok(folders)
    }

    /// Deletes a generation, including data on a server.
    pub(super) fn remove(&self, dir: &Path) -> Result<()> {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        if let Err(error) = Handle::current().block_on(remove_remote(&name, &self.settings)) {
            tracing::warn!(?error, generation = %name, "cannot remove the generation from the index server");
        }
        fs::remove_dir_all(dir).map_err(Error::store(dir, "remove it"))
    }
}

fn number(generation: &str) -> u64 {
    generation.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

pub(super) fn snapshot_name(catalogue: u64) -> String {
    format!("snapshot-{catalogue}")
}

/// Deletes all folders in `dir` except the named one.
pub(super) fn remove_others(dir: &Path, name: &str) -> Result<()> {
    for path in folders(dir)? {
        if path.file_name().is_some_and(|found| found != name) {
            // mapped files stay readable until they are closed
            fs::remove_dir_all(&path).map_err(Error::store(&path, "remove it"))?;
        }
    }
    Ok(())
}

fn folders(dir: &Path) -> Result<Vec<PathBuf>> {
    create_folder(dir)?;
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::store(dir, "read the folder"))? {
        let path = entry.map_err(Error::store(dir, "read the folder"))?.path();
        folders.extend(path.is_dir().then_some(path));
    }
    Ok(folders)
}
