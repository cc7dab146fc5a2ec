//! Encodes a catalogue in shards across ranks, resumes after a kill, and builds one index in a folder or a Milvus
//! collection. Ranks share a folder and exchange nothing else. Takes an encoder and item files; never serves anything.

mod remote;
mod shard_files;
mod throughput;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::remote::{CollectionSpec, RemoteCollection};
use self::shard_files::{ShardFolder, ShardResult};
pub use self::throughput::Throughput;
use crate::index::{IndexSettings, Manifest, MilvusSettings, Snapshot};
use souk_ingest::import::{ItemFiles, Shard};
use souk_io::atomic_dir::{create_folder, write_json_atomic};
use souk_io::domain::{Item, TextKind};
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_nn::collective::Rendezvous;
use souk_nn::encoder::{Encoder, EncoderWorker, Limits, encode};

const PLAN: &str = "plan.json";
const LOCK: &str = "lock";
const POLL: Duration = Duration::from_millis(200);
/// How long a rank waits for the first rank's plan.
const PLAN_TIMEOUT: Duration = Duration::from_secs(600);

/// Destination of the index.
#[derive(Clone, Debug)]
pub enum IndexTarget {
    Folder,
    Milvus {
        settings: MilvusSettings,
        collection: String,
        /// Alias to point to the collection once it is complete.
        alias: Option<String>,
    },
}

/// An indexing job.
pub struct IndexJob<'a> {
    pub files: &'a ItemFiles,
    /// Folder of the index; work files go next to it.
    pub out: &'a Path,
    pub target: IndexTarget,
    pub index: IndexSettings,
    /// Size of a shard: about the work that a kill loses.
    pub shard_bytes: u64,
    pub limits: Limits,
    /// Other settings that change the vectors, such as the precision; a resumed job must have the same.
    pub made_with: String,
}

/// Plan of a job on disk; a resumed job must have the same.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IndexPlan {
    model: String,
    dimensions: i64,
    made_with: String,
    into: String,
    columns: String,
    shards: Vec<Shard>,
}

/// Result of a job.
#[derive(Clone, Debug, Serialize)]
pub struct IndexReport {
    pub num_items: u64,
    pub dimensions: i64,
    pub num_shards: usize,
    /// Shards that an earlier run had finished.
    pub shards_before: usize,
    #[serde(flatten)]
    pub throughput: Throughput,
    pub manifest: Option<Manifest>,
    pub collection: Option<String>,
}

/// Throughput of this rank, and its progress callback.
struct Reporter<'a> {
    throughput: Throughput,
    report: &'a mut dyn FnMut(IndexProgress<'_>),
}

