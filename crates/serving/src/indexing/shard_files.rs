//! Files of encoded shards, kept until all are done: vectors, items, and a mark with their checksums, written last.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use souk_native::{Numbers, bytes_of};

use super::ShardWriter;
use souk_ingest::import::Shard;
use souk_io::atomic_dir::write_json_atomic;
use souk_io::checksummed::{Checksum, ChecksumWriter, read_json_lines, read_numbers};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Result of one shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardResult {
    pub items: u64,
    pub seconds: f64,
    /// Checksums of vectors and items, if stored in files.
    files: Option<(Checksum, Checksum)>,
}

impl ShardResult {
    /// Result of a shard stored elsewhere.
    pub fn remote(items: u64, seconds: f64) -> Self {
        Self { items, seconds, files: None }
    }
}

#[derive(Serialize, Deserialize)]
struct ShardMark {
    shard: Shard,
    #[serde(rename = "left")]
    result: ShardResult,
}

/// Folder of the shards.
pub struct ShardFolder<'a> {
    pub home: &'a Path,
    pub model: String,
    pub dimensions: i64,
}

impl ShardFolder<'_> {
    fn mark_of(&self, at: usize) -> PathBuf {
        self.home.join(format!("{at:07}.json"))
    }

    /// Adds the shards that have finished since.
    pub fn refresh(&self, shards: &[Shard], done: &mut BTreeMap<usize, ShardResult>) -> Result<()> {
        for (at, shard) in shards.iter().enumerate() {
            if done.contains_key(&at) {
                continue;
            }
            let path = self.mark_of(at);
            let Ok(text) = fs::read(&path) else { continue };
            let broken = |e| Error::data(&path, None, "is not a shard mark: remove it").because(e);
            let mark: ShardMark = serde_json::from_slice(&text).map_err(broken)?;
            if mark.shard == *shard {
                done.insert(at, mark.result);
            }
        }
        Ok(())
    }

    pub fn mark(&self, at: usize, shard: &Shard, result: ShardResult) -> Result<()> {
        write_json_atomic(&self.mark_of(at), &ShardMark { shard: shard.clone(), result })
    }

    pub fn writer(&self, at: usize) -> Result<ShardFileWriter> {
        ShardFileWriter::open(self.home.join(format!("{at:07}.f32")), self.home.join(format!("{at:07}.jsonl")))
    }

    /// Reads a shard's items; a damaged shard loses its mark, so that the next run encodes it again.
    pub fn read(
        &self,
        at: usize,
        result: &ShardResult,
        visit: &mut dyn FnMut(Item, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let Some((vectors, items)) = result.files else { return Ok(()) };
        let stem = self.home.join(format!("{at:07}"));
        let read = || {
            let vectors: Numbers<f32> = read_numbers(&stem.with_extension("f32"), vectors)?;
            Ok::<_, Error>((vectors, read_json_lines::<Item>(&stem.with_extension("jsonl"), items)?))
        };
        let (vectors, items) = read().inspect_err(|_| drop(fs::remove_file(self.mark_of(at))))?;
        let width = usize::try_from(self.dimensions).unwrap_or_default();
        items.into_iter().zip(vectors.chunks_exact(width)).try_for_each(|(item, vector)| visit(item, vector))
    }
}

/// Writer of one shard's files.
pub struct ShardFileWriter {
    vectors: (PathBuf, Option<ChecksumWriter>),
    items: (PathBuf, Option<ChecksumWriter>),
    started: Instant,
}

impl ShardFileWriter {
    fn open(vectors: PathBuf, items: PathBuf) -> Result<Self> {
        let open = |path: PathBuf| {
            // left by a process that was killed
            drop(fs::remove_file(&path));
            let file = ChecksumWriter::create(&path)?;
            Ok::<_, Error>((path, Some(file)))
        };
        Ok(Self { vectors: open(vectors)?, items: open(items)?, started: Instant::now() })
    }
}

impl ShardWriter for ShardFileWriter {
    fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
        let open = "nothing is added after finish";
        let (path, file) = &mut self.vectors;
        file.as_mut().expect(open).write_all(bytes_of(vector)).map_err(Error::store(path, "write it"))?;
        let (path, file) = &mut self.items;
        let mut line = serde_json::to_vec(&item).expect("item keys are strings");
        line.push(b'\n');
        file.as_mut().expect(open).write_all(&line).map_err(Error::store(path, "write it"))
    }

    fn finish(&mut self, items: u64) -> Result<ShardResult> {
        let sum = |(path, file): &mut (PathBuf, Option<ChecksumWriter>)| {
            file.take().expect("finish is called once").finish(path)
        };
        let files = Some((sum(&mut self.vectors)?, sum(&mut self.items)?));
        Ok(ShardResult { items, seconds: self.started.elapsed().as_secs_f64(), files })
    }
}
