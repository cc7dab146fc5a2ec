//! `souk doctor`: checks each part of a deployment and prints what to do about failures.

mod training;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use souk::backups::Backups;
use souk::beir::DataFolder;
use souk::config::{Config, SharedLedger};
use souk::disk::free_bytes;
use souk::index::MilvusSettings;
#[cfg(feature = "milvus")]
use souk::index::{CollectionContent, IndexSettings, Milvus};
#[cfg(feature = "milvus")]
use souk::item_text::ItemText;
#[cfg(feature = "milvus")]
use souk::lexical::LexicalOptions;
use souk::log::Signal;
use souk::objects::Objects;
use souk::search::IndexBackend;

use crate::ingest::LogArgs;
use crate::output::print;
use crate::{GlobalArgs, ModelArgs};

/// Timeout for the log to open.
const LOG_TIMEOUT: Duration = Duration::from_secs(15);
/// Upper bound of clock skew; more would make event times wrong.
const MAX_SKEW: Duration = Duration::from_secs(5);
/// Lower bound of free bytes; less is hardly enough for a training round or an index.
const MIN_FREE: u64 = 2 << 30;

/// Check a deployment, and say what to do about each failure
///
/// Checks libtorch, device, model, data, log, ledger, cache, Milvus, the judge of each stage, the
/// gate's judgements, disks, clock and ports.
///
/// Tests every part of the configuration as `souk trainer` and `souk serve` would use it, and
/// changes nothing they use: the log is read with a separate consumer group, the cache is tested
/// with a separate key, and test collections and folders are deleted. Prints what to do about each
/// failure; the exit code is then 1.
///
/// Example: souk doctor --config configs/trainer-market.toml --data SHOP
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct DoctorCommand {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Data folder with corpus.jsonl (default: data of [trainer] or [search])
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// Result of one check.
#[derive(Serialize)]
struct Finding {
    part: String,
    #[serde(rename = "ok")]
    is_ok: bool,
    #[serde(rename = "said")]
    message: String,
}

impl DoctorCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let mut changes = self.model.changes();
        changes.extend(self.log.changes());
        let config = globals.load(changes)?;
        let findings = self.findings(&config);
        let width = findings.iter().map(|finding| finding.part.len()).max().unwrap_or_default();
        let line = |finding: &Finding| {
            let mark = if finding.is_ok { "ok " } else { "BAD" };
            format!("{mark}  {:<width$}  {}", finding.part, finding.message)
        };
        let text: Vec<String> = findings.iter().map(line).collect();
        print(globals, &serde_json::to_value(&findings)?, &text.join("\n"))?;
        match findings.iter().filter(|finding| !finding.is_ok).count() {
            0 => Ok(()),
            num_failed => anyhow::bail!("{num_failed} of {} checks failed", findings.len()),
        }
    }

    fn findings(&self, config: &Config) -> Vec<Finding> {
        let data = self.data.clone().or(config.trainer.data.clone()).or(config.search.data.clone());
        let folder = data.as_deref().map(DataFolder::open).transpose();
        let mut findings = Vec::new();
        let mut add = |part: &str, outcome: anyhow::Result<String>| {
            let causes = |error: anyhow::Error| {
                let mut causes: Vec<String> = error.chain().map(ToString::to_string).collect();
                causes.dedup();
                causes.join(": ")
            };
            let (is_ok, message) = outcome.map_or_else(|error| (false, causes(error)), |message| (true, message));
            findings.push(Finding { part: part.into(), is_ok, message });
        };
        add("device", device(config));
        add("clock", clock());
        for place in [&config.trainer.state, &config.search.state] {
            add("disk", disk(place));
        }
        if config.model.path.is_some() {
            add("model", model(config));
        }
        match &folder {
            Ok(Some(folder)) => add("data", catalogue(config, folder)),
            Ok(None) if config.trainer.stage.is_empty() => {}
            Ok(None) => add("data", Err(anyhow::anyhow!("no data folder: give --data DIR, or set trainer.data"))),
            Err(error) => add("data", Err(anyhow::anyhow!("{error}"))),
        }
        if !config.log.paths.is_empty() || !config.log.brokers.is_empty() {
            add("log", log(config));
        }
        add("ledger", ledger(config));
        if let Some(topic) = &config.catalogue.topic {
            add("catalogue", stream(config, topic));
        }
        add("cache", cache(config));
        if let IndexBackend::Milvus(settings) = &config.search.index {
            add("milvus", milvus(settings));
        }
        if let Some(home) = &config.trainer.publish {
            add("models", models(home));
        }
        if let Some(address) = &config.search.backups {
            add("backups", backups(address));
        }
        if let Ok(Some(folder)) = &folder {
            training::checks(config, folder).into_iter().for_each(|(part, outcome)| add(&part, outcome));
        }
        for (part, address) in [("trainer.listen", &config.trainer.listen), ("search.listen", &config.search.listen)] {
            add(part, port(address));
        }
        findings
    }
}

