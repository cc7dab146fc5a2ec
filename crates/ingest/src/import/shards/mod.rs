//! Sharded catalogues: JSON lines, Parquet or Arrow, in a file or a folder, on disk or in an object store. Takes an
//! address, gives shards without reading whole files, and the items of each shard independently of the others.

mod batches;
mod columnar_file;
mod groups;
mod lines;
mod windowed_file;

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::columnar_file::ColumnarFile;
use self::windowed_file::WindowedFile;
use super::columns::Column;
use super::mapping::Mapping;
use souk_io::domain::Item;
use souk_io::error::{Error, Result};
use souk_io::objects::{Object, Objects};

/// Independently readable part of a catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    pub file: Object,
    /// Approximate size in the file.
    pub bytes: u64,
    part: ShardPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ShardPart {
    /// Lines that start in this byte range.
    Bytes { from: u64, to: u64 },
    /// Parquet row groups or Arrow record batches.
    Groups { from: usize, to: usize },
}

/// Items of a shard with their row numbers, from 1.
pub type Items<'a> = Box<dyn Iterator<Item = Result<(u64, Item)>> + 'a>;

/// Row as a JSON object, with its number, from 1.
type NumberedObject = (u64, Map<String, Value>);

/// Rows of a part of a file.
struct ObjectRows {
    names: Vec<String>,
    rows: Box<dyn Iterator<Item = Result<NumberedObject>>>,
}

/// Catalogue files at an address.
pub struct ItemFiles {
    objects: Arc<Objects>,
    columns: Vec<Column>,
}

#[derive(Clone, Copy)]
enum FileKind {
    Lines,
    Parquet,
    Arrow,
}

impl ItemFiles {
    /// Opens an address. `columns` maps item fields to columns; if empty, columns are found by their usual names.
    pub fn open(address: &str, columns: Vec<Column>) -> Result<Self> {
        Ok(Self { objects: Arc::new(Objects::open(address)?), columns })
    }

    /// Shards of about `max_bytes`, ordered by file name; a Parquet row group is never split. `note` gets a message for
    /// everything skipped.
    pub fn shards(&self, max_bytes: u64, note: &mut dyn FnMut(&str)) -> Result<Vec<Shard>> {
        let mut shards = Vec::new();
        for file in self.objects.list()? {
            let Some(kind) = self.kind(&file) else {
                let known = ".jsonl, .ndjson, .json, .parquet, .pq, .arrow, .feather or .ipc";
                note(&format!("{}: skipped, its name does not end with {known}", self.name(&file)));
                continue;
            };
            let parts = match kind {
                FileKind::Lines => lines::parts(file.bytes, max_bytes),
                FileKind::Parquet => groups::parts(&self.windowed(&file), max_bytes, note)?,
                FileKind::Arrow => batches::parts(&self.windowed(&file), max_bytes)?,
            };
            shards.extend(parts.into_iter().map(|(part, bytes)| Shard { file: file.clone(), bytes, part }));
        }
        if shards.is_empty() {
            return Err(Error::config(self.objects.name(""), "has no items"));
        }
        Ok(shards)
    }

    /// Column map in the form of the option `--columns`.
    pub fn columns(&self) -> String {
        let pairs = self.columns.iter().map(|Column { field, from }| format!("{field}={from}"));
        pairs.collect::<Vec<_>>().join(",")
    }

    pub fn items(&self, shard: &Shard) -> Result<Items<'_>> {
        let file = self.windowed(&shard.file);
        match (self.kind(&shard.file), shard.part) {
            (Some(FileKind::Lines), ShardPart::Bytes { from, to }) => lines::items(file, from, to, &self.columns),
            (Some(FileKind::Parquet), ShardPart::Groups { from, to }) => groups::items(&file, from..to, &self.columns),
            (Some(FileKind::Arrow), ShardPart::Groups { from, to }) => batches::items(&file, from..to, &self.columns),
            _ => Err(Error::input(format!("{}: the shard does not match the file's format", self.name(&shard.file)))),
        }
    }

    /// Location of an item, for messages.
    pub fn place(&self, shard: &Shard, number: u64, id: &str) -> String {
        let file = self.name(&shard.file);
        match shard.part {
            ShardPart::Bytes { from: 0, .. } => format!("{file}, line {number}, item `{id}`"),
            ShardPart::Bytes { from, .. } => format!("{file}, line {number} after byte {from}, item `{id}`"),
            ShardPart::Groups { from, .. } => format!("{file}, row {number} from group {from} on, item `{id}`"),
        }
    }

    fn windowed(&self, file: &Object) -> WindowedFile {
        WindowedFile::new(self.objects.clone(), file)
    }

    fn name(&self, file: &Object) -> String {
        self.objects.name(&file.name)
    }

    fn kind(&self, file: &Object) -> Option<FileKind> {
        let name = PathBuf::from(self.name(file));
        match name.extension()?.to_str()? {
            "jsonl" | "ndjson" | "json" => Some(FileKind::Lines),
            "parquet" | "pq" => Some(FileKind::Parquet),
            "arrow" | "feather" | "ipc" => Some(FileKind::Arrow),
            _ => None,
        }
    }
}

/// Merges neighbouring groups up to `max_bytes`.
fn merge_groups(sizes: impl Iterator<Item = u64>, max_bytes: u64) -> Vec<(ShardPart, u64)> {
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0);
    let mut end = 0;
    for (at, size) in sizes.enumerate() {
        if at > from && bytes + size > max_bytes {
            parts.push((ShardPart::Groups { from, to: at }, bytes));
            (from, bytes) = (at, 0);
        }
        bytes += size;
        end = at + 1;
    }
    if end > from {
        parts.push((ShardPart::Groups { from, to: end }, bytes));
    }
    parts
}

#[cfg(test)]
pub(super) mod tests;
