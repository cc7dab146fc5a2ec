//! Immutable index: a folder whose files are memory-mapped. Searches by brute force or by HNSW graph, and never opens
//! for a model other than its own.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use souk_native::{Number, Numbers};

use super::columns::ItemSet;
use super::graph::{BeamSearchPool, HnswGraph};
use super::item_file::ItemFile;
use super::manifest::{IndexKind, Manifest};
use super::space::{Floats, Int8Codes, Space};
use super::vector_query::{MIN_EF, VectorQuery};
use souk_io::checksummed::read_numbers;
use souk_io::cores::on_all_cores;
use souk_io::domain::{Hit, Item};
use souk_io::error::{Error, Result};

pub(super) const ITEMS: &str = "items.jsonl";
pub(super) const VECTORS: &str = "vectors.f32";
/// First item of each row, then the total.
pub(super) const STARTS: &str = "starts.u32";
/// Catalogue position of each item: rows are shuffled.
pub(super) const PLACES: &str = "places.u32";
pub(super) const CODES: &str = "codes.i8";
pub(super) const STEPS: &str = "steps.f32";

/// Search widths that are tried until the asked recall is measured.
const BASE_EFS: [usize; 12] = [MIN_EF, 125, 150, 200, 250, 300, 400, 500, 600, 800, 1000, 1600];
/// Rows scored at a time by brute force over codes, and candidates scored again by their vectors: four for each hit, and some.
const SCAN_BLOCK: usize = 256;
/// Rows that one thread scans at least.
const SCAN_SHARE: usize = 16_384;
const CANDIDATES_PER_HIT: usize = 4;
const MORE_CANDIDATES: usize = 200;

/// File of one graph layer.
pub(super) fn links_file(layer: usize) -> String {
    format!("links-{layer}.u32")
}

pub struct Snapshot {
    manifest: Manifest,
    /// Distinct vectors: duplicates would trap a graph search.
    vectors: Numbers<f32>,
    starts: Numbers<u32>,
    method: SearchMethod,
    /// Items ordered by row.
    items: ItemFile,
    places: Numbers<u32>,
    beams: BeamSearchPool,
    /// Usual width of a graph search for few hits.
    base_ef: AtomicUsize,
}

enum SearchMethod {
    Exact,
    Hnsw { graph: HnswGraph, codes: Option<Int8Codes> },
}

impl Snapshot {
    /// Opens the snapshot in `dir`, built by `model` with vectors of this size.
    pub fn open(dir: &Path, model: &str, dimensions: i64) -> Result<Self> {
        let width =
            usize::try_from(dimensions).map_err(|e| Error::input("the number of dimensions is negative").because(e))?;
        let manifest = Manifest::read(dir)?;
        manifest.check(dir, model, width)?;
        Self::with_manifest(dir, manifest)
    }

    /// Opens the snapshot in `dir`, whichever model built it: for reading vectors, not for searching with another model's.
    pub fn open_any(dir: &Path) -> Result<Self> {
        Self::with_manifest(dir, Manifest::read(dir)?)
    }

    fn with_manifest(dir: &Path, manifest: Manifest) -> Result<Self> {
        let width = manifest.dimensions;
        let (rows, num, files) = (manifest.num_rows, manifest.num_items, IndexFiles { dir, manifest: &manifest });
        let vectors = files.numbers(VECTORS, rows.saturating_mul(width))?;
        let starts: Numbers<u32> = files.numbers(STARTS, rows.saturating_add(1))?;
        if starts[0] != 0 || starts[rows] as usize != num || !starts.is_sorted() {
            return Err(files.broken(STARTS, "does not partition the items"));
        }
        let places = files.numbers(PLACES, num)?;
        let items = ItemFile::open(&dir.join(ITEMS), manifest.sum(dir, ITEMS)?)?;
        files.check(ITEMS, items.len(), num)?;
        let method = match manifest.kind {
            IndexKind::Hnsw => SearchMethod::Hnsw { graph: files.graph()?, codes: files.codes(width)? },
            IndexKind::Exact | IndexKind::Auto => SearchMethod::Exact,
        };
        let (beams, base_ef) = (BeamSearchPool::default(), AtomicUsize::new(MIN_EF));
        Ok(Self { manifest, vectors, starts, method, items, places, beams, base_ef })
    }

    /// Items nearest to a unit vector, best first; ties are in catalogue order.
    pub fn search(&self, query: &VectorQuery) -> Result<Vec<Hit>> {
        let hit = |(at, (score, item)): (usize, (f32, usize))| {
            let Item { id, title, .. } = self.items.get(item)?;
            Ok(Hit { id, score, rank: at + 1, title })
        };
        self.nearest(query)?.into_iter().enumerate().map(hit).collect()
    }