fn device(config: &Config) -> anyhow::Result<String> {
    let device = config.model.open_device()?;
    Ok(format!("libtorch {}, {device:?}", souk::libtorch_version()))
}

/// Compares the file system's clock with this machine's.
fn clock() -> anyhow::Result<String> {
    let file = std::env::temp_dir().join(format!("souk-doctor-{}", std::process::id()));
    fs::write(&file, b"").with_context(|| format!("{}: cannot be written", file.display()))?;
    let made = fs::metadata(&file).and_then(|data| data.modified());
    drop(fs::remove_file(&file));
    let (made, now) = (made?, SystemTime::now());
    let skew = now.duration_since(made).or_else(|_| made.duration_since(now))?;
    anyhow::ensure!(
        skew < MAX_SKEW,
        "file times differ from this machine's clock by {skew:?}: synchronise it with NTP"
    );
    let since = now.duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(format!("{} s since 1970, file times agree", since.as_secs()))
}

fn disk(place: &Path) -> anyhow::Result<String> {
    let there = place.ancestors().find(|folder| folder.exists() && !folder.as_os_str().is_empty());
    let there = there.unwrap_or(Path::new("."));
    let free = free_bytes(there)?;
    let summary = format!("{}: {:.1} GiB free", place.display(), free as f64 / (1_u64 << 30) as f64);
    anyhow::ensure!(free >= MIN_FREE, "{summary}, less than 2: free some space, or move the state folder");
    let probe = there.join(format!(".souk-doctor-{}", std::process::id()));
    fs::write(&probe, b"")
        .with_context(|| format!("{}: not writable: change its owner or permissions", there.display()))?;
    drop(fs::remove_file(&probe));
    Ok(summary)
}

fn model(config: &Config) -> anyhow::Result<String> {
    let encoder = config.open_encoder()?;
    Ok(format!("{} dimensions, fingerprint {}", encoder.dimensions(), encoder.fingerprint()?))
}

fn catalogue(config: &Config, data: &DataFolder) -> anyhow::Result<String> {
    config.item_text().check(data)?;
    let first = data.items()?.next().context("corpus.jsonl is empty: add items")??;
    Ok(format!("{}: the first item is `{}`", data.path().display(), first.1.title))
}

fn log(config: &Config) -> anyhow::Result<String> {
    let mut log = config.log.clone();
    // own consumer group, so that real consumers keep their partitions
    log.group = Some(format!("souk-doctor-{}", std::process::id()));
    log.follow = true;
    let mut source = log.open(Arc::new(|_| Ok(None)))?;
    let name =
        if log.brokers.is_empty() { format!("{:?}", log.paths) } else { format!("{} {:?}", log.brokers, log.topics) };
    match source.next(LOG_TIMEOUT)? {
        Some(Signal::Opened(lane, _)) => Ok(format!("{name}: lane {lane} opened")),
        Some(Signal::Batch(batch)) => Ok(format!("{name}: {} messages", batch.len())),
        Some(Signal::Closed(..) | Signal::Ended) => Ok(format!("{name}: at its end")),
        None => anyhow::bail!("{name}: nothing opened within {} s: check that the topic exists", LOG_TIMEOUT.as_secs()),
    }
}

