//! Builder of a snapshot: takes items and their vectors, groups equal vectors, and writes an index folder. The folder
//! appears complete or not at all. Vectors and items are in files from the start: a build needs little more memory than its graph.

use std::collections::HashSet;
use std::io::Write;
use std::iter;
use std::path::Path;
use std::thread;

use souk_native::{Number, Numbers, bytes_of};

use super::graph::{self, HnswParams};
use super::item_file::ItemLines;
use super::manifest::{IndexKind, IndexSettings, Manifest};
use super::snapshot::{CODES, ITEMS, PLACES, STARTS, STEPS, Snapshot, VECTORS, links_file};
use super::space::{Floats, Int8Codes};
use super::spool::Spool;
use souk_io::atomic_dir::AtomicDir;
use souk_io::checksummed::{ChecksumWriter, read_numbers, write_numbers};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Fewest distinct vectors for a graph; below it, brute force takes about a millisecond.
const MIN_GRAPH_ROWS: usize = 10_000;

pub struct Builder {
    atomic_dir: AtomicDir,
    model: String,
    width: usize,
    settings: IndexSettings,
    /// Vectors in catalogue order.
    vectors: Spool,
    items: ItemLines,
    seen: HashSet<String>,
}

impl Snapshot {
    /// Starts an index in `dir`, which must be new or empty, for the vectors of one model.
    pub fn builder(dir: &Path, model: String, dimensions: i64, settings: IndexSettings) -> Result<Builder> {
        settings.check()?;
        let width = usize::try_from(dimensions).ok().filter(|width| *width > 0);
        let width = width.ok_or_else(|| {
            Error::input(format!("the model gives vectors of {dimensions} entries: it must give 1 or more"))
        })?;
        let atomic_dir = AtomicDir::new(dir)?;
        let [vectors, items] = ["added.f32", "added.jsonl"].map(|name| Spool::create(atomic_dir.staging.join(name)));
        let (vectors, items, seen) = (vectors?, ItemLines::new(items?), HashSet::new());
        Ok(Builder { atomic_dir, model, width, settings, vectors, items, seen })
    }
}

impl Builder {
    /// Adds one item; duplicate ids are errors.
    pub fn add(&mut self, item: &Item, vector: &[f32]) -> Result<()> {
        if vector.len() != self.width || !vector.iter().all(|x| x.is_finite()) {
            let problem = format!("the item `{}` needs a vector of {} finite entries", item.id, self.width);
            return Err(Error::input(problem));
        }
        if !self.seen.insert(item.id.clone()) {
            return Err(Error::input(format!("two items have the id `{}`: give each item a unique id", item.id)));
        }
        self.vectors.write(bytes_of(vector))?;
        self.items.push(item)
    }

    /// Builds and writes the index; `report` gets the number of items in the graph so far.
    pub fn write(self, report: &mut dyn FnMut(usize)) -> Result<Manifest> {
        let Self { atomic_dir, model, width, settings, vectors, items, seen } = self;
        let num = items.len();
        if num == 0 {
            return Err(Error::input("no item to index: check that the catalogue is not empty"));
        }
        if num >= graph::MAX_NODES {
            return Err(Error::input(format!("{num} items exceed the limit of one index: split the catalogue")));
        }
        drop(seen);
        let vectors = vectors.numbers()?;
        let added = Floats { flat: &vectors, width };
        let groups = groups(added);
        let is_normalized = vectors.chunks_exact(width).all(is_unit);
        let kind = match settings.kind {
            IndexKind::Auto if is_normalized && groups.len() >= MIN_GRAPH_ROWS => IndexKind::Hnsw,
            IndexKind::Auto => IndexKind::Exact,
            IndexKind::Hnsw if !is_normalized => {
                let problem =
                    "is hnsw, which needs unit vectors, but this model's vectors are not normalized: set it to exact";
                return Err(Error::config("index.type", problem));
            }
            kind => kind,
        };
        let (layers, order) = match kind {
            IndexKind::Hnsw => graph::plan_layers(groups.len(), settings.links),
            _ => (Vec::new(), (0..groups.len() as u32).collect()),
        };
        let ordered: Vec<&[u32]> = order.into_iter().map(|group| groups[group as usize].as_slice()).collect();
        let mut manifest = Manifest::new(model, width, num, ordered.len(), kind);
        let mut files = IndexFiles { dir: &atomic_dir.staging, manifest: &mut manifest };
        let flat = files.vectors(added, &ordered)?;
        // free what is in order now: a graph build takes long
        drop(vectors);
        files.items(&ordered, items)?;
        drop(ordered);
        drop(groups);
        if kind == IndexKind::Hnsw {
            files.graph(Floats { flat: &flat, width }, layers, &settings, report)?;
        }
        manifest.write(&atomic_dir.staging)?;
        atomic_dir.finish()?;
        Ok(manifest)
    }
}

