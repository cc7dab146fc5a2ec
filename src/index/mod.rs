//! The vectors of a catalogue and the manifest that says which model made them. A search is exact: one product with
//! every vector. An index never answers for another model than its own.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::backbone::weights::{read_tensors, write_tensors};
use crate::claim::start_folder;
use crate::domain::{Hit, Item};
use crate::error::{Error, Result};

const MANIFEST: &str = "manifest.json";
const VECTORS: &str = "vectors.safetensors";
const ITEMS: &str = "items.jsonl";
const FORMAT: u32 = 1;

/// What an index is, beside its vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// Fingerprint of the model that made the vectors.
    pub model: String,
    pub dimensions: i64,
    pub num_items: usize,
}

#[derive(Serialize, Deserialize)]
struct Shown {
    id: String,
    title: String,
}

pub struct Index {
    manifest: Manifest,
    /// `[n, d]`, normalised.
    vectors: Tensor,
    items: Vec<Shown>,
}

impl Index {
    /// Starts an empty index in `dir`, which must be new or empty, for the vectors of one model.
    pub fn builder(dir: &Path, model: String, dimensions: i64) -> Result<Builder> {
        start_folder(dir)?;
        Ok(Builder { dir: dir.into(), model, dimensions, flat: Vec::new(), items: Vec::new(), seen: HashSet::new() })
    }

