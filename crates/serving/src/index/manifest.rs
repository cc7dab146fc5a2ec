//! Manifest of an index: the model that made its vectors, how it is searched, and the checksum of each file. Written
//! last, so a folder that has one is complete.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_io::atomic_dir::fsync;
use souk_io::checksummed::Checksum;
use souk_io::error::{Error, Result};

const MANIFEST: &str = "manifest.json";
const FORMAT: u32 = 2;

/// Search method of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IndexKind {
    /// `exact` for few items, `hnsw` for more.
    #[default]
    Auto,
    /// Brute force over all vectors.
    Exact,
    /// HNSW graph.
    Hnsw,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IndexSettings {
    /// Kind of index.
    #[serde(rename = "type")]
    pub kind: IndexKind,
    /// Links of a new node in the HNSW graph (M).
    pub links: usize,
    /// Search width when building the graph (efConstruction).
    pub build_reach: usize,
    /// Build threads; 0 uses every core.
    pub threads: usize,
    /// Search the graph with int8 codes and rescore the results exactly.
    pub codes: bool,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self { kind: IndexKind::Auto, links: 16, build_reach: 200, threads: 0, codes: true }
    }
}

impl IndexSettings {
    pub(super) fn check(&self) -> Result<()> {
        if !(2..=256).contains(&self.links) {
            return Err(Error::config("index.links", format!("is {}: set it to 2 to 256 (default 16)", self.links)));
        }
        if self.build_reach < self.links {
            let problem = format!("is {}: set it to index.links ({}) or more", self.build_reach, self.links);
            return Err(Error::config("index.build_reach", problem));
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// Fingerprint of the model that made the vectors.
    pub model: String,
    pub dimensions: usize,
    pub num_items: usize,
    /// Number of distinct vectors; items with equal vectors share a row.
    pub num_rows: usize,
    /// `exact` or `hnsw`.
    #[serde(rename = "type")]
    pub kind: IndexKind,
    /// Number of nodes in each graph layer, the full layer first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<usize>,
    pub files: BTreeMap<String, Checksum>,
}

impl Manifest {
    pub(super) fn new(model: String, dimensions: usize, num_items: usize, num_rows: usize, kind: IndexKind) -> Self {
        Self {
            format: FORMAT,
            model,
            dimensions,
            num_items,
            num_rows,
            kind,
            layers: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    /// Reads the manifest in `dir`.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let path = dir.join(MANIFEST);
        let text = fs::read(&path).map_err(Error::store(&path, "open the index"))?;
        let broken = |e| Error::data(&path, None, "is not an index manifest: rebuild the index").because(e);
        let Format { format } = serde_json::from_slice(&text).map_err(broken)?;
        if format != FORMAT {
            let problem = format!("has format {format}, but this version reads {FORMAT}: rebuild the index");
            return Err(Error::data(&path, None, problem));
        }
        serde_json::from_slice(&text).map_err(broken)
    }

    /// Checks the model and the dimensions of the manifest in `dir`.
    pub(super) fn check(&self, dir: &Path, model: &str, dimensions: usize) -> Result<()> {
        let path = dir.join(MANIFEST);
        if self.dimensions != dimensions {
            let stored = self.dimensions;
            let problem = format!("holds vectors of {stored} entries, the model is set to {dimensions}: set the same");
            return Err(Error::data(&path, None, problem));
        }
        if self.model != model {
            let problem = format!("built by model {}, but the model given is {model}: rebuild the index", self.model);
            return Err(Error::data(&path, None, problem));
        }
        Ok(())
    }

    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(MANIFEST);
        let text = serde_json::to_string_pretty(self).expect("manifest keys are strings");
        fs::write(&path, text + "\n").map_err(Error::store(&path, "write it"))?;
        fsync(&path)
    }

    /// Checksum of a required file.
    pub(super) fn sum(&self, dir: &Path, name: &str) -> Result<Checksum> {
        let missing = || Error::data(&dir.join(MANIFEST), None, format!("does not list `{name}`: rebuild the index"));
        self.files.get(name).copied().ok_or_else(missing)
    }
}
