//! An index as it was built: an immutable folder whose files are mapped into memory. It is searched exactly or through a
//! graph, and never answers for another model than its own.

use std::collections::HashSet;
use std::path::Path;

use souk_native::{Number, Numbers};

use super::ask::Ask;
use super::columns::Selected;
use super::graph::{Graph, Space, Walkers};
use super::items::Items;
use super::manifest::{Kind, Manifest};
use super::space::{Codes, Floats};
use souk_io::checksummed::read_numbers;
use souk_io::domain::{Hit, Item};
use souk_io::error::{Error, Result};

pub(super) const ITEMS: &str = "items.jsonl";
pub(super) const VECTORS: &str = "vectors.f32";
/// The first item of each row, and where the last one ends.
pub(super) const STARTS: &str = "starts.u32";
/// Each item's place in the catalogue, for rows stand in an order of their own.
pub(super) const PLACES: &str = "places.u32";
pub(super) const CODES: &str = "codes.i8";
pub(super) const STEPS: &str = "steps.f32";

/// The file of one layer.
pub(super) fn links_file(layer: usize) -> String {
    format!("links-{layer}.u32")
}

pub struct Snapshot {
    manifest: Manifest,
    /// No two rows are the same: a walk would not get past those that are.
    vectors: Numbers<f32>,
    starts: Numbers<u32>,
    searched: Searched,
    /// Those of the first row first, and so on.
    items: Items,
    places: Numbers<u32>,
    walkers: Walkers,
}

enum Searched {
    Exact,
    Graph { graph: Graph, codes: Option<Codes> },
}

impl Snapshot {
    /// Opens the snapshot in `dir`, provided that `model` built it, with vectors of so many `dimensions`.
    pub fn open(dir: &Path, model: &str, dimensions: i64) -> Result<Self> {
        let width = usize::try_from(dimensions).map_err(|e| Error::input("a vector has entries").because(e))?;
        let manifest = Manifest::read(dir, model, width)?;
        let (rows, num, files) = (manifest.num_rows, manifest.num_items, Files { dir, manifest: &manifest });
        let vectors = files.numbers(VECTORS, rows.saturating_mul(width))?;
        let starts: Numbers<u32> = files.numbers(STARTS, rows.saturating_add(1))?;
        if starts[0] != 0 || starts[rows] as usize != num || !starts.is_sorted() {
            return Err(files.broken(STARTS, "does not share out the items"));
        }
        let places = files.numbers(PLACES, num)?;
        let items = Items::open(&dir.join(ITEMS), manifest.sum(dir, ITEMS)?)?;
        files.check(ITEMS, items.len(), num)?;
        let searched = match manifest.kind {
            Kind::Hnsw => Searched::Graph { graph: files.graph()?, codes: files.codes(width)? },
            Kind::Exact | Kind::Auto => Searched::Exact,
        };
        Ok(Self { manifest, vectors, starts, searched, items, places, walkers: Walkers::default() })
    }

    /// The items nearest to a normalised vector, best first; ties in the order of the catalogue.
    pub fn search(&self, ask: &Ask) -> Result<Vec<Hit>> {
        let hit = |(at, (score, item)): (usize, (f32, usize))| {
            let Item { id, title, .. } = self.items.get(item)?;
            Ok(Hit { id, score, rank: at + 1, title })
        };
        self.nearest(ask)?.into_iter().enumerate().map(hit).collect()
    }

    /// As `search`, with numbers for items.
    pub fn nearest(&self, ask: &Ask) -> Result<Vec<(f32, usize)>> {
        self.nearest_of(ask, None)
    }

    /// As `nearest`, of the items that are kept.
    pub(super) fn nearest_of(&self, ask: &Ask, kept: Option<&Selected>) -> Result<Vec<(f32, usize)>> {
        self.check(ask.vector)?;
        let num_kept = kept.map_or(self.manifest.num_items, Selected::num);
        let Searched::Graph { graph, codes } = &self.searched else {
            return Ok(self.best(ask.k, self.all(ask, kept), kept));
        };
        let walked = ask.widening(self.manifest.num_items, num_kept, |reach| {
            self.best(ask.k, self.walk(graph, codes.as_ref(), ask.vector, reach), kept)
        });
        Ok(walked.unwrap_or_else(|| self.best(ask.k, self.all(ask, kept), kept)))
    }

    /// The share of the `k` nearest to each vector that a search finds.
    pub fn recall(&self, vectors: &[Vec<f32>], k: usize) -> Result<f64> {
        let (mut found, mut there) = (0, 0);
        for vector in vectors {
            let ask = Ask::new(vector, k);
            let walked: HashSet<usize> = self.nearest(&ask)?.into_iter().map(|(_, item)| item).collect();
            let exact = self.best(k, self.all(&ask, None), None);
            there += exact.len();
            found += exact.iter().filter(|(_, item)| walked.contains(item)).count();
        }
        Ok(if there == 0 { 1.0 } else { found as f64 / there as f64 })
    }

    /// A vector that this index could have been asked for or made of.
    pub(super) fn check(&self, vector: &[f32]) -> Result<()> {
        if vector.len() != self.manifest.dimensions {
            let problem = format!("a vector of {} entries for an index of {}", vector.len(), self.manifest.dimensions);
            return Err(Error::input(problem));
        }
        if !vector.iter().all(|x| x.is_finite()) {
            return Err(Error::input("a vector with an entry that is not finite is near to nothing"));
        }
        Ok(())
    }