/// Items grouped by equal vector; groups, and the items of a group, are in catalogue order.
fn groups(vectors: Floats<'_>) -> Vec<Vec<u32>> {
    let bits = |item: u32| vectors.row(item).iter().map(|x| x.to_bits());
    let mut items: Vec<u32> = (0..vectors.num_rows() as u32).collect();
    items.sort_by(|a, b| bits(*a).cmp(bits(*b)).then(a.cmp(b)));
    let mut groups: Vec<Vec<u32>> = items.chunk_by(|a, b| bits(*a).eq(bits(*b))).map(<[u32]>::to_vec).collect();
    groups.sort_unstable_by_key(|group| group[0]);
    groups
}

/// Whether a vector has unit length or is zero.
fn is_unit(vector: &[f32]) -> bool {
    let square: f32 = vector.iter().map(|x| x * x).sum();
    (square - 1.0).abs() < 1e-3 || square < 1e-6
}

/// Writer of an index's files, which lists them in the manifest.
struct IndexFiles<'a> {
    dir: &'a Path,
    manifest: &'a mut Manifest,
}

impl IndexFiles<'_> {
    fn numbers<T: Number>(&mut self, name: &str, numbers: &Numbers<T>) -> Result<()> {
        let sum = write_numbers(&self.dir.join(name), numbers)?;
        self.manifest.files.insert(name.into(), sum);
        Ok(())
    }

    /// Writes a vector for each group, and maps them.
    fn vectors(&mut self, added: Floats<'_>, groups: &[&[u32]]) -> Result<Numbers<f32>> {
        let path = self.dir.join(VECTORS);
        let mut out = ChecksumWriter::create(&path)?;
        for group in groups {
            out.write_all(bytes_of(added.row(group[0]))).map_err(Error::store(&path, "write it"))?;
        }
        let sum = out.finish(&path)?;
        self.manifest.files.insert(VECTORS.into(), sum);
        read_numbers(&path, sum)
    }

    /// Writes the items of the groups.
    fn items(&mut self, groups: &[&[u32]], items: ItemLines) -> Result<()> {
        let ends = groups.iter().scan(0, |end, group| {
            *end += group.len() as u32;
            Some(*end)
        });
        self.numbers(STARTS, &Numbers::from(iter::once(0).chain(ends).collect::<Vec<u32>>()))?;
        let places: Vec<u32> = groups.concat();
        let sum = items.write(&self.dir.join(ITEMS), &places)?;
        self.manifest.files.insert(ITEMS.into(), sum);
        self.numbers(PLACES, &Numbers::from(places))
    }

    fn graph(
        &mut self,
        vectors: Floats<'_>,
        layers: Vec<usize>,
        settings: &IndexSettings,
        report: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = if settings.threads > 0 { settings.threads } else { cores };
        let params = HnswParams { links: settings.links, ef_construction: settings.build_reach, threads };
        let graph = graph::build(vectors, &layers, params, report);
        for (layer, links) in graph.layers().enumerate() {
            self.numbers(&links_file(layer), links)?;
        }
        drop(graph);
        self.manifest.layers = layers;
        if settings.codes {
            let codes = Int8Codes::quantize(vectors);
            self.numbers(CODES, &codes.codes)?;
            self.numbers(STEPS, &codes.steps)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::VectorQuery;
    use std::fs;

    fn item(id: &str) -> Item {
        Item { id: id.into(), title: format!("title of {id}"), text: String::new(), fields: serde_json::Map::new() }
    }

    fn settings(kind: IndexKind) -> IndexSettings {
        IndexSettings { kind, ..IndexSettings::default() }
    }

    fn build_index(dir: &Path, settings: IndexSettings) -> Manifest {
        let mut builder = Snapshot::builder(dir, "m1".into(), 2, settings).unwrap();
        for (id, vector) in [("a", [1.0, 0.0]), ("b", [0.6, 0.8]), ("c", [0.0, 1.0]), ("d", [0.6, 0.8])] {
            builder.add(&item(id), &vector).unwrap();
        }
        assert!(builder.add(&item("a"), &[0.0, 1.0]).unwrap_err().to_string().contains("`a`"));
        assert!(builder.add(&item("e"), &[0.0, f32::NAN]).unwrap_err().to_string().contains("`e`"));
        builder.write(&mut |_| ()).unwrap()
    }

    #[test]
    fn hits_are_sorted_and_ties_keep_catalogue_order() {
        for kind in [IndexKind::Exact, IndexKind::Hnsw, IndexKind::Auto] {
            let home = tempfile::tempdir().unwrap();
            let dir = home.path().join("index");
            let manifest = build_index(&dir, settings(kind));
            assert_eq!((manifest.num_items, manifest.num_rows), (4, 3));
            let index = Snapshot::open(&dir, "m1", 2).unwrap();
            let ids = |k| {
                index.search(&VectorQuery::new(&[0.0, 1.0], k)).unwrap().into_iter().map(|h| h.id).collect::<Vec<_>>()
            };
            assert_eq!(ids(2), ["c", "b"]);
            assert_eq!(ids(3), ["c", "b", "d"]);
            assert_eq!(ids(10), ["c", "b", "d", "a"]);
            assert!(ids(0).is_empty());
            assert!(index.search(&VectorQuery::new(&[1.0], 1)).is_err());
            assert!(index.search(&VectorQuery::new(&[1.0, f32::INFINITY], 1)).is_err());
        }
    }

    /// Graph search matches brute force, with int8 codes and without; it falls back to brute force when it would score
    /// nearly all rows.
    #[test]
    fn graph_matches_exact_index() {
        let home = tempfile::tempdir().unwrap();
        let vectors: Vec<[f32; 2]> = (0..3000).map(|i| (i as f32 / 500.0).sin_cos().into()).collect();
        let of = |kind, codes| {
            let dir = home.path().join(format!("{kind:?}-{codes}"));
            let settings = IndexSettings { codes, ..settings(kind) };
            let mut builder = Snapshot::builder(&dir, "m1".into(), 2, settings).unwrap();
            for (i, vector) in vectors.iter().enumerate() {
                builder.add(&item(&i.to_string()), vector).unwrap();
            }
            builder.write(&mut |_| ()).unwrap();
            Snapshot::open(&dir, "m1", 2).unwrap()
        };
        let [exact, walked, by_codes] =
            [(IndexKind::Exact, false), (IndexKind::Hnsw, false), (IndexKind::Hnsw, true)].map(|(k, c)| of(k, c));
        for from in [0, 1125, 2999] {
            for k in [1, 10, 3000] {
                let found = |index: &Snapshot| index.search(&VectorQuery::new(&vectors[from], k)).unwrap();
                let expected = found(&exact);
                assert_eq!(found(&walked), expected, "{k} nearest to {from}");
                assert_eq!(expected.len(), k);
                // int8 codes of two entries are coarse: only `ef` decides which rows are rescored
                assert_eq!(found(&by_codes)[0], expected[0]);
            }
        }
    }

    /// All links point to node 0, so the graph is disconnected.
    #[test]
    fn disconnected_graph_falls_back_to_brute_force() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("index");
        let mut builder = Snapshot::builder(&dir, "m1".into(), 2, settings(IndexKind::Hnsw)).unwrap();
        for i in 0..3000 {
            builder.add(&item(&i.to_string()), &<[f32; 2]>::from((i as f32 / 500.0).sin_cos())).unwrap();
        }
        let mut manifest = builder.write(&mut |_| ()).unwrap();
        for layer in 0..manifest.layers.len() {
            let file = dir.join(links_file(layer));
            let links = vec![0_u32; fs::read(&file).unwrap().len() / 4];
            fs::remove_file(&file).unwrap();
            manifest.files.insert(links_file(layer), write_numbers(&file, &links.into()).unwrap());
        }
        manifest.write(&dir).unwrap();
        let hits = Snapshot::open(&dir, "m1", 2).unwrap().search(&VectorQuery::new(&[0.0, 1.0], 5)).unwrap();
        assert_eq!((hits.len(), hits[0].id.as_str()), (5, "0"));
    }

    #[test]
    fn rejects_index_of_another_model() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("index");
        build_index(&dir, settings(IndexKind::Auto));
        let message = |model, dimensions| Snapshot::open(&dir, model, dimensions).err().unwrap().to_string();
        assert!(message("m2", 2).contains("built by model m1, but the model given is m2"));
        assert!(message("m1", 8).contains("vectors of 2 entries, the model is set to 8"));
        let again = Snapshot::builder(&dir, "m1".into(), 2, settings(IndexKind::Auto));
        assert!(again.err().unwrap().to_string().contains("is not empty"));
    }

    #[test]
    fn rejects_invalid_settings() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("index");
        for (links, build_reach) in [(1, 200), (300, 400), (16, 8)] {
            let settings = IndexSettings { links, build_reach, ..settings(IndexKind::Hnsw) };
            assert!(Snapshot::builder(&dir, "m1".into(), 2, settings).is_err());
        }
        assert!(Snapshot::builder(&dir, "m1".into(), 0, settings(IndexKind::Hnsw)).is_err());
        for (kind, taken) in [(IndexKind::Hnsw, false), (IndexKind::Auto, true)] {
            let mut lengths = Snapshot::builder(&dir, "m1".into(), 2, settings(kind)).unwrap();
            lengths.add(&item("a"), &[3.0, 4.0]).unwrap();
            assert_eq!(lengths.write(&mut |_| ()).is_ok(), taken, "{kind:?} of unnormalized vectors");
            fs::remove_dir_all(&dir).ok();
        }
        let nothing = Snapshot::builder(&dir, "m1".into(), 2, settings(IndexKind::Hnsw)).unwrap();
        assert!(nothing.write(&mut |_| ()).unwrap_err().to_string().contains("no item"));
        assert!(!dir.exists(), "a rejected build leaves no files");
    }

    /// A flipped bit, a missing file or a truncated file is an error, never an answer or a panic.
    #[test]
    fn rejects_damaged_index() {
        let home = tempfile::tempdir().unwrap();
        let whole = home.path().join("whole");
        build_index(&whole, settings(IndexKind::Hnsw));
        let names: Vec<_> = fs::read_dir(&whole).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 8, "{names:?}");
        let damages: [fn(&Path); 3] = [
            |file| fs::remove_file(file).unwrap(),
            |file| {
                let mut bytes = fs::read(file).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(file, bytes).unwrap();
            },
            |file| {
                let bytes = fs::read(file).unwrap();
                fs::write(file, &bytes[..bytes.len() - 1]).unwrap();
            },
        ];
        for name in &names {
            for (i, damage) in damages.iter().enumerate() {
                let dir = home.path().join(format!("{}-{i}", name.display()));
                fs::create_dir(&dir).unwrap();
                for other in &names {
                    fs::copy(whole.join(other), dir.join(other)).unwrap();
                }
                damage(&dir.join(name));
                let opened = Snapshot::open(&dir, "m1", 2);
                // the manifest ends in a newline that JSON does not need, and its counts are checked against the files
                let harmless = name == "manifest.json" && i == 2;
                assert_eq!(opened.is_err(), !harmless, "{} {i}", name.display());
            }
        }
    }
}
