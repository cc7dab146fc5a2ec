//! What shards leave until all are there: vectors, items, and a mark with their checksums, written last.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use souk_native::Numbers;

use super::Writer;
use souk_ingest::import::Shard;
use souk_io::atomic_dir::write_whole;
use souk_io::checksummed::{Sum, Summing, read_json_lines, read_numbers};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// What one shard came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Left {
    pub items: u64,
    pub seconds: f64,
    /// Vectors and items, where they lie in files.
    files: Option<(Sum, Sum)>,
}

impl Left {
    /// Of what is kept elsewhere.
    pub fn elsewhere(items: u64, seconds: f64) -> Self {
        Self { items, seconds, files: None }
    }
}

#[derive(Serialize, Deserialize)]
struct Mark {
    shard: Shard,
    left: Left,
}

/// The folder of shards.
pub struct Kept<'a> {
    pub home: &'a Path,
    pub model: (String, i64),
}

impl Kept<'_> {
    fn mark_of(&self, at: usize) -> PathBuf {
        self.home.join(format!("{at:07}.json"))
    }

    /// Adds those that are through by now, with what they left.
    pub fn look(&self, shards: &[Shard], done: &mut BTreeMap<usize, Left>) -> Result<()> {
        for (at, shard) in shards.iter().enumerate() {
            if done.contains_key(&at) {
                continue;
            }
            let path = self.mark_of(at);
            let Ok(text) = fs::read(&path) else { continue };
            let broken = |e| Error::data(&path, None, "is no mark of a shard: remove it").because(e);
            let mark: Mark = serde_json::from_slice(&text).map_err(broken)?;
            if mark.shard == *shard {
                done.insert(at, mark.left);
            }
        }
        Ok(())
    }

    pub fn mark(&self, at: usize, shard: &Shard, left: Left) -> Result<()> {
        write_whole(&self.mark_of(at), &Mark { shard: shard.clone(), left })
    }

    pub fn writer(&self, at: usize) -> Result<Files> {
        Files::open(self.home.join(format!("{at:07}.f32")), self.home.join(format!("{at:07}.jsonl")))
    }

    /// Hands on what a shard left; what was damaged meanwhile is made anew by the next run.
    pub fn read(&self, at: usize, left: &Left, each: &mut dyn FnMut(Item, &[f32]) -> Result<()>) -> Result<()> {
        let Some((vectors, items)) = left.files else { return Ok(()) };
        let stem = self.home.join(format!("{at:07}"));
        let read = || {
            let vectors: Numbers<f32> = read_numbers(&stem.with_extension("f32"), vectors)?;
            Ok::<_, Error>((vectors, read_json_lines::<Item>(&stem.with_extension("jsonl"), items)?))
        };
        let (vectors, items) = read().inspect_err(|_| drop(fs::remove_file(self.mark_of(at))))?;
        let width = usize::try_from(self.model.1).unwrap_or_default();
        items.into_iter().zip(vectors.chunks_exact(width)).try_for_each(|(item, vector)| each(item, vector))
    }
}

/// A shard on its way.
pub struct Files {
    vectors: (PathBuf, Option<Summing>),
    items: (PathBuf, Option<Summing>),
    began: Instant,
}

impl Files {
    fn open(vectors: PathBuf, items: PathBuf) -> Result<Self> {
        let open = |path: PathBuf| {
            // half written by a process that was killed
            drop(fs::remove_file(&path));
            let file = Summing::create(&path)?;
            Ok::<_, Error>((path, Some(file)))
        };
        Ok(Self { vectors: open(vectors)?, items: open(items)?, began: Instant::now() })
    }
}

impl Writer for Files {
    fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
        let open = "nothing is added to what is finished";
        let (path, file) = &mut self.vectors;
        let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        file.as_mut().expect(open).write_all(&bytes).map_err(Error::store(path, "write it"))?;
        let (path, file) = &mut self.items;
        let mut line = serde_json::to_vec(&item).expect("what is written here has text for keys");
        line.push(b'\n');
        file.as_mut().expect(open).write_all(&line).map_err(Error::store(path, "write it"))
    }

    fn finish(&mut self, items: u64) -> Result<Left> {
        let sum =
            |(path, file): &mut (PathBuf, Option<Summing>)| file.take().expect("it is finished once").finish(path);
        let files = Some((sum(&mut self.vectors)?, sum(&mut self.items)?));
        Ok(Left { items, seconds: self.began.elapsed().as_secs_f64(), files })
    }
}