fn ledger(config: &Config) -> anyhow::Result<String> {
    let store = &config.store;
    let file = store.database.to_string().strip_prefix("sqlite:").map(PathBuf::from);
    if file.is_some_and(|file| !file.exists()) {
        return Ok(format!("{}: will be created", store.database));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async { store.open_ledger().await?.served().await })?;
    let served = served.map_or("no model is served yet".into(), |served| format!("serves {}", served.version));
    Ok(format!("{}: {served}", store.database))
}

/// Creates the topic unless it exists, as a service would.
fn stream(config: &Config, topic: &str) -> anyhow::Result<String> {
    let stream = config.open_catalogue_stream(Arc::new(SharedLedger::new(config.store.clone())))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let end = runtime.block_on(stream.read(0, 1, Duration::ZERO))?.end;
    Ok(format!("topic {topic}: {end} changes, one partition, compacted"))
}

fn backups(address: &str) -> anyhow::Result<String> {
    Ok(match Backups::new(address).newest()? {
        Some(newest) => format!("the newest is {}", newest.address()),
        None => format!("{address}: none yet: souk backup makes one"),
    })
}

fn cache(config: &Config) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    let cache = config.store.open_cache()?;
    let key = format!("doctor:{}", std::process::id()).into_bytes();
    runtime.block_on(async {
        cache.put_many(&[(key.clone(), key.as_slice().into())]).await?;
        let found = cache.get_many(std::slice::from_ref(&key)).await?;
        let is_kept = config.store.cache_bytes == 0 || found.first().is_some_and(Option::is_some);
        anyhow::ensure!(is_kept, "{}: a value is evicted at once: give the cache more memory", config.store.cache);
        Ok(format!("{}: write and read work", config.store.cache))
    })
}

/// Creates a test collection and deletes it.
#[cfg(feature = "milvus")]
fn milvus(settings: &MilvusSettings) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let name = format!("doctor_{}", std::process::id());
    runtime.block_on(async {
        let (item_text, lexical) = (ItemText::default(), Some(LexicalOptions::default()));
        let content = CollectionContent { model: "doctor", dimensions: 2, item_text: &item_text, lexical };
        Milvus::create(settings, &name, content, &IndexSettings::default()).await?;
        Milvus::remove(settings, &name).await
    })?;
    Ok(format!("{}: creating a collection works", settings.address))
}

#[cfg(not(feature = "milvus"))]
fn milvus(_: &MilvusSettings) -> anyhow::Result<String> {
    anyhow::bail!("this program was built without Milvus: cargo build --release --workspace --features souk-cli/milvus")
}

/// Writes to the folder for published models and reads it back.
fn models(home: &str) -> anyhow::Result<String> {
    let objects = Objects::open(&format!("{}/souk-doctor-{}", home.trim_end_matches('/'), std::process::id()))?;
    let folder = std::env::temp_dir().join(format!("souk-doctor-models-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let tried = fs::write(folder.join("probe"), b"probe")
        .map_err(anyhow::Error::from)
        .and_then(|()| Ok(objects.send(&folder)?))
        .and_then(|()| Ok(objects.read("probe", 0..5)?));
    drop((fs::remove_dir_all(&folder), objects.remove()));
    anyhow::ensure!(tried? == "probe", "{home}: returns other bytes than were written");
    Ok(format!("{home}: write and read work"))
}

fn port(address: &str) -> anyhow::Result<String> {
    let bound = std::net::TcpListener::bind(address);
    bound.with_context(|| format!("cannot listen on {address}: check whether it is already running"))?;
    Ok(format!("{address} is free"))
}