/// Progress of a job.
pub enum IndexProgress<'a> {
    Note(&'a str),
    Encoding(&'a Throughput),
    /// This rank is done; shards of other ranks are missing.
    Waiting(usize),
    Joining {
        items: u64,
        of: u64,
    },
}

impl IndexJob<'_> {
    /// Encodes this rank's shards. The first rank then builds the index and returns the report.
    pub fn run(&self, encoder: Encoder, report: &mut dyn FnMut(IndexProgress<'_>)) -> Result<Option<IndexReport>> {
        let (rank, size) = Rendezvous::from_environment()?.map_or((0, 1), |place| (place.rank, place.size));
        let plan = IndexPlan {
            model: encoder.fingerprint()?,
            dimensions: encoder.dimensions(),
            made_with: self.made_with.clone(),
            into: self.target_name(),
            columns: self.files.columns(),
            shards: self.files.shards(self.shard_bytes, &mut |note| report(IndexProgress::Note(note)))?,
        };
        let home = sibling(self.out, "shards")?;
        let lock = if rank == 0 { Some(self.lock_plan(&home, &plan)?) } else { None };
        if rank > 0 && !self.wait_for_plan(&home, &plan)? {
            return Ok(None);
        }
        let folder = ShardFolder { home: &home, model: plan.model.clone(), dimensions: plan.dimensions };
        let remote = self.open_remote(&plan, rank, encoder.item_text())?;
        let mut before = BTreeMap::new();
        folder.refresh(&plan.shards, &mut before)?;
        let mine = || plan.shards.iter().enumerate().skip(rank).step_by(size);
        let mut reporter = Reporter { throughput: Throughput::new(mine(), &before), report };
        let worker = EncoderWorker::start(encoder, self.limits)?;
        for (at, shard) in mine().filter(|(at, _)| !before.contains_key(at)) {
            let result = match &remote {
                None => self.encode(shard, &worker, &mut folder.writer(at)?, &mut reporter)?,
                Some(remote) => self.encode(shard, &worker, remote.writer().as_mut(), &mut reporter)?,
            };
            folder.mark(at, shard, result)?;
            reporter.throughput.finish_shard(shard);
        }
        if rank > 0 {
            return Ok(None);
        }
        let results = self.wait_for_all(&folder, &plan, &mut *reporter.report)?;
        let num_items = results.iter().map(|result| result.items).sum();
        let (mut manifest, mut name) = (None, None);
        match (&self.target, &remote) {
            (IndexTarget::Milvus { alias, .. }, Some(remote)) => {
                name = Some(remote.finish(num_items, alias.as_deref())?)
            }
            _ => manifest = Some(self.join(&folder, &results, &mut *reporter.report)?),
        }
        drop(lock);
        fs::remove_dir_all(&home).map_err(Error::store(&home, "remove it"))?;
        let throughput = reporter.throughput.for_all_ranks(num_items, &before);
        let (dimensions, num_shards) = (plan.dimensions, plan.shards.len());
        Ok(Some(IndexReport {
            num_items,
            dimensions,
            num_shards,
            shards_before: before.len(),
            throughput,
            manifest,
            collection: name,
        }))
    }

    fn open_remote(&self, plan: &IndexPlan, rank: usize, item_text: &ItemText) -> Result<Option<RemoteCollection>> {
        let IndexTarget::Milvus { settings, collection, .. } = &self.target else { return Ok(None) };
        let spec = CollectionSpec {
            settings,
            name: collection,
            model: &plan.model,
            dimensions: plan.dimensions,
            item_text,
            index: &self.index,
            is_first_rank: rank == 0,
        };
        RemoteCollection::open(spec).map(Some)
    }

    fn target_name(&self) -> String {
        match &self.target {
            IndexTarget::Folder => "folder".into(),
            IndexTarget::Milvus { collection, .. } => format!("collection {collection}"),
        }
    }

    /// Locks the work folder, and writes the plan or checks that it is the same.
    fn lock_plan(&self, home: &Path, plan: &IndexPlan) -> Result<File> {
        if self.output_exists() {
            return Err(Error::config(self.out.display(), "is not empty: give a new folder"));
        }
        create_folder(home)?;
        let lock = home.join(LOCK);
        let file = File::create(&lock).map_err(Error::store(&lock, "create it"))?;
        if file.try_lock().is_err() {
            return Err(Error::config(
                home.display(),
                "is in use by another process: wait for it, or give another --out",
            ));
        }
        match read_plan(home)? {
            None => write_json_atomic(&home.join(PLAN), plan)?,
            Some(known) if known == *plan => {}
            Some(_) => return Err(plan_mismatch(home)),
        }
        Ok(file)
    }

    /// Waits for the first rank's plan; false if the job is already finished.
    fn wait_for_plan(&self, home: &Path, plan: &IndexPlan) -> Result<bool> {
        let started = Instant::now();
        loop {
            let known = read_plan(home)?;
            if known.as_ref() == Some(plan) {
                return Ok(true);
            }
            if known.is_none() && self.output_exists() {
                return Ok(false);
            }
            if started.elapsed() > PLAN_TIMEOUT {
                return Err(plan_mismatch(home));
            }
            sleep(POLL);
        }
    }

    fn output_exists(&self) -> bool {
        fs::read_dir(self.out).is_ok_and(|mut entries| entries.next().is_some())
    }

    fn encode(
        &self,
        shard: &Shard,
        worker: &EncoderWorker,
        writer: &mut dyn ShardWriter,
        reporter: &mut Reporter<'_>,
    ) -> Result<ShardResult> {
        let place = |(number, item): &(u64, Item)| self.files.place(shard, *number, &item.id);
        let text = |(_, item): &(u64, Item)| worker.reader().item_text().render(item);
        let mut items = 0;
        encode(worker, Some(TextKind::Item), self.files.items(shard)?, (text, place), |(_, item), vector| {
            writer.add(item, &vector)?;
            items += 1;
            reporter.throughput.add_item();
            (reporter.report)(IndexProgress::Encoding(&reporter.throughput));
            Ok::<(), Error>(())
        })?;
        writer.finish(items)
    }

    /// Results of all shards, once all ranks are done.
    fn wait_for_all(
        &self,
        folder: &ShardFolder,
        plan: &IndexPlan,
        report: &mut dyn FnMut(IndexProgress<'_>),
    ) -> Result<Vec<ShardResult>> {
        let mut done = BTreeMap::new();
        loop {
            folder.refresh(&plan.shards, &mut done)?;
            match plan.shards.len() - done.len() {
                0 => return Ok(done.into_values().collect()),
                missing => report(IndexProgress::Waiting(missing)),
            }
            sleep(POLL);
        }
    }

    fn join(
        &self,
        folder: &ShardFolder,
        results: &[ShardResult],
        report: &mut dyn FnMut(IndexProgress<'_>),
    ) -> Result<Manifest> {
        let partial = sibling(self.out, "part")?;
        if partial.exists() {
            // safe to delete, because this process holds the lock: left by a run that was killed here
            fs::remove_dir_all(&partial).map_err(Error::store(&partial, "remove it"))?;
        }
        let mut builder = Snapshot::builder(self.out, folder.model.clone(), folder.dimensions, self.index.clone())?;
        for (at, result) in results.iter().enumerate() {
            folder.read(at, result, &mut |item, vector| builder.add(&item, vector))?;
        }
        let of = results.iter().map(|result| result.items).sum();
        builder.write(&mut |joined| report(IndexProgress::Joining { items: joined as u64, of }))
    }
}

/// Destination of a shard's items.
trait ShardWriter {
    fn add(&mut self, item: Item, vector: &[f32]) -> Result<()>;
    /// Makes the items durable.
    fn finish(&mut self, items: u64) -> Result<ShardResult>;
}

fn sibling(out: &Path, suffix: &str) -> Result<PathBuf> {
    let unnamed = || Error::config(out.display(), "is not a folder name: give a new folder");
    let mut name = out.file_name().ok_or_else(unnamed)?.to_os_string();
    name.push(".");
    name.push(suffix);
    Ok(out.with_file_name(name))
}

fn read_plan(home: &Path) -> Result<Option<IndexPlan>> {
    let path = home.join(PLAN);
    match fs::read(&path) {
        Ok(text) => {
            let broken = |e| Error::data(&path, None, "is not an indexing plan: remove its folder").because(e);
            serde_json::from_slice(&text).map(Some).map_err(broken)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::store(&path, "read it")(error)),
    }
}

fn plan_mismatch(home: &Path) -> Error {
    let problem =
        "was started with another model, other files or other settings: remove it, or continue with the same ones";
    Error::config(home.display(), problem)
}

#[cfg(test)]
mod tests;
