//! A service's own folder: the lock, the pointer to what is served, and the generations, each in a folder of its own. Opens
//! what is there, begins what is not, and removes what nobody needs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::build::{Building, Model, Models, Source, build};
use super::generation::{Generation, Record};
use super::place::forget;
use super::settings::SearchSettings;
use crate::index::IndexSettings;
use souk_cache::Cache;
use souk_io::atomic_dir::write_whole;
use souk_io::error::{Error, Result};
use souk_nn::encoder::Limits;

const LOCK: &str = "lock";
const SERVED: &str = "served.json";
const GENERATIONS: &str = "generations";
const JOURNAL: &str = "journal";

#[derive(Serialize, Deserialize)]
struct Pointer {
    generation: String,
}

/// What a shop is opened with.
pub struct Parts {
    pub settings: SearchSettings,
    pub index: IndexSettings,
    pub limits: Limits,
    pub models: Models,
    pub cache: Arc<dyn Cache>,
}

impl Parts {
    /// The folder is this process's alone for as long as the file is open.
    pub(super) fn lock(&self) -> Result<File> {
        let state = &self.settings.state;
        fs::create_dir_all(state).map_err(Error::store(state, "make the folder"))?;
        let lock = File::create(state.join(LOCK)).map_err(Error::store(state, "lock the folder"))?;
        if lock.try_lock().is_err() {
            let problem = format!("is {}, which another process serves from: give each its own", state.display());
            return Err(Error::config("search.state", problem));
        }
        Ok(lock)
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.settings.state.join(JOURNAL)
    }

    pub(super) fn dir(&self, generation: &str) -> PathBuf {
        self.settings.state.join(GENERATIONS).join(generation)
    }

    /// From now on a start opens this generation.
    pub(super) fn point_to(&self, record: &Record) -> Result<()> {
        write_whole(&self.settings.state.join(SERVED), &Pointer { generation: record.generation.clone() })
    }

    pub(super) fn open(&self, dir: &Path, record: Record, model: &Model) -> Result<Generation> {
        let worker = (model.worker.clone(), model.fingerprint.as_str());
        Generation::open(dir, record, worker, self.cache.clone(), &self.settings)
    }

    /// What was searched when the service ended, if it ever was.
    pub(super) fn last_served(&self) -> Result<Option<(PathBuf, Record)>> {
        let pointer = self.settings.state.join(SERVED);
        let text = match fs::read(&pointer) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::store(&pointer, "read it")(error)),
        };
        let again = "restore it, or remove it to index the data folder and the journal anew";
        let broken = |e| Error::data(&pointer, None, format!("does not name a generation: {again}")).because(e);
        let Pointer { generation } = serde_json::from_slice(&text).map_err(broken)?;
        let dir = self.dir(&generation);
        let missing = || Error::data(&pointer, None, format!("names `{generation}`, which is not there: {again}"));
        let record = Record::load(&dir)?.ok_or_else(missing)?;
        Ok(Some((dir, record)))
    }

    pub(super) fn open_with_model(&self, dir: &Path, record: Record) -> Result<Generation> {
        let model = Model::open(&self.models, &record.path, self.limits)?;
        self.open(dir, record, &model)
    }

    /// The first snapshot of a new generation, in its folder.
    pub(super) fn first(
        &self,
        (version, path): (&str, &str),
        model: &Model,
        (source, catalogue): &(Source, u64),
        building: &Building,
    ) -> Result<(PathBuf, Record)> {
        let number = self.records()?.last().map_or(1, |(_, record)| number(&record.generation) + 1);
        let record = Record {
            generation: format!("{version}-{number}"),
            version: version.into(),
            path: path.into(),
            model: model.fingerprint.clone(),
            dimensions: model.dimensions,
            snapshot: snapshot_name(*catalogue),
            catalogue: *catalogue,
            canaries: Vec::new(),
            recall: None,
        };
        let dir = self.dir(&record.generation);
        // what an interrupted build left
        if dir.exists() {
            self.remove(&dir)?;
        }
        let record = build(&dir, record, model, source, (&self.settings, &self.index, building))?;
        Ok((dir, record))
    }

    /// Generations on disk, in the order they were made.
    pub(super) fn records(&self) -> Result<Vec<(PathBuf, Record)>> {
        let mut records = Vec::new();
        for path in folders(&self.settings.state.join(GENERATIONS))? {
            match Record::load(&path) {
                Ok(record) => records.extend(record.map(|record| (path, record))),
                // what is served is opened by name, and then it is an error
                Err(error) => tracing::warn!(?error, "is passed over"),
            }
        }
        records.sort_by_key(|(_, record)| number(&record.generation));
        Ok(records)
    }

    /// What interrupted builds left, while none goes on.
    pub(super) fn unfinished(&self) -> Result<Vec<PathBuf>> {
        let mut folders = folders(&self.settings.state.join(GENERATIONS))?;
        folders.retain(|path| matches!(Record::load(path), Ok(None)));
        Ok(folders)
    }

    /// Removes a generation, here and elsewhere.
    pub(super) fn remove(&self, dir: &Path) -> Result<()> {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        if let Err(error) = Handle::current().block_on(forget(&name, &self.settings)) {
            tracing::warn!(?error, generation = %name, "what lies elsewhere could not be removed");
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

/// Of the folders in `dir`, keeps the one of that name.
pub(super) fn remove_others(dir: &Path, name: &str) -> Result<()> {
    for path in folders(dir)? {
        if path.file_name().is_some_and(|found| found != name) {
            // what is mapped stays readable until nobody has it open
            fs::remove_dir_all(&path).map_err(Error::store(&path, "remove it"))?;
        }
    }
    Ok(())
}

fn folders(dir: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).map_err(Error::store(dir, "make the folder"))?;
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::store(dir, "read the folder"))? {
        let path = entry.map_err(Error::store(dir, "read the folder"))?.path();
        folders.extend(path.is_dir().then_some(path));
    }
    Ok(folders)
}
