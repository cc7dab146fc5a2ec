//! Backups of a shop that goes on running: the served version with its index and model, the ledger, and the catalogue stream if
//! that is a Kafka topic. What is saved later has all that was saved earlier: the index, then the stream, then the ledger.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::config::{Config, SharedLedger};
use souk_io::atomic_dir::create_folder;
use souk_io::backups::{Backup, BackupSize, Backups};
use souk_io::catalogue_stream::{CatalogueStream, Mutation};
use souk_io::changed_catalogue::read_to_end;
use souk_io::error::{Error, Result};
use souk_serving::search::{InstalledAt, SavedVersion, ServiceDeps};
use souk_store::{LedgerCopy, SqlLedger};

const LEDGER: &str = "ledger";
const LEDGER_FILE: &str = "ledger.jsonl";
const STREAM: &str = "stream";
const STREAM_FILE: &str = "changes.jsonl";
/// Times, a second apart, that a backup waits for the service to serve what the ledger says.
const ATTEMPTS: usize = 30;
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);
/// Changes written to a topic at once.
const BATCH: usize = 1000;
/// Time that a question for the stream's end may take; a read without news waits for it.
const NO_PATIENCE: Duration = Duration::ZERO;

/// Description of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupContent {
    /// The served version.
    pub search: SavedVersion,
    /// Rows of the ledger.
    pub ledger: LedgerCopy,
    /// Position of the last change in the catalogue's Kafka topic; None if the stream is in the ledger.
    pub topic: Option<u64>,
}

impl BackupContent {
    /// Position of the last catalogue change.
    pub fn last_change(&self) -> u64 {
        self.topic.unwrap_or(self.ledger.last_change)
    }
}

/// A finished backup.
pub struct FinishedBackup {
    /// Its address.
    pub address: String,
    /// Its description.
    pub content: BackupContent,
    /// Its files.
    pub size: BackupSize,
}

/// Backs up the shop that the configuration describes, on the machine with the state folder. Blocks.
pub fn back_up(config: &Config, backups: &Backups, runtime: &Runtime) -> Result<FinishedBackup> {
    let (deps, stream) = open(config)?;
    let ledger = runtime.block_on(SqlLedger::open(&config.store.database))?;
    let backup = backups.begin(&config.search.state)?;
    let files = backup.files();
    let mut attempt = 1;
    let content = loop {
        let search = deps.save_served(&files)?;
        let topic = config.catalogue.topic.as_ref().map(|_| save_stream(&*stream, &files, runtime)).transpose()?;
        let folder = files.join(LEDGER);
        create_folder(&folder)?;
        let ledger = runtime.block_on(ledger.save(&folder.join(LEDGER_FILE)))?;
        match &ledger.served {
            Some(live) if *live != search.version => {
                let problem = format!(
                    "the live version is `{live}`, but the service in {} still serves `{}`: back up again when it has changed to \
                     `{live}`",
                    config.search.state.display(),
                    search.version
                );
                if attempt == ATTEMPTS {
                    return Err(Error::input(problem));
                }
                tracing::info!("{problem}");
            }
            _ => break BackupContent { search, ledger, topic },
        }
        attempt += 1;
        sleep(BETWEEN_ATTEMPTS);
    };
    let (address, size) = backup.finish(&content)?;
    Ok(FinishedBackup { address, content, size })
}

/// Restores a backup into the configuration's empty state folder, its empty database, and its empty topic, if it has one; a topic
/// that outlived the loss is kept. Blocks.
pub fn restore(config: &Config, backup: &Backup, runtime: &Runtime) -> Result<BackupContent> {
    let content: BackupContent = backup.about()?;
    let (deps, stream) = open(config)?;
    let _lock = deps.lock()?;
    if deps.last_served()?.is_some() {
        let problem = format!("is {}, which has an index: give a new folder", config.search.state.display());
        return Err(Error::config("search.state", problem));
    }
    runtime.block_on(SqlLedger::migrate(&config.store.database))?;
    let ledger = runtime.block_on(SqlLedger::open(&config.store.database))?;
    runtime.block_on(ledger.check_empty())?;
    let fetched = config.search.state.join("restoring");
    let restored = restore_parts(
        &content,
        backup,
        Target { config, deps: &deps, stream: &*stream, ledger: &ledger, fetched: &fetched },
        runtime,
    );
    // with what it needs no longer
    drop(fs::remove_dir_all(&fetched));
    restored?;
    Ok(content)
}

