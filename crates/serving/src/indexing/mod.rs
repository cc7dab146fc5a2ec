//! A catalogue encoded anew: shard by shard, over all ranks, and on from where it was after a kill; then one index of it, in a folder
//! or in a collection of Milvus. Ranks share a folder and exchange nothing else. Takes an encoder and files of items; never serves
//! anything.

mod kept;
mod pace;
mod remote;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::kept::{Kept, Left};
pub use self::pace::Pace;
use self::remote::Remote;
use crate::index::{IndexSettings, Manifest, MilvusSettings, Snapshot};
use souk_ingest::import::{ItemFiles, Shard};
use souk_io::atomic_dir::write_whole;
use souk_io::domain::{Item, TextKind};
use souk_io::error::{Error, Result};
use souk_nn::collective::Place;
use souk_nn::encoder::{Encoder, Limits, Worker, encode};

const PLAN: &str = "plan.json";
const LOCK: &str = "lock";
const POLL: Duration = Duration::from_millis(200);
/// How long a rank waits for the first one to say what is done.
const PATIENCE: Duration = Duration::from_secs(600);

/// Where the vectors go.
#[derive(Clone, Debug)]
pub enum Into {
    Folder,
    Milvus {
        settings: MilvusSettings,
        collection: String,
        /// Given to the collection once it is whole.
        alias: Option<String>,
    },
}

/// What is to be done.
pub struct Job<'a> {
    pub files: &'a ItemFiles,
    /// The index's folder; what is not yet an index lies beside it.
    pub out: &'a Path,
    pub into: Into,
    pub index: IndexSettings,
    /// Roughly what is lost by a kill.
    pub shard_bytes: u64,
    pub limits: Limits,
    /// What else decides the vectors, such as the precision: who goes on, goes on with the same.
    pub made_with: String,
}

/// What was agreed on: who goes on, goes on with the same.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Plan {
    model: String,
    dimensions: i64,
    made_with: String,
    into: String,
    columns: String,
    shards: Vec<Shard>,
}

/// How it ended.
#[derive(Clone, Debug, Serialize)]
pub struct Done {
    pub num_items: u64,
    pub dimensions: i64,
    pub num_shards: usize,
    /// Of them, those that an earlier run had done.
    pub shards_before: usize,
    #[serde(flatten)]
    pub pace: Pace,
    /// What is in the folder.
    pub manifest: Option<Manifest>,
    pub collection: Option<String>,
}

