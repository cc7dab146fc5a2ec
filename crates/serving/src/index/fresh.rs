//! What came to an index since its snapshot was made. A vector stands here once, however many items share it: a price that
//! changes every minute adds none. Few vectors are looked at whole; more join a graph, in which those that went are passed
//! over. What has not joined yet is looked at beside it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use souk_native::products;

use super::ask::Ask;
use super::columns::{Columns, Selected};
use super::filter::Filter;
use super::graph::{Found, Grown, Setting, Walkers};
use super::space::Floats;
use souk_io::domain::Item;
use souk_lexical::Outside;

/// Below it a look at all takes less than a walk saves.
const GRAPH_PAYS_FROM: usize = 2000;
const SETTING: Setting = Setting { links: 16, reach: 100, threads: 1 };

/// Items are named by their place, in the order they came.
pub struct Fresh {
    /// Nothing where an item went again.
    items: Vec<Option<Item>>,
    there: Selected,
    ids: HashMap<String, u32>,
    columns: Columns,
    texts: Outside,
    /// Of each item.
    rows: Vec<u32>,
    /// Of each row.
    holders: Vec<Vec<u32>>,
    /// `[num_rows, width]`.
    flat: Vec<f32>,
    width: usize,
    /// A row of this hash.
    known: HashMap<u64, u32>,
    hasher: RandomState,
    /// Whether the snapshot is one: a graph goes by directions, which not every model gives.
    walks: bool,
    graph: Grown,
    walkers: Walkers,
}

impl Fresh {
    pub fn new(width: usize, walks: bool) -> Self {
        Self {
            items: Vec::new(),
            there: Selected::default(),
            ids: HashMap::new(),
            columns: Columns::default(),
            texts: Outside::default(),
            rows: Vec::new(),
            holders: Vec::new(),
            flat: Vec::new(),
            width,
            known: HashMap::new(),
            hasher: RandomState::new(),
            walks,
            graph: Grown::new(SETTING),
            walkers: Walkers::default(),
        }
    }

    /// Items that came, those that went again among them.
    pub fn num_places(&self) -> usize {
        self.items.len()
    }

    /// Items that are there.
    pub fn num(&self) -> usize {
        self.ids.len()
    }

    pub fn get(&self, at: usize) -> Option<&Item> {
        self.items[at].as_ref()
    }

    pub fn find(&self, id: &str) -> Option<&Item> {
        self.get(*self.ids.get(id)? as usize)
    }

    pub fn vector(&self, at: usize) -> &[f32] {
        self.space().row(self.rows[at])
    }

    pub fn texts(&self) -> &Outside {
        &self.texts
    }

    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Adds an item whose id is not there.
    pub fn push(&mut self, item: Item, vector: &[f32]) {
        let at = self.items.len() as u32;
        let row = self.row(vector);
        self.holders[row as usize].push(at);
        self.rows.push(row);
        self.there.push(at as usize);
        self.columns.push(&item);
        self.texts.push(&item.passage());
        self.ids.insert(item.id.clone(), at);
        self.items.push(Some(item));
    }

    /// The row of a vector, which is a new one where no other is the same.
    fn row(&mut self, vector: &[f32]) -> u32 {
        let same = |a: &[f32]| a.iter().zip(vector).all(|(a, b)| a.to_bits() == b.to_bits());
        let hash = self.hasher.hash_one(vector.iter().map(|x| x.to_bits()).collect::<Vec<u32>>());
        let new = self.holders.len() as u32;
        match self.known.get(&hash) {
            Some(row) if same(self.space().row(*row)) => return *row,
            // of two that share a hash the later one is not shared
            Some(_) => {}
            None => drop(self.known.insert(hash, new)),
        }
        self.flat.extend_from_slice(vector);
        self.holders.push(Vec::new());
        new
    }

    /// Whether there was one.
    pub fn remove(&mut self, id: &str) -> bool {
        let Some(at) = self.ids.remove(id) else { return false };
        self.items[at as usize] = None;
        self.there.remove(at as usize);
        self.holders[self.rows[at as usize] as usize].retain(|holder| *holder != at);
        true
    }

    /// The items that are there and pass the filter.
    pub fn select(&self, filter: Option<&Filter>) -> Selected {
        match filter {
            None => self.there.clone(),
            Some(filter) => self.columns.select(filter).both(&self.there),
        }
    }

    /// The nearest of these items, best first.
    pub fn nearest(&self, ask: &Ask, kept: &Selected) -> Vec<(f32, usize)> {
        let num_kept = kept.num();
        let joined = self.graph.num_nodes();
        if joined > 0 {
            let waiting = joined as u32..self.holders.len() as u32;
            let walked = ask.widening(self.num_places(), num_kept, |reach| {
                let mut rows =
                    self.walkers.lend(|walker| self.graph.nearest(self.space(), ask.vector, walker, reach).to_vec());
                rows.extend(self.scored(ask.vector, waiting.clone().collect()));
                self.best(ask.k, &rows, kept)
            });
            if let Some(best) = walked {
                return best;
            }
        }
        let mut rows: Vec<u32> = kept.iter().map(|at| self.rows[at]).collect();
        rows.sort_unstable();
        rows.dedup();
        self.best(ask.k, &self.scored(ask.vector, rows), kept)
    }

    fn scored(&self, vector: &[f32], rows: Vec<u32>) -> Vec<Found> {
        let mut scores = vec![0.0; rows.len()];
        products(vector, &self.flat, &rows, &mut scores);
        scores.into_iter().zip(rows).map(|(score, node)| Found { score, node }).collect()
    }

    fn best(&self, k: usize, rows: &[Found], kept: &Selected) -> Vec<(f32, usize)> {
        let held = |found: &Found| self.holders[found.node as usize].iter().map(move |at| *at as usize);
        let items = rows.iter().flat_map(|found| held(found).map(|at| (found.score, at)));
        let mut best: Vec<_> = items.filter(|(_, at)| kept.has(*at)).collect();
        best.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        best.truncate(k);
        best
    }

    fn space(&self) -> Floats<'_> {
        Floats { flat: &self.flat, width: self.width }
    }

    /// The neighbours of rows that may join the graph, as `link` takes them; nothing where none waits, or all are few.
    pub fn choose(&self) -> Vec<Vec<Found>> {
        if !self.walks || self.holders.len() < GRAPH_PAYS_FROM {
            return Vec::new();
        }
        self.walkers.lend(|walker| self.graph.choose(self.space(), walker))
    }

    pub fn link(&mut self, chosen: &[Vec<Found>]) {
        let space = Floats { flat: &self.flat, width: self.width };
        self.graph.link(space, chosen);
    }
}