    /// Same as `search`, but returns item numbers.
    pub fn nearest(&self, query: &VectorQuery) -> Result<Vec<(f32, usize)>> {
        self.nearest_filtered(query, None)
    }

    /// Same as `nearest`, but restricted to the allowed items.
    pub(super) fn nearest_filtered(&self, query: &VectorQuery, allowed: Option<&ItemSet>) -> Result<Vec<(f32, usize)>> {
        self.check(query.vector)?;
        let num_allowed = allowed.map_or(self.manifest.num_items, ItemSet::num);
        let SearchMethod::Hnsw { graph, codes } = &self.method else {
            return Ok(self.best(query.k, self.exact(query, allowed), allowed));
        };
        let from_graph = query.search_widening(self.manifest.num_items, num_allowed, self.base_ef(), |ef| {
            self.best(query.k, self.search_graph(graph, codes.as_ref(), query.vector, ef), allowed)
        });
        let brute_force = || match codes {
            Some(codes) => self.scan(query, codes, &self.rows(allowed)),
            None => self.exact(query, allowed),
        };
        Ok(from_graph.unwrap_or_else(|| self.best(query.k, brute_force(), allowed)))
    }

    /// Usual width of a graph search for few hits.
    pub fn base_ef(&self) -> usize {
        self.base_ef.load(Ordering::Relaxed)
    }

    pub fn set_base_ef(&self, base_ef: usize) {
        self.base_ef.store(base_ef, Ordering::Relaxed);
    }

    /// Widens searches until these queries have the asked recall, and returns their recall from then on. Never narrows them: a few easy
    /// queries say little about the others.
    pub fn hold_recall(&self, vectors: &[Vec<f32>], k: usize, asked: f64) -> Result<f64> {
        let (exact, least) = (self.exact_neighbors(vectors, k)?, self.base_ef());
        let mut recall = 1.0;
        for base_ef in BASE_EFS.into_iter().filter(|base_ef| *base_ef >= least) {
            recall = self.measure(vectors, &exact, |vector| VectorQuery {
                vector,
                k,
                ef: Some(VectorQuery::usual_ef(k, base_ef)),
            })?;
            if recall >= asked || base_ef == BASE_EFS[BASE_EFS.len() - 1] {
                self.set_base_ef(base_ef);
                break;
            }
        }
        Ok(recall)
    }

    /// Fraction of the exact `k` nearest neighbors that a search finds.
    pub fn recall(&self, vectors: &[Vec<f32>], k: usize) -> Result<f64> {
        let exact = self.exact_neighbors(vectors, k)?;
        self.measure(vectors, &exact, |vector| VectorQuery::new(vector, k))
    }

    /// The exact `k` nearest neighbors of each vector.
    fn exact_neighbors(&self, vectors: &[Vec<f32>], k: usize) -> Result<Vec<HashSet<usize>>> {
        let neighbors = |vector: &Vec<f32>| {
            self.check(vector)?;
            let exact = self.best(k, self.exact(&VectorQuery::new(vector, k), None), None);
            Ok(exact.into_iter().map(|(_, item)| item).collect())
        };
        vectors.iter().map(neighbors).collect()
    }

    /// Fraction of the exact neighbors that searches find.
    fn measure<'a>(
        &self,
        vectors: &'a [Vec<f32>],
        exact: &[HashSet<usize>],
        query: impl Fn(&'a [f32]) -> VectorQuery<'a>,
    ) -> Result<f64> {
        let (mut num_found, mut num_exact) = (0, 0);
        for (vector, exact) in vectors.iter().zip(exact) {
            num_exact += exact.len();
            num_found += self.nearest(&query(vector))?.iter().filter(|(_, item)| exact.contains(item)).count();
        }
        Ok(if num_exact == 0 { 1.0 } else { num_found as f64 / num_exact as f64 })
    }

    /// Checks the size of a vector and that its entries are finite.
    pub(super) fn check(&self, vector: &[f32]) -> Result<()> {
        if vector.len() != self.manifest.dimensions {
            let problem =
                format!("the vector has {} entries, but the index has {}", vector.len(), self.manifest.dimensions);
            return Err(Error::input(problem));
        }
        if !vector.iter().all(|x| x.is_finite()) {
            return Err(Error::input("the vector has an entry that is not finite"));
        }
        Ok(())
    }

