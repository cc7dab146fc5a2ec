//! `souk items sync`: brings the catalogue to the state of a product feed, through the stream that all replicas follow.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{bail, ensure};
use clap::{ArgGroup, Args, Subcommand};
use serde_json::json;
use sha2::{Digest, Sha256};
use souk::beir::DataFolder;
use souk::catalogue_stream::{CatalogueStream, Mutation};
use souk::changed_catalogue::ChangedCatalogue;
use souk::config::{Config, LogConfig, SharedLedger};
use souk::domain::Item;
use souk::import::{Column, ItemFiles, Shard};
use souk::log::kafka::save_feed;
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use crate::index::print_note;
use crate::output::print;
use crate::progress::ProgressDisplay;
use crate::{GlobalArgs, help};

/// Mutations written at once.
const BATCH: usize = 1000;
const SHARD_BYTES: u64 = 64 << 20;

/// Change the catalogue that the services serve
#[derive(Args)]
pub struct ItemsCommand {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    Sync(SyncCommand),
}

/// Bring the catalogue to the state of a complete product feed
///
/// Compares each item of the feed with the catalogue, writes new and changed items to the catalogue stream, and deletes those that
/// the feed no longer has. Services and the trainer follow the stream. An item whose text is the same is not encoded
/// again. Examples:
///
///   souk items sync --data SHOP --from feed.jsonl --dry-run
///   souk items sync --config shop.toml --data SHOP --from s3://BUCKET/nightly
///   souk items sync --config shop.toml --data SHOP --kafka localhost:9092 --topic products
#[derive(Args)]
#[command(verbatim_doc_comment, group(ArgGroup::new("feed").required(true).args(["from", "kafka"])))]
struct SyncCommand {
    /// Data folder that the services began with
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The feed: a file or folder of .jsonl, .parquet or .arrow files: a local path, s3://, gs:// or az://
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
    /// The feed in a Kafka topic, keyed by the item's id: the last record of each key counts. These are its brokers
    #[arg(long, value_name = "HOST:PORT,...", requires = "topic")]
    kafka: Option<String>,
    /// Topic of the feed
    #[arg(long, value_name = "NAME", requires = "kafka")]
    topic: Option<String>,
    /// Column mapping, for columns without a standard name: id=sku,title=name,text=description
    #[arg(long, value_name = "FIELD=COLUMN", value_delimiter = ',')]
    columns: Vec<Column>,
    /// Largest share of the catalogue to delete; a feed that lacks more is an error
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    max_deleted: f64,
    /// Only count what would change
    #[arg(long)]
    dry_run: bool,
}

impl ItemsCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        match &self.action {
            Some(Action::Sync(sync)) => sync.run(globals),
            None => help::of_group(globals, "items"),
        }
    }
}

enum Feed {
    Given(String),
    Copy(NamedTempFile),
}

impl Feed {
    fn address(&self) -> &str {
        match self {
            Self::Given(address) => address,
            Self::Copy(file) => file.path().to_str().unwrap_or_default(),
        }
    }
}

/// Items of a feed beside those of the catalogue.
#[derive(Default)]
struct Difference {
    new: u64,
    changed: u64,
    unchanged: u64,
    vanished: Vec<String>,
}