    /// Opens the snapshot in `dir`, provided that `model` built it, with vectors of so many `dimensions`.
    pub fn open(dir: &Path, model: &str, dimensions: i64) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let text = fs::read(&path).map_err(Error::store(&path, "open the index"))?;
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|e| Error::data(&path, None, "not a manifest").because(e))?;
        if manifest.format != FORMAT {
            let problem = format!("format {}, this program reads {FORMAT}: build the index again", manifest.format);
            return Err(Error::data(&path, None, problem));
        }
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
        let file = dir.join(VECTORS);
        let shape = [manifest.num_items as i64, manifest.dimensions];
        let vectors = read_tensors(&file)?.remove("vectors").filter(|v| v.size() == shape && v.kind() == Kind::Float);
        let vectors = vectors.ok_or_else(|| Error::data(&file, None, format!("no vectors of shape {shape:?}")))?;
        if vectors.isfinite().all().int64_value(&[]) == 0 {
            return Err(Error::data(&file, None, "holds vectors that are not finite: build the index again"));
        }
        let items = read_items(&dir.join(ITEMS), manifest.num_items)?;
        Ok(Self { manifest, vectors, items })
    }

    /// The `k` items nearest to a normalised vector, best first; ties in the order of the catalogue.
    pub fn search(&self, vector: &[f32], k: usize) -> Result<Vec<Hit>> {
        if vector.len() as i64 != self.manifest.dimensions {
            let problem = format!("a vector of {} entries for an index of {}", vector.len(), self.manifest.dimensions);
            return Err(Error::input(problem));
        }
        let _guard = tch::no_grad_guard();
        let scores = self.vectors.mv(&Tensor::from_slice(vector));
        let mut flat = vec![0_f32; self.items.len()];
        scores.f_copy_data(&mut flat, self.items.len())?;
        let mut order: Vec<usize> = (0..flat.len()).collect();
        let best = |a: &usize, b: &usize| flat[*b].total_cmp(&flat[*a]).then(a.cmp(b));
        let k = k.min(order.len());
        if k < order.len() {
            order.select_nth_unstable_by(k, best);
            order.truncate(k);
        }
        order.sort_unstable_by(best);
        let hit = |(rank, at): (usize, usize)| {
            let Shown { id, title } = &self.items[at];
            Hit { id: id.clone(), score: flat[at], rank: rank + 1, title: title.clone() }
        };
        Ok(order.into_iter().enumerate().map(hit).collect())
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

fn read_items(path: &Path, expected: usize) -> Result<Vec<Shown>> {
    let file = BufReader::new(File::open(path).map_err(Error::store(path, "open the items"))?);
    let mut items = Vec::new();
    for (line, json) in file.lines().enumerate() {
        let json = json.map_err(Error::store(path, "read the items"))?;
        let item = serde_json::from_str(&json)
            .map_err(|e| Error::data(path, Some(line as u64 + 1), "not an item").because(e))?;
        items.push(item);
    }
    if items.len() != expected {
        let problem = format!("{} items, the manifest says {expected}: build the index again", items.len());
        return Err(Error::data(path, None, problem));
    }
    Ok(items)
}

/// Gathers vectors in the order of the catalogue and writes the snapshot at once.
pub struct Builder {
    dir: PathBuf,
    model: String,
    dimensions: i64,
    flat: Vec<f32>,
    items: Vec<Shown>,
    seen: HashSet<String>,
}

impl Builder {
    /// Adds one item; an id may come once.
    pub fn add(&mut self, item: &Item, vector: &[f32]) -> Result<()> {
        if !self.seen.insert(item.id.clone()) {
            return Err(Error::input(format!("two items have the id `{}`: give each its own", item.id)));
        }
        self.flat.extend_from_slice(vector);
        self.items.push(Shown { id: item.id.clone(), title: item.title.clone() });
        Ok(())
    }

    /// Writes the snapshot; the manifest comes last, so that a folder without one is known to be unfinished.
    pub fn write(self) -> Result<Manifest> {
        if self.items.is_empty() {
            return Err(Error::input("there is no item to index: is the catalogue empty?"));
        }
        let dir = self.dir.as_path();
        let path = dir.join(MANIFEST);
        let shape = [self.items.len() as i64, self.dimensions];
        let vectors = Tensor::from_slice(&self.flat).view(shape);
        write_tensors(&dir.join(VECTORS), &[("vectors".to_string(), vectors)].into())?;
        write_items(&dir.join(ITEMS), &self.items)?;
        let (model, num_items) = (self.model, self.items.len());
        let manifest = Manifest { format: FORMAT, model, dimensions: self.dimensions, num_items };
        let text = serde_json::to_string_pretty(&manifest)
            .map_err(|e| Error::data(&path, None, "cannot be written down").because(e))?;
        let aside = dir.join("manifest.json.part");
        fs::write(&aside, text + "\n").map_err(Error::store(&aside, "write it"))?;
        fs::rename(&aside, &path).map_err(Error::store(&path, "put it in place"))?;
        Ok(manifest)
    }
}

fn write_items(path: &Path, items: &[Shown]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path).map_err(Error::store(path, "make it"))?);
    for item in items {
        let json = serde_json::to_string(item).map_err(|e| Error::data(path, None, "cannot be written").because(e))?;
        writeln!(file, "{json}").map_err(Error::store(path, "write it"))?;
    }
    file.flush().and_then(|()| file.get_ref().sync_all()).map_err(Error::store(path, "sync it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: &str) -> Item {
        Item { id: id.into(), title: format!("title of {id}"), text: String::new(), fields: serde_json::Map::new() }
    }

    fn built(dir: &Path) -> Manifest {
        let mut builder = Index::builder(dir, "m1".into(), 2).unwrap();
        for (id, vector) in [("a", [1.0, 0.0]), ("b", [0.6, 0.8]), ("c", [0.0, 1.0]), ("d", [0.6, 0.8])] {
            builder.add(&item(id), &vector).unwrap();
        }
        assert!(builder.add(&item("a"), &[0.0, 1.0]).unwrap_err().to_string().contains("`a`"));
        builder.write().unwrap()
    }

    #[test]
    fn hits_come_best_first_and_ties_in_catalogue_order() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(built(dir.path()).num_items, 4);
        let index = Index::open(dir.path(), "m1", 2).unwrap();
        let ids = |k| index.search(&[0.0, 1.0], k).unwrap().into_iter().map(|h| h.id).collect::<Vec<_>>();
        assert_eq!(ids(3), ["c", "b", "d"]);
        assert_eq!(ids(10), ["c", "b", "d", "a"]);
        assert!(ids(0).is_empty());
        assert!(index.search(&[1.0], 1).is_err());
    }

    #[test]
    fn another_models_index_is_refused_naming_both() {
        let dir = tempfile::tempdir().unwrap();
        built(dir.path());
        let message = |model, dimensions| Index::open(dir.path(), model, dimensions).err().unwrap().to_string();
        assert!(message("m2", 2).contains("built by model m1, but the model given is m2"));
        assert!(message("m1", 8).contains("vectors of 2 entries, the model is set to 8"));
        assert!(Index::builder(dir.path(), "m1".into(), 2).err().unwrap().to_string().contains("is not empty"));
    }

    #[test]
    fn an_index_of_nothing_and_a_broken_one_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Index::builder(dir.path(), "m1".into(), 2).unwrap().write().is_err());
        built(dir.path());
        let broken = [("vectors".to_string(), Tensor::full([4, 2], f64::NAN, (Kind::Float, tch::Device::Cpu)))];
        write_tensors(&dir.path().join(VECTORS), &broken.into()).unwrap();
        assert!(Index::open(dir.path(), "m1", 2).err().unwrap().to_string().contains("not finite"));
        fs::write(dir.path().join(ITEMS), "{\"id\": \"a\", \"title\": \"\"}\n").unwrap();
        assert!(Index::open(dir.path(), "m1", 2).is_err());
    }
}
