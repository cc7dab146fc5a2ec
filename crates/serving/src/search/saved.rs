//! The served generation with its model in a backup, saved while the service runs, and installed in the state folder of
//! another one.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::record::GenerationRecord;
use super::service_deps::{ServiceDeps, snapshot_name};
use super::settings::IndexBackend;
use crate::index::Snapshot;
use souk_io::atomic_dir::{AtomicDir, create_folder};
use souk_io::backups::{Backup, Backups};
use souk_io::error::{Error, Result};
use souk_io::objects::is_remote;
use souk_nn::backbone::hub;

/// Folders of a backup.
const GENERATION: &str = "generation";
const MODEL: &str = "model";
/// Folder of installed models in the state folder.
const MODELS: &str = "models";
/// Subfolder of a model that the generation makes superfluous.
const PREBUILT: &str = "index";
/// Times that a generation is saved again because the service has replaced it meanwhile.
const ATTEMPTS: usize = 5;

/// Served version in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedVersion {
    pub version: String,
    pub generation: String,
    /// Path of its model, which is in the backup unless it is in an object store.
    pub path: String,
    /// Last catalogue change in the saved index; None if the index is on a server, which has its own backups.
    pub catalogue: Option<u64>,
    /// Stream that it counts the changes of; None before the service has reached it.
    pub stream: Option<String>,
}

/// The part of a backup's description that a service reads.
#[derive(Deserialize)]
struct About {
    search: SavedVersion,
}

/// Position of an installed index in the catalogue stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstalledAt {
    /// The stream is the one that the backup was made beside.
    SavedPosition,
    /// The stream was written anew: it is replayed.
    Start,
}

impl ServiceDeps {
    /// Copies the served generation and its model to the folder of a backup. The service goes on meanwhile.
    pub fn save_served(&self, files: &Path) -> Result<SavedVersion> {
        let mut attempt = 1;
        loop {
            let missing = || {
                let problem = format!("is {}, where no service has an index yet", self.settings.state.display());
                Error::config("search.state", problem)
            };
            let (dir, record) = self.last_served()?.ok_or_else(missing)?;
            let saved = self.save(&dir, &record, files);
            // a snapshot that the service has replaced meanwhile may be gone
            let is_served =
                || Ok::<bool, Error>(self.last_served()?.is_some_and(|(_, now)| now.snapshot == record.snapshot));
            if saved.is_ok() || attempt == ATTEMPTS || is_served()? {
                return saved;
            }
            attempt += 1;
        }
    }

    fn save(&self, dir: &Path, record: &GenerationRecord, files: &Path) -> Result<SavedVersion> {
        let (generation, model) = (files.join(GENERATION), files.join(MODEL));
        for part in [&generation, &model] {
            if part.exists() {
                fs::remove_dir_all(part).map_err(Error::store(part, "remove it"))?;
            }
        }
        let is_embedded = self.settings.index == IndexBackend::Embedded {};
        if is_embedded {
            let snapshot = generation.join(&record.snapshot);
            copy_folder(&dir.join(&record.snapshot), &snapshot, None)?;
            // compares the copy with its checksums
            Snapshot::open(&snapshot, &record.model, record.dimensions)?;
            record.save(&generation)?;
        }
        if !is_remote(&record.path) {
            copy_folder(&hub::resolve(&record.path)?, &model, Some(PREBUILT))?;
        }
        Ok(SavedVersion {
            version: record.version.clone(),
            generation: record.generation.clone(),
            path: record.path.clone(),
            catalogue: is_embedded.then_some(record.catalogue),
            stream: self.noted_stream()?,
        })
    }

    /// Installs what a backup has, without serving it yet: the model, whose path is returned, and the generation, unless it is on a
    /// server.
    pub fn install(&self, backup: &Backup, at: InstalledAt) -> Result<(String, Option<GenerationRecord>)> {
        let About { search } = backup.about()?;
        let path = if backup.has(MODEL) {
            let models = self.settings.state.join(MODELS);
            let dir = std::path::absolute(models.join(&search.version)).map_err(Error::store(&models, "find it"))?;
            install_part(backup, MODEL, &dir, |_| Ok(()))?;
            dir.to_string_lossy().into_owned()
        } else {
            search.path.clone()
        };
        if search.catalogue.is_none() || self.settings.index != (IndexBackend::Embedded {}) {
            return Ok((path, None));
        }
        self.remove_journal()?;
        let dir = self.dir(&search.generation);
        install_part(backup, GENERATION, &dir, |part| {
            let missing = || Error::data(part, None, "has no generation record: use another backup");
            let mut record = GenerationRecord::load(part)?.ok_or_else(missing)?;
            record.path = path.clone();
            if at == InstalledAt::Start {
                let first = snapshot_name(0);
                let from = part.join(&record.snapshot);
                fs::rename(&from, part.join(&first)).map_err(Error::store(&from, "rename it"))?;
                (record.catalogue, record.snapshot) = (0, first);
            }
            record.save(part)
        })?;
        if let (InstalledAt::SavedPosition, Some(stream)) = (at, &search.stream) {
            self.note_stream(stream)?;
        }
        Ok((path, GenerationRecord::load(&dir)?))
    }

    /// Installs the newest backup for a service that begins, if there is one.
    pub(super) fn begin_from_backup(&self) -> Result<Option<(PathBuf, GenerationRecord)>> {
        let Some(address) = &self.settings.backups else { return Ok(None) };
        let Some(backup) = Backups::new(address).newest()? else {
            tracing::warn!(address, "no backup yet: beginning with the data folder");
            return Ok(None);
        };
        let About { search } = backup.about()?;
        match Handle::current().block_on(self.stream.id()) {
            Ok(id) if search.stream.is_some_and(|saved| saved != id) => {
                let backup = backup.address();
                tracing::warn!(backup, "was made beside another catalogue stream: beginning with the data folder");
                return Ok(None);
            }
            Ok(_) => {}
            // it is compared again when it answers
            Err(error @ Error::Upstream { .. }) => tracing::warn!(?error, "cannot reach the catalogue stream"),
            Err(error) => return Err(error),
        }
        tracing::info!(backup = backup.address(), "beginning with a backup");
        let (_, record) = self.install(&backup, InstalledAt::SavedPosition)?;
        Ok(record.map(|record| (self.dir(&record.generation), record)))
    }
}

/// Fetches a folder of a backup, changes it, and puts it in the place of what an interrupted installation left.
fn install_part(backup: &Backup, part: &str, dir: &Path, change: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    dir.parent().map_or(Ok(()), fs::create_dir_all).map_err(Error::store(dir, "create its folder"))?;
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(Error::store(dir, "remove it"))?;
    }
    let atomic_dir = AtomicDir::new(dir)?;
    backup.fetch(part, &atomic_dir.staging)?;
    change(&atomic_dir.staging)?;
    atomic_dir.finish()
}

/// Copies the files of a folder, following links, except those in one subfolder.
fn copy_folder(from: &Path, to: &Path, except: Option<&str>) -> Result<()> {
    create_folder(to)?;
    for entry in fs::read_dir(from).map_err(Error::store(from, "list the folder"))? {
        let name = entry.map_err(Error::store(from, "list the folder"))?.file_name();
        let (source, copy) = (from.join(&name), to.join(&name));
        if source.is_dir() {
            if except.is_none_or(|except| name != except) {
                copy_folder(&source, &copy, None)?;
            }
        } else {
            fs::copy(&source, &copy).map_err(Error::store(&source, "copy it"))?;
        }
    }
    Ok(())
}
