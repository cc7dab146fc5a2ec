//! Items added since the snapshot was built. Equal vectors are stored once, so a price that changes every minute adds
//! no vector. Few vectors are searched by brute force; more join an HNSW graph, whose removed items are skipped.
//! Vectors that have not joined the graph yet are searched by brute force next to it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use souk_native::products;

use super::columns::{Columns, ItemSet};
use super::filter::Filter;
use super::graph::{BeamSearchPool, GraphNeighbor, GrowingGraph, HnswParams};
use super::space::Floats;
use super::vector_query::VectorQuery;
use souk_io::domain::Item;
use souk_io::item_text::ItemText;
use souk_lexical::{LexicalOptions, Passage, UnindexedTexts};

/// Fewest vectors for a graph; below it, brute force is faster.
const MIN_GRAPH_ROWS: usize = 2000;
const PARAMS: HnswParams = HnswParams { links: 16, ef_construction: 100, threads: 1 };

/// Items are numbered by slot, in order of arrival.
pub struct Delta {
    /// None where the item was removed again.
    items: Vec<Option<Arc<Item>>>,
    present: ItemSet,
    ids: HashMap<String, u32>,
    columns: Columns,
    texts: UnindexedTexts,
    item_text: ItemText,
    options: LexicalOptions,
    /// Vector row of each slot.
    row_of_item: Vec<u32>,
    /// Slots of each vector row.
    items_of_row: Vec<Vec<u32>>,
    /// `[num_rows, width]`.
    flat: Vec<f32>,
    width: usize,
    /// First row with each vector hash.
    row_by_hash: HashMap<u64, u32>,
    hasher: RandomState,
    /// Whether the snapshot has a graph: a graph needs unit vectors, which not every model gives.
    use_graph: bool,
    graph: GrowingGraph,
    beams: BeamSearchPool,
}

/// Texts of an item for search by terms.
pub fn passage(item_text: &ItemText, item: &Item, options: LexicalOptions) -> Passage {
    let details = if options.has_details() { item_text.details(item) } else { String::new() };
    Passage { text: item_text.render(item), details }
}

impl Delta {
    pub fn new(width: usize, use_graph: bool, item_text: ItemText, options: LexicalOptions) -> Self {
        Self {
            items: Vec::new(),
            present: ItemSet::default(),
            ids: HashMap::new(),
            columns: Columns::default(),
            texts: UnindexedTexts::new(options.language),
            item_text,
            options,
            row_of_item: Vec::new(),
            items_of_row: Vec::new(),
            flat: Vec::new(),
            width,
            row_by_hash: HashMap::new(),
            hasher: RandomState::new(),
            use_graph,
            graph: GrowingGraph::new(PARAMS),
            beams: BeamSearchPool::default(),
        }
    }

    /// Number of slots, including those of removed items.
    pub fn num_slots(&self) -> usize {
        self.items.len()
    }

    /// Number of items present.
    pub fn num_items(&self) -> usize {
        self.ids.len()
    }

    pub fn get(&self, at: usize) -> Option<&Arc<Item>> {
        self.items[at].as_ref()
    }

    /// Items present, in no particular order.
    pub fn items(&self) -> impl Iterator<Item = &Item> {
        self.ids.values().filter_map(|at| self.get(*at as usize)).map(Arc::as_ref)
    }

    pub fn find(&self, id: &str) -> Option<&Item> {
        self.get(*self.ids.get(id)? as usize).map(Arc::as_ref)
    }

    pub fn find_with_vector(&self, id: &str) -> Option<(&Item, &[f32])> {
        let at = *self.ids.get(id)? as usize;
        Some((self.get(at)?, self.vector(at)))
    }

    pub fn vector(&self, at: usize) -> &[f32] {
        self.space().row(self.row_of_item[at])
    }

    pub fn texts(&self) -> &UnindexedTexts {
        &self.texts
    }

    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Adds an item whose id is not present.
    pub fn push(&mut self, item: Item, vector: &[f32]) {
        let at = self.items.len() as u32;
        let row = self.row_for(vector);
        self.items_of_row[row as usize].push(at);
        self.row_of_item.push(row);
        self.present.push(at as usize);
        self.columns.push(&item);
        self.texts.push(passage(&self.item_text, &item, self.options));
        self.ids.insert(item.id.clone(), at);
        self.items.push(Some(Arc::new(item)));
    }