    /// The first `k` kept items of rows that were scored.
    fn best(&self, k: usize, rows: Vec<(f32, u32)>, kept: Option<&Selected>) -> Vec<(f32, usize)> {
        let items = rows.iter().flat_map(|(score, row)| self.of(*row).map(|item| (*score, item)));
        let mut best: Vec<_> = items.filter(|(_, item)| kept.is_none_or(|kept| kept.has(*item))).collect();
        best.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(self.places[a.1].cmp(&self.places[b.1])));
        best.truncate(k);
        best
    }

    /// The items of a row.
    fn of(&self, row: u32) -> impl Iterator<Item = usize> {
        (self.starts[row as usize]..self.starts[row as usize + 1]).map(|item| item as usize)
    }

    /// Where an item stands in the catalogue.
    pub fn place(&self, item: usize) -> usize {
        self.places[item] as usize
    }

    fn walk(&self, graph: &Graph, codes: Option<&Codes>, vector: &[f32], reach: usize) -> Vec<(f32, u32)> {
        self.walkers.lend(|walker| match codes {
            None => {
                let found = graph.nearest(&self.vectors(), vector, walker, reach);
                found.iter().map(|found| (found.score, found.node)).collect()
            }
            Some(codes) => {
                let found = graph.nearest(codes, &codes.query(vector), walker, reach);
                self.scored(vector, found.iter().map(|found| found.node).collect())
            }
        })
    }

    /// The best of all rows that have an item that is kept, `k` of them.
    fn all(&self, ask: &Ask, kept: Option<&Selected>) -> Vec<(f32, u32)> {
        let rows = match kept {
            None => (0..self.manifest.num_rows as u32).collect(),
            Some(kept) => {
                // rows share out the items in their order
                let mut rows: Vec<u32> = kept.iter().map(|item| self.row_of(item)).collect();
                rows.dedup();
                rows
            }
        };
        let mut best = self.scored(ask.vector, rows);
        if ask.k < best.len() {
            let keeps = |item: &usize| kept.is_none_or(|kept| kept.has(*item));
            let place = |row: u32| self.of(row).find(keeps).map(|item| self.places[item]);
            best.select_nth_unstable_by(ask.k, |a, b| b.0.total_cmp(&a.0).then_with(|| place(a.1).cmp(&place(b.1))));
            best.truncate(ask.k);
        }
        best
    }

    fn scored(&self, vector: &[f32], rows: Vec<u32>) -> Vec<(f32, u32)> {
        let mut scores = vec![0.0; rows.len()];
        self.vectors().scores(vector, &rows, &mut scores);
        scores.into_iter().zip(rows).collect()
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub fn num_items(&self) -> usize {
        self.manifest.num_items
    }

    /// So many items from all over, with their vectors.
    pub fn sample(&self, num: usize) -> Result<Vec<(Item, &[f32])>> {
        let step = self.num_items().div_ceil(num.max(1)).max(1);
        (0..self.num_items()).step_by(step).map(|item| Ok((self.item(item)?, self.vector(item)))).collect()
    }

    pub(super) fn item(&self, item: usize) -> Result<Item> {
        self.items.get(item)
    }

    pub(super) fn vector(&self, item: usize) -> &[f32] {
        self.vectors().row(self.row_of(item))
    }

    fn vectors(&self) -> Floats<'_> {
        Floats { flat: &self.vectors, width: self.manifest.dimensions }
    }

    fn row_of(&self, item: usize) -> u32 {
        (self.starts.partition_point(|start| *start as usize <= item) - 1) as u32
    }
}

/// The files of a folder, as its manifest has them.
struct Files<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
}

impl Files<'_> {
    fn broken(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        Error::data(&self.dir.join(name), None, format!("{problem}: build the index again"))
    }

    fn check(&self, name: &str, found: usize, expected: usize) -> Result<()> {
        let items = self.manifest.num_items;
        let problem = || format!("has {found} entries, where {items} items have {expected}");
        if found == expected { Ok(()) } else { Err(self.broken(name, problem())) }
    }

    fn numbers<T: Number>(&self, name: &str, expected: usize) -> Result<Numbers<T>> {
        let numbers = read_numbers(&self.dir.join(name), self.manifest.sum(self.dir, name)?)?;
        self.check(name, numbers.len(), expected)?;
        Ok(numbers)
    }

    fn codes(&self, width: usize) -> Result<Option<Codes>> {
        if !self.manifest.files.contains_key(CODES) {
            return Ok(None);
        }
        let rows = self.manifest.num_rows;
        Ok(Some(Codes { codes: self.numbers(CODES, rows.saturating_mul(width))?, steps: self.numbers(STEPS, rows)? }))
    }

    fn graph(&self) -> Result<Graph> {
        let layers = self.manifest.layers.iter().enumerate().map(|(layer, num)| {
            let name = links_file(layer);
            let links: Numbers<u32> = read_numbers(&self.dir.join(&name), self.manifest.sum(self.dir, &name)?)?;
            // each row says how many of its links count, and has them
            let row = links.len().checked_div(*num).unwrap_or(0);
            let width = row.checked_sub(1).ok_or_else(|| self.broken(&name, "has no links"))?;
            Ok((width, links))
        });
        let graph = Graph::of(layers.collect::<Result<_>>()?).map_err(|problem| self.broken("", problem))?;
        self.check(&links_file(0), self.manifest.layers[0], self.manifest.num_rows)?;
        Ok(graph)
    }
}
