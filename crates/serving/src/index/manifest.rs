//! What an index is, beside its files: the model that made its vectors, how they are searched, and each file's checksum.
//! The manifest is written last and says what belongs to it, so that a folder with one is whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use souk_io::atomic_dir::sync_one;
use souk_io::checksummed::Sum;
use souk_io::error::{Error, Result};

const MANIFEST: &str = "manifest.json";
const FORMAT: u32 = 2;

/// How an index is searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `exact` for few items, `hnsw` for more.
    #[default]
    Auto,
    /// Every vector is looked at.
    Exact,
    /// A graph leads to the nearest.
    Hnsw,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IndexSettings {
    #[serde(rename = "type")]
    pub kind: Kind,
    /// Links that an item begins with in the graph.
    pub links: usize,
    /// How far it looks around for them.
    pub build_reach: usize,
    /// Threads that build; 0 takes every core.
    pub threads: usize,
    /// The graph is walked by codes of one byte for each entry, and what was found is scored exactly.
    pub codes: bool,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self { kind: Kind::Auto, links: 16, build_reach: 200, threads: 0, codes: true }
    }
}

impl IndexSettings {
    pub(super) fn check(&self) -> Result<()> {
        if !(2..=256).contains(&self.links) {
            return Err(Error::config("index.links", format!("is {}: say 2 to 256; 16 is usual", self.links)));
        }
        if self.build_reach < self.links {
            let problem = format!("is {}, less than the {} links that are looked for", self.build_reach, self.links);
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
    /// Items of one vector share a row.
    pub num_rows: usize,
    /// `exact` or `hnsw`.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The graph's nodes in each layer, all of them first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<usize>,
    pub files: BTreeMap<String, Sum>,
}

impl Manifest {
    pub(super) fn new((model, dimensions): (String, usize), (num_items, num_rows): (usize, usize), kind: Kind) -> Self {
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

    /// Reads it, provided that `model` made the index, with vectors of so many `dimensions`.
    pub(super) fn read(dir: &Path, model: &str, dimensions: usize) -> Result<Self> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let path = dir.join(MANIFEST);
        let text = fs::read(&path).map_err(Error::store(&path, "open the index"))?;
        let broken = |e| Error::data(&path, None, "is no manifest of an index: build the index again").because(e);
        let Format { format } = serde_json::from_slice(&text).map_err(broken)?;
        if format != FORMAT {
            let problem = format!("format {format}, this program reads {FORMAT}: build the index again");
            return Err(Error::data(&path, None, problem));
        }
        let manifest: Self = serde_json::from_slice(&text).map_err(broken)?;
        if manifest.dimensions != dimensions {
            let held = manifest.dimensions;
            let problem = format!("holds vectors of {held} entries, the model is set to {dimensions}: set the same");
            return Err(Error::data(&path, None, problem));
        }
        if manifest.model != model {
            let problem =
                format!("built by model {}, but the model given is {model}: build the index again", manifest.model);
            return Err(Error::data(&path, None, problem));
        }
        Ok(manifest)
    }

    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(MANIFEST);
        let text = serde_json::to_string_pretty(self).expect("a manifest has text for keys");
        fs::write(&path, text + "\n").map_err(Error::store(&path, "write it"))?;
        sync_one(&path)
    }

    /// The checksum of a file that must be there.
    pub(super) fn sum(&self, dir: &Path, name: &str) -> Result<Sum> {
        let missing =
            || Error::data(&dir.join(MANIFEST), None, format!("names no file `{name}`: build the index again"));
        self.files.get(name).copied().ok_or_else(missing)
    }
}