    /// Row of a vector; equal vectors share one.
    fn row_for(&mut self, vector: &[f32]) -> u32 {
        let same = |a: &[f32]| a.iter().zip(vector).all(|(a, b)| a.to_bits() == b.to_bits());
        let hash = self.hasher.hash_one(vector.iter().map(|x| x.to_bits()).collect::<Vec<u32>>());
        let new = self.items_of_row.len() as u32;
        match self.row_by_hash.get(&hash) {
            Some(row) if same(self.space().row(*row)) => return *row,
            // hash collision: this vector gets a row of its own, which later duplicates do not share
            Some(_) => {}
            None => drop(self.row_by_hash.insert(hash, new)),
        }
        self.flat.extend_from_slice(vector);
        self.items_of_row.push(Vec::new());
        new
    }

    /// Removes an item; returns whether it was present.
    pub fn remove(&mut self, id: &str) -> bool {
        let Some(at) = self.ids.remove(id) else { return false };
        self.items[at as usize] = None;
        self.present.remove(at as usize);
        self.items_of_row[self.row_of_item[at as usize] as usize].retain(|holder| *holder != at);
        true
    }

    /// Present items that match the filter.
    pub fn select(&self, filter: Option<&Filter>) -> ItemSet {
        match filter {
            None => self.present.clone(),
            Some(filter) => self.columns.select(filter).intersect(&self.present),
        }
    }

    /// Nearest of the allowed items, best first.
    pub fn nearest(&self, query: &VectorQuery, allowed: &ItemSet, base_ef: usize) -> Vec<(f32, usize)> {
        let num_kept = allowed.num();
        let joined = self.graph.num_nodes();
        if joined > 0 {
            let not_joined = joined as u32..self.items_of_row.len() as u32;
            let from_graph = query.search_widening(self.num_slots(), num_kept, base_ef, |ef| {
                let mut rows = self
                    .beams
                    .with(|beam_search| self.graph.nearest(self.space(), query.vector, beam_search, ef).to_vec());
                rows.extend(self.score_rows(query.vector, not_joined.clone().collect()));
                self.best(query.k, &rows, allowed)
            });
            if let Some(best) = from_graph {
                return best;
            }
        }
        let mut rows: Vec<u32> = allowed.iter().map(|at| self.row_of_item[at]).collect();
        rows.sort_unstable();
        rows.dedup();
        self.best(query.k, &self.score_rows(query.vector, rows), allowed)
    }

    fn score_rows(&self, vector: &[f32], rows: Vec<u32>) -> Vec<GraphNeighbor> {
        let mut scores = vec![0.0; rows.len()];
        products(vector, &self.flat, &rows, &mut scores);
        scores.into_iter().zip(rows).map(|(score, node)| GraphNeighbor { score, node }).collect()
    }

    fn best(&self, k: usize, rows: &[GraphNeighbor], allowed: &ItemSet) -> Vec<(f32, usize)> {
        let items_of = |row: &GraphNeighbor| self.items_of_row[row.node as usize].iter().map(move |at| *at as usize);
        let items = rows.iter().flat_map(|row| items_of(row).map(|at| (row.score, at)));
        let mut best: Vec<_> = items.filter(|(_, at)| allowed.has(*at)).collect();
        best.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        best.truncate(k);
        best
    }

    fn space(&self) -> Floats<'_> {
        Floats { flat: &self.flat, width: self.width }
    }

    /// Neighbors of the rows that can join the graph next, for `add_to_graph`; empty if none is waiting or there are
    /// too few rows.
    pub fn choose_neighbors(&self) -> Vec<Vec<GraphNeighbor>> {
        if !self.use_graph || self.items_of_row.len() < MIN_GRAPH_ROWS {
            return Vec::new();
        }
        self.beams.with(|beam_search| self.graph.choose(self.space(), beam_search))
    }

    pub fn add_to_graph(&mut self, chosen: &[Vec<GraphNeighbor>]) {
        let space = Floats { flat: &self.flat, width: self.width };
        self.graph.link(space, chosen);
    }
}