/// How far it is.
pub enum Progress<'a> {
    Note(&'a str),
    Encoding(&'a Pace),
    /// All is encoded here; shards of other ranks are waited for.
    Waiting(usize),
    Joining {
        items: u64,
        of: u64,
    },
}

impl Job<'_> {
    /// Encodes this rank's shards; the first rank makes the index of all, and says what came of it.
    pub fn run(&self, encoder: Encoder, told: &mut dyn FnMut(Progress<'_>)) -> Result<Option<Done>> {
        let (rank, size) = Place::from_environment()?.map_or((0, 1), |place| (place.rank, place.size));
        let plan = Plan {
            model: encoder.fingerprint()?,
            dimensions: encoder.dimensions(),
            made_with: self.made_with.clone(),
            into: self.target(),
            columns: self.files.columns(),
            shards: self.files.shards(self.shard_bytes, &mut |note| told(Progress::Note(note)))?,
        };
        let home = beside(self.out, "shards")?;
        let lock = if rank == 0 { Some(self.begin(&home, &plan)?) } else { None };
        if rank > 0 && !self.follow(&home, &plan)? {
            return Ok(None);
        }
        let kept = Kept { home: &home, model: (plan.model.clone(), plan.dimensions) };
        let remote = match &self.into {
            Into::Folder => None,
            Into::Milvus { settings, collection, .. } => {
                Some(Remote::open((settings, collection), (&plan.model, plan.dimensions), (&self.index, rank == 0))?)
            }
        };
        let mut before = BTreeMap::new();
        kept.look(&plan.shards, &mut before)?;
        let mine = || plan.shards.iter().enumerate().skip(rank).step_by(size);
        let mut pace = Pace::new(mine(), &before);
        let worker = Worker::start(encoder, self.limits)?;
        for (at, shard) in mine().filter(|(at, _)| !before.contains_key(at)) {
            let left = match &remote {
                None => self.encode(shard, &worker, &mut kept.writer(at)?, (&mut pace, told))?,
                Some(remote) => self.encode(shard, &worker, remote.writer().as_mut(), (&mut pace, told))?,
            };
            kept.mark(at, shard, left)?;
            pace.ended(shard);
        }
        if rank > 0 {
            return Ok(None);
        }
        let left = self.wait_for_all(&kept, &plan, told)?;
        let num_items = left.iter().map(|left| left.items).sum();
        let (mut manifest, mut name) = (None, None);
        match (&self.into, &remote) {
            (Into::Milvus { alias, .. }, Some(remote)) => name = Some(remote.finish(num_items, alias.as_deref())?),
            _ => manifest = Some(self.join(&kept, &left, told)?),
        }
        drop(lock);
        fs::remove_dir_all(&home).map_err(Error::store(&home, "remove it"))?;
        let pace = pace.of_all(num_items, &before);
        let (dimensions, num_shards) = (plan.dimensions, plan.shards.len());
        Ok(Some(Done {
            num_items,
            dimensions,
            num_shards,
            shards_before: before.len(),
            pace,
            manifest,
            collection: name,
        }))
    }

    fn target(&self) -> String {
        match &self.into {
            Into::Folder => "folder".into(),
            Into::Milvus { collection, .. } => format!("collection {collection}"),
        }
    }

    /// Writes the plan down, or finds that it is the one that was followed before. Nobody else works at it meanwhile.
    fn begin(&self, home: &Path, plan: &Plan) -> Result<File> {
        if self.is_made() {
            return Err(Error::config(self.out.display(), "is not empty: give a new folder"));
        }
        fs::create_dir_all(home).map_err(Error::store(home, "make the folder"))?;
        let lock = home.join(LOCK);
        let held = File::create(&lock).map_err(Error::store(&lock, "make it"))?;
        if held.try_lock().is_err() {
            return Err(Error::config(
                home.display(),
                "another process is at work there: wait for it, or give another --out",
            ));
        }
        match read_plan(home)? {
            None => write_whole(&home.join(PLAN), plan)?,
            Some(known) if known == *plan => {}
            Some(_) => return Err(another(home)),
        }
        Ok(held)
    }

    /// Waits for the first rank's plan; false where all is done already.
    fn follow(&self, home: &Path, plan: &Plan) -> Result<bool> {
        let began = Instant::now();
        loop {
            let known = read_plan(home)?;
            if known.as_ref() == Some(plan) {
                return Ok(true);
            }
            if known.is_none() && self.is_made() {
                return Ok(false);
            }
            if began.elapsed() > PATIENCE {
                return Err(another(home));
            }
            sleep(POLL);
        }
    }

    fn is_made(&self) -> bool {
        fs::read_dir(self.out).is_ok_and(|mut entries| entries.next().is_some())
    }

    fn encode(
        &self,
        shard: &Shard,
        worker: &Worker,
        writer: &mut dyn Writer,
        (pace, told): (&mut Pace, &mut dyn FnMut(Progress<'_>)),
    ) -> Result<Left> {
        let place = |(number, item): &(u64, Item)| self.files.place(shard, *number, &item.id);
        let passage = |(_, item): &(u64, Item)| item.passage();
        let mut items = 0;
        encode(worker, Some(TextKind::Item), self.files.items(shard)?, (passage, place), |(_, item), vector| {
            writer.add(item, &vector)?;
            items += 1;
            pace.encoded();
            told(Progress::Encoding(pace));
            Ok::<(), Error>(())
        })?;
        writer.finish(items)
    }

    /// What all shards left, once all ranks are through.
    fn wait_for_all(&self, kept: &Kept, plan: &Plan, told: &mut dyn FnMut(Progress<'_>)) -> Result<Vec<Left>> {
        let mut done = BTreeMap::new();
        loop {
            kept.look(&plan.shards, &mut done)?;
            match plan.shards.len() - done.len() {
                0 => return Ok(done.into_values().collect()),
                missing => told(Progress::Waiting(missing)),
            }
            sleep(POLL);
        }
    }

    fn join(&self, kept: &Kept, left: &[Left], told: &mut dyn FnMut(Progress<'_>)) -> Result<Manifest> {
        let half = beside(self.out, "part")?;
        if half.exists() {
            // ours, for we hold the lock: a run before was killed while it joined
            fs::remove_dir_all(&half).map_err(Error::store(&half, "remove it"))?;
        }
        let mut builder = Snapshot::builder(self.out, kept.model.clone(), self.index.clone())?;
        for (at, left) in left.iter().enumerate() {
            kept.read(at, left, &mut |item, vector| builder.add(&item, vector))?;
        }
        let of = left.iter().map(|left| left.items).sum();
        builder.write(&mut |joined| told(Progress::Joining { items: joined as u64, of }))
    }
}

/// Takes a shard's items.
trait Writer {
    fn add(&mut self, item: Item, vector: &[f32]) -> Result<()>;
    /// Makes sure that they stay.
    fn finish(&mut self, items: u64) -> Result<Left>;
}

fn beside(out: &Path, what: &str) -> Result<PathBuf> {
    let nameless = || Error::config(out.display(), "is no name for a folder: give a new one");
    let mut name = out.file_name().ok_or_else(nameless)?.to_os_string();
    name.push(".");
    name.push(what);
    Ok(out.with_file_name(name))
}

fn read_plan(home: &Path) -> Result<Option<Plan>> {
    let path = home.join(PLAN);
    match fs::read(&path) {
        Ok(text) => {
            let broken = |e| Error::data(&path, None, "is no plan: remove its folder").because(e);
            serde_json::from_slice(&text).map(Some).map_err(broken)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::store(&path, "read it")(error)),
    }
}

fn another(home: &Path) -> Error {
    let problem = "was begun with another model, other files or other settings: remove it, or go on with the same";
    Error::config(home.display(), problem)
}

#[cfg(test)]
mod tests;