    /// First `k` allowed items of scored rows.
    fn best(&self, k: usize, rows: Vec<(f32, u32)>, allowed: Option<&ItemSet>) -> Vec<(f32, usize)> {
        let items = rows.iter().flat_map(|(score, row)| self.items_of_row(*row).map(|item| (*score, item)));
        let mut best: Vec<_> = items.filter(|(_, item)| allowed.is_none_or(|allowed| allowed.has(*item))).collect();
        best.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(self.places[a.1].cmp(&self.places[b.1])));
        best.truncate(k);
        best
    }

    /// Items of a row.
    fn items_of_row(&self, row: u32) -> impl Iterator<Item = usize> {
        (self.starts[row as usize]..self.starts[row as usize + 1]).map(|item| item as usize)
    }

    /// Position of an item in the catalogue.
    pub fn catalogue_position(&self, item: usize) -> usize {
        self.places[item] as usize
    }

    fn search_graph(&self, graph: &HnswGraph, codes: Option<&Int8Codes>, vector: &[f32], ef: usize) -> Vec<(f32, u32)> {
        self.beams.with(|beam_search| match codes {
            None => {
                let found = graph.nearest(&self.vectors(), vector, beam_search, ef);
                found.iter().map(|found| (found.score, found.node)).collect()
            }
            Some(codes) => {
                let found = graph.nearest(codes, &codes.query(vector), beam_search, ef);
                self.score_rows(vector, found.iter().map(|found| found.node).collect())
            }
        })
    }

    /// Brute force: the `k` best rows that have an allowed item.
    fn exact(&self, query: &VectorQuery, allowed: Option<&ItemSet>) -> Vec<(f32, u32)> {
        let mut best = self.score_rows(query.vector, self.rows(allowed));
        if query.k < best.len() {
            let is_allowed = |item: &usize| allowed.is_none_or(|allowed| allowed.has(*item));
            let place = |row: u32| self.items_of_row(row).find(is_allowed).map(|item| self.places[item]);
            best.select_nth_unstable_by(query.k, |a, b| b.0.total_cmp(&a.0).then_with(|| place(a.1).cmp(&place(b.1))));
            best.truncate(query.k);
        }
        best
    }

    /// Rows that have an allowed item.
    fn rows(&self, allowed: Option<&ItemSet>) -> Vec<u32> {
        let Some(allowed) = allowed else { return (0..self.manifest.num_rows as u32).collect() };
        let (starts, mut rows, mut row): (&[u32], Vec<u32>, usize) = (&self.starts, Vec::new(), 0);
        // items are ordered by row: the next row is near the last one
        for item in allowed.iter() {
            let mut step = 1;
            while starts.get(row + step).is_some_and(|start| *start as usize <= item) {
                row += step;
                step *= 2;
            }
            if step > 1 {
                let end = (row + step).min(starts.len());
                row += starts[row..end].partition_point(|start| *start as usize <= item) - 1;
            }
            if rows.last() != Some(&(row as u32)) {
                rows.push(row as u32);
            }
        }
        rows
    }

    /// Brute force by codes, whose best rows are scored again by their vectors. Many rows are read by all cores.
    fn scan(&self, query: &VectorQuery, codes: &Int8Codes, rows: &[u32]) -> Vec<(f32, u32)> {
        let num = query.k.saturating_mul(CANDIDATES_PER_HIT).saturating_add(MORE_CANDIDATES);
        let coded = codes.query(query.vector);
        let shares: Vec<&[u32]> = rows.chunks(SCAN_SHARE).collect();
        let scan = |share: usize| {
            let (mut best, mut scores) = (BestRows::new(num), [0.0; SCAN_BLOCK]);
            for rows in shares[share].chunks(SCAN_BLOCK) {
                let scores = &mut scores[..rows.len()];
                codes.scores(&coded, rows, scores);
                best.add(scores, rows);
            }
            best.finish()
        };
        let mut best = BestRows::new(num);
        for (scores, rows) in on_all_cores(shares.len(), scan) {
            best.add(&scores, &rows);
        }
        let (_, rows) = best.finish();
        self.score_rows(query.vector, rows)
    }

    fn score_rows(&self, vector: &[f32], rows: Vec<u32>) -> Vec<(f32, u32)> {
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

    /// Up to `num` evenly spaced items with their vectors.
    pub fn sample(&self, num: usize) -> Result<Vec<(Item, &[f32])>> {
        let step = self.num_items().div_ceil(num.max(1)).max(1);
        (0..self.num_items()).step_by(step).map(|item| self.entry(item)).collect()
    }

    /// All items with their vectors.
    pub fn entries(&self) -> impl Iterator<Item = Result<(Item, &[f32])>> {
        (0..self.num_items()).map(|item| self.entry(item))
    }

    fn entry(&self, item: usize) -> Result<(Item, &[f32])> {
        Ok((self.item(item)?, self.vector(item)))
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

/// The best of many scored rows.
struct BestRows {
    num: usize,
    /// The best so far, and some that may not be among them.
    rows: Vec<(f32, u32)>,
    /// Score that a row must exceed.
    least: f32,
}

impl BestRows {
    fn new(num: usize) -> Self {
        Self { num: num.max(1), rows: Vec::new(), least: f32::NEG_INFINITY }
    }

    fn add(&mut self, scores: &[f32], rows: &[u32]) {
        let least = self.least;
        let scored = scores.iter().copied().zip(rows.iter().copied());
        self.rows.extend(scored.filter(|(score, _)| *score > least));
        if self.rows.len() > self.num.saturating_mul(2) {
            self.cut();
            self.least = self.rows[self.num - 1].0;
        }
    }

    /// Leaves the best in front, the last of them at the end.
    fn cut(&mut self) {
        if self.rows.len() > self.num {
            self.rows.select_nth_unstable_by(self.num - 1, |a, b| b.0.total_cmp(&a.0));
            self.rows.truncate(self.num);
        }
    }

    /// The best, in no particular order.
    fn finish(mut self) -> (Vec<f32>, Vec<u32>) {
        self.cut();
        self.rows.into_iter().unzip()
    }
}

/// Reader of an index's files, which checks them against the manifest.
struct IndexFiles<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
}

impl IndexFiles<'_> {
    fn broken(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        Error::data(&self.dir.join(name), None, format!("{problem}: rebuild the index"))
    }

    fn check(&self, name: &str, found: usize, expected: usize) -> Result<()> {
        let items = self.manifest.num_items;
        let problem = || format!("has {found} entries instead of {expected} for {items} items");
        if found == expected { Ok(()) } else { Err(self.broken(name, problem())) }
    }

    fn numbers<T: Number>(&self, name: &str, expected: usize) -> Result<Numbers<T>> {
        let numbers = read_numbers(&self.dir.join(name), self.manifest.sum(self.dir, name)?)?;
        self.check(name, numbers.len(), expected)?;
        Ok(numbers)
    }

    fn codes(&self, width: usize) -> Result<Option<Int8Codes>> {
        if !self.manifest.files.contains_key(CODES) {
            return Ok(None);
        }
        let rows = self.manifest.num_rows;
        Ok(Some(Int8Codes {
            codes: self.numbers(CODES, rows.saturating_mul(width))?,
            steps: self.numbers(STEPS, rows)?,
        }))
    }

    fn graph(&self) -> Result<HnswGraph> {
        let layers = self.manifest.layers.iter().enumerate().map(|(layer, num)| {
            let name = links_file(layer);
            let links: Numbers<u32> = read_numbers(&self.dir.join(&name), self.manifest.sum(self.dir, &name)?)?;
            // each row is a count followed by room for that many links
            let row = links.len().checked_div(*num).unwrap_or(0);
            let width = row.checked_sub(1).ok_or_else(|| self.broken(&name, "has no links"))?;
            Ok((width, links))
        });
        let graph =
            HnswGraph::from_layers(layers.collect::<Result<_>>()?).map_err(|problem| self.broken("", problem))?;
        self.check(&links_file(0), self.manifest.layers[0], self.manifest.num_rows)?;
        Ok(graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use souk_io::splitmix::mix;

    #[test]
    fn the_best_rows_are_those_of_a_sort() {
        let scores: Vec<f32> = (0..5000).map(|row| (mix(row) % 1000) as f32).collect();
        let rows: Vec<u32> = (0..5000).collect();
        for num in [1, 7, 300, 4999, 6000] {
            let mut best = BestRows::new(num);
            scores.chunks(64).zip(rows.chunks(64)).for_each(|(scores, rows)| best.add(scores, rows));
            let (mut found, of_rows) = best.finish();
            assert!(found.iter().zip(&of_rows).all(|(score, row)| scores[*row as usize] == *score));
            let mut expected = scores.clone();
            expected.sort_unstable_by(|a, b| b.total_cmp(a));
            expected.truncate(num);
            found.sort_unstable_by(|a, b| b.total_cmp(a));
            assert_eq!(found, expected, "{num}");
        }
    }
}