/// Places of a restored shop.
#[derive(Clone, Copy)]
struct Target<'a> {
    config: &'a Config,
    deps: &'a ServiceDeps,
    stream: &'a dyn CatalogueStream,
    ledger: &'a SqlLedger,
    /// Folder for files of the backup that are read.
    fetched: &'a Path,
}

fn restore_parts(content: &BackupContent, backup: &Backup, target: Target<'_>, runtime: &Runtime) -> Result<()> {
    let Target { config, deps, stream, ledger, fetched } = target;
    backup.fetch(LEDGER, fetched)?;
    let at = match (content.topic, &config.catalogue.topic) {
        (None, None) => InstalledAt::SavedPosition,
        (Some(saved), Some(topic)) => {
            let (id, end) = (runtime.block_on(stream.id())?, runtime.block_on(stream.read(0, 1, NO_PATIENCE))?.end);
            let is_same = content.search.stream.as_ref().is_none_or(|saved| *saved == id);
            if is_same && end >= saved && end > 0 {
                tracing::info!(topic, end, "the topic has the changes of the backup");
                InstalledAt::SavedPosition
            } else if end == 0 {
                backup.fetch(STREAM, fetched)?;
                load_stream(stream, &fetched.join(STREAM_FILE), runtime)?;
                InstalledAt::Start
            } else {
                let problem = format!(
                    "`{topic}` has {end} changes already, which are not those of the backup ({saved} changes of another topic, or of this one \
                     before it was deleted): name the topic of the backup, or a new one"
                );
                return Err(Error::config("catalogue.topic", problem));
            }
        }
        (Some(_), None) => {
            let problem =
                "is not set, but the changes in the backup are those of a topic: set it to that topic, or to a new one";
            return Err(Error::config("catalogue.topic", problem));
        }
        (None, Some(topic)) => {
            let problem = format!("is `{topic}`, but the changes in the backup are in the ledger: remove this setting");
            return Err(Error::config("catalogue.topic", problem));
        }
    };
    let (path, record) = deps.install(backup, at)?;
    let moved = Some((content.search.version.as_str(), path.as_str()));
    runtime.block_on(ledger.load(&fetched.join(LEDGER_FILE), moved))?;
    deps.note_stream(&runtime.block_on(stream.id())?)?;
    record.map_or(Ok(()), |record| deps.point_to(&record))
}

fn open(config: &Config) -> Result<(ServiceDeps, Arc<dyn CatalogueStream>)> {
    let stream = config.open_catalogue_stream(Arc::new(SharedLedger::new(config.store.clone())))?;
    Ok((config.service_deps(stream.clone())?, stream))
}

/// Copies the changes of the stream; returns the position of the last.
fn save_stream(stream: &dyn CatalogueStream, files: &Path, runtime: &Runtime) -> Result<u64> {
    let folder = files.join(STREAM);
    let path = folder.join(STREAM_FILE);
    create_folder(&folder)?;
    let mut out = BufWriter::new(File::create(&path).map_err(Error::store(&path, "create it"))?);
    let mut write =
        |mutation: Mutation| writeln!(out, "{}", mutation.to_json()).map_err(Error::store(&path, "write it"));
    let last = runtime.block_on(read_to_end(stream, &mut write))?;
    out.flush().map_err(Error::store(&path, "write it"))?;
    Ok(last)
}

/// Appends the changes in a file to the stream.
fn load_stream(stream: &dyn CatalogueStream, path: &Path, runtime: &Runtime) -> Result<()> {
    // a catalogue without changes has no file
    if !path.exists() {
        return Ok(());
    }
    let file = BufReader::new(File::open(path).map_err(Error::store(path, "open it"))?);
    let mut batch = Vec::with_capacity(BATCH);
    for (at, line) in file.lines().enumerate() {
        let line = line.map_err(Error::store(path, "read it"))?;
        batch.push(Mutation::parse(line.as_bytes(), path, at as u64 + 1)?);
        if batch.len() == BATCH {
            runtime.block_on(stream.append(&batch))?;
            batch.clear();
        }
    }
    if !batch.is_empty() {
        runtime.block_on(stream.append(&batch))?;
    }
    Ok(())
}