impl SyncCommand {
    fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        ensure!((0.0..=1.0).contains(&self.max_deleted), "--max-deleted is {}: give 0 to 1", self.max_deleted);
        let config = globals.load(Vec::new())?;
        let stream = config.open_catalogue_stream(Arc::new(SharedLedger::new(config.store.clone())))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let changed = runtime.block_on(ChangedCatalogue::read(&*stream))?;
        let items = DataFolder::open(&self.data)?.items()?.map(|item| item.map(|(_, item)| item));
        let mut known = HashMap::new();
        for item in changed.over(items) {
            let item = item?;
            let hash = hash(&item);
            known.insert(item.id, hash);
        }
        let position = changed.position;
        drop(changed);
        let feed = self.feed(&config)?;
        let files = ItemFiles::open(feed.address(), self.columns.clone())?;
        let difference = self.compare(&files, &known)?;
        let mut last = position;
        if !self.dry_run {
            last = self
                .write(&files, &known, &difference, &Writer { runtime: &runtime, stream: &*stream })?
                .unwrap_or(last);
        }
        let Difference { new, changed, unchanged, vanished } = difference;
        let deleted = vanished.len();
        let json = json!({
            "new": new, "changed": changed, "deleted": deleted, "unchanged": unchanged, "catalogue": last,
            "dry_run": self.dry_run,
        });
        let place =
            if self.dry_run { "nothing was written".into() } else { format!("the catalogue is at change {last}") };
        print(
            globals,
            &json,
            &format!("{new} new, {changed} changed, {deleted} deleted, {unchanged} unchanged items: {place}"),
        )
    }

    /// The feed as files: those given, or a copy of the topic.
    fn feed(&self, config: &Config) -> anyhow::Result<Feed> {
        if let Some(address) = &self.from {
            return Ok(Feed::Given(address.clone()));
        }
        let (Some(brokers), Some(topic)) = (&self.kafka, &self.topic) else {
            bail!("no feed: give --from, or --kafka and --topic");
        };
        let settings = LogConfig { brokers: brokers.clone(), ..config.log.clone() }.kafka_settings()?;
        let copy = tempfile::Builder::new().prefix("souk-feed-").suffix(".jsonl").tempfile()?;
        let num = save_feed(&settings, topic, copy.path())?;
        print_note(&format!("{num} items in topic {topic}"));
        Ok(Feed::Copy(copy))
    }

    /// Reads the feed once. An error if it lacks too many items.
    fn compare(&self, files: &ItemFiles, known: &HashMap<String, u128>) -> anyhow::Result<Difference> {
        let (mut difference, mut seen) = (Difference::default(), HashSet::with_capacity(known.len()));
        self.each(files, "items compared", &mut |row| {
            let id = &row.item.id;
            ensure!(seen.insert(id.clone()), "{}: the id came before: each item needs its own", row.place());
            match known.get(id) {
                None => difference.new += 1,
                Some(known) if *known == hash(&row.item) => difference.unchanged += 1,
                Some(_) => difference.changed += 1,
            }
            Ok(())
        })?;
        difference.vanished = known.keys().filter(|id| !seen.contains(*id)).cloned().collect();
        difference.vanished.sort_unstable();
        let (num, all) = (difference.vanished.len(), known.len());
        if num as f64 > self.max_deleted * all as f64 {
            let problem = format!(
                "the feed has {} items, and {num} of the catalogue's {all} are not among them, more than --max-deleted {} \
                 allows: check that the feed is complete; if so many have left, raise --max-deleted",
                seen.len(),
                self.max_deleted
            );
            return Err(souk::Error::input(problem).into());
        }
        Ok(difference)
    }

    /// Writes what differs; returns the position of the last change, if any.
    fn write(
        &self,
        files: &ItemFiles,
        known: &HashMap<String, u128>,
        difference: &Difference,
        writer: &Writer<'_>,
    ) -> anyhow::Result<Option<u64>> {
        let (mut batch, mut last) = (Vec::with_capacity(BATCH), None);
        if difference.new + difference.changed > 0 {
            self.each(files, "items written or unchanged", &mut |row| {
                if known.get(&row.item.id).is_none_or(|known| *known != hash(&row.item)) {
                    batch.push(Mutation::Put(row.item));
                }
                if batch.len() == BATCH {
                    last = writer.write(&mut batch)?;
                }
                Ok(())
            })?;
        }
        for chunk in difference.vanished.chunks(BATCH) {
            last = writer.write(&mut batch)?.or(last);
            batch.extend(chunk.iter().cloned().map(Mutation::Delete));
        }
        Ok(writer.write(&mut batch)?.or(last))
    }

    fn each(
        &self,
        files: &ItemFiles,
        what: &'static str,
        visit: &mut dyn FnMut(FeedRow<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let progress = ProgressDisplay::start(what, None);
        for shard in &files.shards(SHARD_BYTES, &mut print_note)? {
            for item in files.items(shard)? {
                let (number, item) = item?;
                visit(FeedRow { item, files, shard, number })?;
                progress.add(1);
            }
        }
        progress.finish();
        Ok(())
    }
}

/// An item of the feed, and where it stands.
struct FeedRow<'a> {
    item: Item,
    files: &'a ItemFiles,
    shard: &'a Shard,
    number: u64,
}

impl FeedRow<'_> {
    fn place(&self) -> String {
        self.files.place(self.shard, self.number, &self.item.id)
    }
}

struct Writer<'a> {
    runtime: &'a Runtime,
    stream: &'a dyn CatalogueStream,
}

impl Writer<'_> {
    /// Writes and clears a batch; returns the position of its last mutation.
    fn write(&self, batch: &mut Vec<Mutation>) -> anyhow::Result<Option<u64>> {
        if batch.is_empty() {
            return Ok(None);
        }
        let last = self.runtime.block_on(self.stream.append(batch))?;
        batch.clear();
        Ok(Some(last))
    }
}

/// Hash of an item's content.
fn hash(item: &Item) -> u128 {
    let digest = Sha256::digest(serde_json::to_vec(item).expect("an item has a JSON form"));
    u128::from_le_bytes(std::array::from_fn(|at| digest[at]))
}
