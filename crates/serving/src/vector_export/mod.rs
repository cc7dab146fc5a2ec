//! Exports the vectors of an index for another engine: takes a snapshot, gives a folder with the vectors in the engine's format, the
//! definition of an index that holds them, and the model's fingerprint. Never encodes anything.

mod engines;
mod parts;
mod table;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::index::Snapshot;
use engines::{definition, document, framing};
use parts::Parts;
use souk_io::atomic_dir::{AtomicDir, write_json_atomic};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// File that names the model of the vectors.
pub const ABOUT: &str = "souk.json";
/// Field with the model's fingerprint in each document.
pub const MODEL_FIELD: &str = "souk_model";
/// Name of the index or document type, if none is given.
pub const DEFAULT_NAME: &str = "items";
/// Field of the vectors, if none is given.
pub const DEFAULT_FIELD: &str = "souk_vector";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VectorFormat {
    Parquet,
    Jsonl,
    OpensearchBulk,
    Elasticsearch,
    Qdrant,
    Vespa,
}

impl VectorFormat {
    pub const ALL: [Self; 6] =
        [Self::Parquet, Self::Jsonl, Self::OpensearchBulk, Self::Elasticsearch, Self::Qdrant, Self::Vespa];

    pub fn name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Jsonl => "jsonl",
            Self::OpensearchBulk => "opensearch-bulk",
            Self::Elasticsearch => "elasticsearch",
            Self::Qdrant => "qdrant",
            Self::Vespa => "vespa",
        }
    }
}

/// Vectors to export, and how.
pub struct VectorExport<'a> {
    pub snapshot: &'a Snapshot,
    pub format: VectorFormat,
    /// Field or column of the vectors.
    pub field: &'a str,
    /// Name of the index or document type.
    pub name: &'a str,
    /// Whether documents contain the item beside its vector.
    pub with_items: bool,
}

/// Written to `souk.json`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportReport {
    pub format: VectorFormat,
    /// Fingerprint of the model.
    pub model: String,
    pub dimensions: usize,
    pub num_items: usize,
    /// Field or column of the vectors.
    pub field: String,
    /// Files with vectors, in order.
    pub files: Vec<String>,
}

impl VectorExport<'_> {
    /// Writes the new folder `out`, whole or not at all. `on_item` gets the number of items so far.
    pub fn write(&self, out: &Path, on_item: &mut dyn FnMut(u64)) -> Result<ExportReport> {
        check_name("--field", self.field)?;
        check_name("--name", self.name)?;
        let folder = AtomicDir::new(out)?;
        let manifest = self.snapshot.manifest();
        let files = match framing(self.format) {
            None => vec![table::write(self, &folder.staging, on_item)?],
            Some(framing) => self.write_documents(Parts::new(&folder.staging, framing), on_item)?,
        };
        if let Some((file, text)) = definition(self) {
            let path = folder.staging.join(file);
            std::fs::write(&path, text).map_err(Error::store(&path, "write it"))?;
        }
        let report = ExportReport {
            format: self.format,
            model: manifest.model.clone(),
            dimensions: manifest.dimensions,
            num_items: manifest.num_items,
            field: self.field.into(),
            files,
        };
        write_json_atomic(&folder.staging.join(ABOUT), &report)?;
        folder.finish()?;
        Ok(report)
    }

    fn write_documents(&self, mut parts: Parts, on_item: &mut dyn FnMut(u64)) -> Result<Vec<String>> {
        for (at, entry) in self.snapshot.entries().enumerate() {
            let (item, vector) = entry?;
            parts.push(document(self, &item, vector)?.as_bytes())?;
            on_item(at as u64 + 1);
        }
        parts.finish()
    }

    /// Fields of a document: the vector, the model, and with `with_items` those of the item.
    fn fields(&self, item: &Item, vector: &[f32]) -> Result<Value> {
        let vector: Vec<f64> = vector.iter().map(|number| in_few_digits(*number)).collect();
        let mut fields = json!({MODEL_FIELD: self.snapshot.manifest().model, self.field: vector});
        if self.with_items {
            let texts = [("title", json!(item.title)), ("text", json!(item.text))];
            let own = item.fields.iter().map(|(name, value)| (name.as_str(), value.clone()));
            for (name, value) in texts.into_iter().chain(own) {
                if !fields[name].is_null() {
                    let problem = format!("`{name}` is a field of item `{}` as well: give another --field", item.id);
                    return Err(Error::config("--with-items", problem));
                }
                fields[name] = value;
            }
        }
        Ok(fields)
    }
}

/// The number that is written with the digits of an f32, not with those of the f64 that equals it: half as many.
fn in_few_digits(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// Names that all engines accept, so that a schema needs no quoting.
fn check_name(flag: &str, name: &str) -> Result<()> {
    let begins = name.starts_with(|first: char| first.is_ascii_lowercase());
    if begins && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
        return Ok(());
    }
    let problem = format!("is `{name}`: use lowercase letters, digits and underscores, with a letter first");
    Err(Error::config(flag, problem))
}

#[cfg(test)]
mod tests;
