//! A catalogue of any size, to be read in shards: JSON lines, Parquet or Arrow, in a file or a folder, here or in an object store.
//! Takes an address, gives shards that are known without reading the files, and the items of each, whoever reads the others.

mod batches;
mod groups;
mod held;
mod lines;

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::held::Held;
use super::catalogue::{Column, USUAL};
use super::fields::{OWN_NAMES, listed};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};
use souk_io::objects::{Object, Objects};

/// A part of a catalogue that is read by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    pub file: Object,
    /// As they lie in the file, roughly.
    pub bytes: u64,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    /// The lines that begin there.
    Bytes { from: u64, to: u64 },
    /// Row groups of Parquet, record batches of Arrow.
    Groups { from: usize, to: usize },
}

/// Rows of a shard with their numbers, from 1.
pub type Items<'a> = Box<dyn Iterator<Item = Result<(u64, Item)>> + 'a>;

pub struct ItemFiles {
    objects: Arc<Objects>,
    columns: Vec<Column>,
}

#[derive(Clone, Copy)]
enum Kind {
    Lines,
    Parquet,
    Arrow,
}

impl ItemFiles {
    /// `columns` say which hold what of an item, where their names do not.
    pub fn open(address: &str, columns: Vec<Column>) -> Result<Self> {
        Ok(Self { objects: Arc::new(Objects::open(address)?), columns })
    }

    /// Shards of about `max_bytes`, in the order of the files' names; a row group of Parquet stays whole. `told` hears of what is
    /// left out.
    pub fn shards(&self, max_bytes: u64, told: &mut dyn FnMut(&str)) -> Result<Vec<Shard>> {
        let mut shards = Vec::new();
        for file in self.objects.list()? {
            let Some(kind) = self.kind(&file) else {
                told(&format!(
                    "{}: left out, for its name ends neither with .jsonl, .ndjson or .json, nor .parquet, nor .arrow, .feather or .ipc",
                    self.name(&file)
                ));
                continue;
            };
            let parts = match kind {
                Kind::Lines => lines::parts(file.bytes, max_bytes),
                Kind::Parquet => groups::parts(&self.held(&file), max_bytes, told)?,
                Kind::Arrow => batches::parts(&self.held(&file), max_bytes)?,
            };
            shards.extend(parts.into_iter().map(|(part, bytes)| Shard { file: file.clone(), bytes, part }));
        }
        match shards.is_empty() {
            true => Err(Error::config(self.objects.name(""), "holds no items")),
            false => Ok(shards),
        }
    }

    /// What was said of columns, as it is said.
    pub fn columns(&self) -> String {
        let said = self.columns.iter().map(|Column { field, from }| format!("{field}={from}"));
        said.collect::<Vec<_>>().join(",")
    }

    pub fn items(&self, shard: &Shard) -> Result<Items<'_>> {
        let held = self.held(&shard.file);
        match (self.kind(&shard.file), shard.part) {
            (Some(Kind::Lines), Part::Bytes { from, to }) => lines::items(held, (from, to), &self.columns),
            (Some(Kind::Parquet), Part::Groups { from, to }) => groups::items(&held, from..to, &self.columns),
            (Some(Kind::Arrow), Part::Groups { from, to }) => batches::items(&held, from..to, &self.columns),
            _ => Err(Error::input(format!("{} cannot be read in that way", self.name(&shard.file)))),
        }
    }

    /// What a message calls an item.
    pub fn place(&self, shard: &Shard, number: u64, id: &str) -> String {
        let file = self.name(&shard.file);
        match shard.part {
            Part::Bytes { from: 0, .. } => format!("{file}, line {number}, item `{id}`"),
            Part::Bytes { from, .. } => format!("{file}, line {number} after byte {from}, item `{id}`"),
            Part::Groups { from, .. } => format!("{file}, row {number} from group {from} on, item `{id}`"),
        }
    }

    fn held(&self, file: &Object) -> Held {
        Held::new(self.objects.clone(), file)
    }

    fn name(&self, file: &Object) -> String {
        self.objects.name(&file.name)
    }

    fn kind(&self, file: &Object) -> Option<Kind> {
        let name = PathBuf::from(self.name(file));
        match name.extension()?.to_str()? {
            "jsonl" | "ndjson" | "json" => Some(Kind::Lines),
            "parquet" | "pq" => Some(Kind::Parquet),
            "arrow" | "feather" | "ipc" => Some(Kind::Arrow),
            _ => None,
        }
    }
}

/// Which columns of a table make an item: those that somebody named, or those with usual names.
struct Mapping(Vec<(String, String)>);

impl Mapping {
    fn of(columns: &[Column], names: &[String], file: &str) -> Result<Self> {
        let find = |column: &str| names.iter().find(|name| name.eq_ignore_ascii_case(column)).cloned();
        let shown = || listed(names.iter().map(String::as_str));
        let mut mapped = Vec::new();
        for Column { field, from } in columns {
            let missing = || Error::config(file, format!("has no column `{from}`; its columns are: {}", shown()));
            mapped.push((field.clone(), find(from).ok_or_else(missing)?));
        }
        if columns.is_empty() {
            let usual = USUAL
                .iter()
                .filter_map(|(field, names)| Some(((*field).to_owned(), names.iter().find_map(|name| find(name))?)));
            mapped.extend(usual);
        }
        match mapped.iter().any(|(field, _)| field == "id") {
            true => Ok(Self(mapped)),
            false => {
                let problem = format!(
                    "it is not known which column is the id: say --columns id=...; its columns are: {}",
                    shown()
                );
                Err(Error::config(file, problem))
            }
        }
    }

    /// An item of a row; nothing where it has no id.
    fn item(&self, mut row: Map<String, Value>) -> Option<Item> {
        let mut item = Item { id: String::new(), title: String::new(), text: String::new(), fields: Map::new() };
        for (field, column) in &self.0 {
            let Some(value) = row.remove(column).filter(|value| !value.is_null()) else { continue };
            match field.as_str() {
                "id" => item.id = text(&value),
                "title" => join(&mut item.title, &text(&value)),
                "text" => join(&mut item.text, &text(&value)),
                _ => drop(item.fields.insert(field.clone(), value)),
            }
        }
        for (mut name, value) in row.into_iter().filter(|(_, value)| !value.is_null()) {
            while OWN_NAMES.contains(&name.as_str()) || item.fields.contains_key(&name) {
                name.push('_');
            }
            item.fields.insert(name, value);
        }
        (!item.id.is_empty()).then_some(item)
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn join(to: &mut String, more: &str) {
    if !to.is_empty() && !more.is_empty() {
        to.push(' ');
    }
    to.push_str(more);
}

/// Neighbouring groups, as many as come to `max_bytes`.
fn merged(sizes: impl Iterator<Item = u64>, max_bytes: u64) -> Vec<(Part, u64)> {
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0);
    let mut end = 0;
    for (at, size) in sizes.enumerate() {
        if at > from && bytes + size > max_bytes {
            parts.push((Part::Groups { from, to: at }, bytes));
            (from, bytes) = (at, 0);
        }
        bytes += size;
        end = at + 1;
    }
    if end > from {
        parts.push((Part::Groups { from, to: end }, bytes));
    }
    parts
}

#[cfg(test)]
mod tests;
