//! An index that items come into and go from while it is searched. The snapshot stays as it is; what came since is looked
//! at whole, for it is little, and what went is passed over. A change is found by the next search. All of it is in memory:
//! the journal makes it durable, and a new snapshot takes it up.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use souk_native::products;

use super::columns::{Columns, Field, Selected};
use super::filter::Filter;
use super::journal::Change;
use super::snapshot::{Ask, Kept, Snapshot};
use super::{Found, Index, Page};
use crate::domain::Item;
use crate::error::{Error, Result};
use crate::lexical::{Lexical, LexicalOptions};
use crate::store::Answer;

const LEXICAL: &str = "lexical";
/// A search by terms that met too few items that are kept looks so many times further.
const FURTHER: usize = 4;

pub struct Live {
    snapshot: Snapshot,
    /// Rows are the snapshot's items.
    lexical: Option<Lexical>,
    columns: Columns,
    /// Where each id is in the snapshot.
    ids: HashMap<Box<str>, u32>,
    state: RwLock<State>,
}

struct State {
    /// Of the snapshot's items, those that went or were replaced.
    gone: Selected,
    num_gone: usize,
    /// What came, in its order; nothing where it went again.
    fresh: Vec<Option<Item>>,
    vectors: Vec<f32>,
    fresh_ids: HashMap<String, u32>,
}

impl Live {
    /// Makes what a snapshot lacks to be searched by terms: a folder inside its own.
    pub fn add_lexical(dir: &Path, snapshot: &Snapshot, options: LexicalOptions) -> Result<()> {
        let passages = (0..snapshot.num_items()).map(|item| Ok(snapshot.item(item)?.passage()));
        Lexical::build_in(&dir.join(LEXICAL), options, passages).map(drop)
    }

    /// Opens the snapshot in `dir`, and what it has to be searched by terms.
    pub fn open(dir: &Path, model: &str, dimensions: i64) -> Result<Self> {
        let snapshot = Snapshot::open(dir, model, dimensions)?;
        let num = snapshot.num_items();
        let path = dir.join(LEXICAL);
        let lexical = path.exists().then(|| Lexical::load(&path)).transpose()?;
        if lexical.as_ref().is_some_and(|lexical| lexical.num_items() as usize != num) {
            return Err(Error::data(&path, None, "is of other items than the index: build the index again"));
        }
        let (mut columns, mut ids) = (Columns::default(), HashMap::with_capacity(num));
        for at in 0..num {
            let item = snapshot.item(at)?;
            columns.push(&item);
            ids.insert(item.id.into_boxed_str(), at as u32);
        }
        let state = State {
            gone: Selected::none(num),
            num_gone: 0,
            fresh: Vec::new(),
            vectors: Vec::new(),
            fresh_ids: HashMap::new(),
        };
        Ok(Self { snapshot, lexical, columns, ids, state: RwLock::new(state) })
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Items that a search looks at beside the snapshot, or passes over in it: what a new snapshot would spare.
    pub fn num_changed(&self) -> usize {
        let state = self.state();
        state.fresh.len() + state.num_gone
    }

    /// A panic while the lock was held left nothing half done that a search could not live with.
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, ask: &Ask, filter: Option<&Filter>) -> Result<Vec<Found>> {
        let selected = self.select(filter)?;
        let state = self.state();
        let num = self.snapshot.num_items();
        let test = |item: usize| !state.gone.has(item) && selected.as_ref().is_none_or(|kept| kept.has(item));
        let num_kept = match &selected {
            Some(selected) => selected.num_without(&state.gone, num),
            None => num - state.num_gone,
        };
        let kept = Kept { test: &test, num: num_kept };
        let old = self.snapshot.nearest_of(ask, (num_kept < num).then_some(kept))?;
        let rows: Vec<u32> = state.kept(filter).map(|(at, _)| at).collect();
        let mut scores = vec![0.0; rows.len()];
        products(ask.vector, &state.vectors, &rows, &mut scores);
        let fresh = scores.into_iter().zip(rows.into_iter().map(|at| at as usize)).collect();
        self.merged(&state, ask.k, old, fresh)
    }

    fn find_terms(&self, lexical: &Lexical, (query, k): (&str, usize), filter: Option<&Filter>) -> Result<Vec<Found>> {
        let selected = self.select(filter)?;
        let state = self.state();
        let keeps = |item: usize| !state.gone.has(item) && selected.as_ref().is_none_or(|kept| kept.has(item));
        let mut reach = k;
        let old = loop {
            let hits = lexical.search(query, reach)?;
            let all = hits.len() < reach;
            let old = hits.into_iter().map(|hit| (hit.score, hit.row as usize)).filter(|(_, item)| keeps(*item));
            let old: Vec<(f32, usize)> = old.take(k).collect();
            if all || old.len() == k {
                break old;
            }
            reach = reach.saturating_mul(FURTHER);
        };
        let asked = lexical.asked(query)?;
        let scored = state.kept(filter).map(|(at, item)| (asked.score(&item.passage()), at as usize));
        let fresh = scored.filter(|(score, _)| *score > 0.0).collect();
        self.merged(&state, k, old, fresh)
    }

    /// The items of the snapshot that a filter keeps.
    fn select(&self, filter: Option<&Filter>) -> Result<Option<Selected>> {
        let Some(filter) = filter else { return Ok(None) };
        self.known(filter)?;
        Ok(Some(self.columns.select(filter)))
    }

    /// A field that no item has is a slip, and would look like an empty shop.
    fn known(&self, filter: &Filter) -> Result<()> {
        filter.check()?;
        let state = self.state();
        for condition in &filter.must {
            let alone = Filter { must: vec![condition.clone()] };
            if !self.columns.knows(&condition.field) && state.kept(Some(&alone)).next().is_none() {
                return Err(self.columns.unknown(&condition.field));
            }
        }
        Ok(())
    }

    /// The best of both; of equal ones those of the snapshot first.
    fn merged(&self, state: &State, k: usize, old: Vec<(f32, usize)>, fresh: Vec<(f32, usize)>) -> Result<Vec<Found>> {
        let both = old.into_iter().map(|(score, item)| (score, false, item));
        let mut both: Vec<_> = both.chain(fresh.into_iter().map(|(score, at)| (score, true, at))).collect();
        // stable: those of the snapshot stand in the order of the catalogue already
        both.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        both.truncate(k);
        let found = both.into_iter().map(|(score, is_fresh, at)| {
            let item = match is_fresh {
                true => state.fresh[at].clone().expect("what is gone was not looked at"),
                false => self.snapshot.item(at)?,
            };
            Ok(Found { score, item })
        });
        found.collect()
    }

    fn item(&self, state: &State, id: &str) -> Result<Option<Item>> {
        if let Some(at) = state.fresh_ids.get(id) {
            return Ok(state.fresh[*at as usize].clone());
        }
        match self.ids.get(id) {
            Some(item) if !state.gone.has(*item as usize) => self.snapshot.item(*item as usize).map(Some),
            _ => Ok(None),
        }
    }

    /// Marks count the snapshot's items, and then what came.
    fn some(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let (state, num) = (self.state(), self.snapshot.num_items());
        let unknown = |e| Error::input("a page follows the one whose mark is given").because(e);
        let mut at = after.map_or(Ok(0), |mark| mark.parse::<usize>().map_err(unknown))?;
        let mut items = Vec::new();
        while items.len() < limit && at < num + state.fresh.len() {
            if at >= num {
                let width = self.snapshot.manifest().dimensions;
                let vector = || state.vectors[(at - num) * width..][..width].to_vec();
                items.extend(state.fresh[at - num].clone().map(|item| (item, vector())));
            } else if !state.gone.has(at) {
                items.push((self.snapshot.item(at)?, self.snapshot.vector(at).to_vec()));
            }
            at += 1;
        }
        let more = at < num + state.fresh.len();
        Ok(Page { items, next: more.then(|| at.to_string()) })
    }

    fn change(&self, changes: &[Change]) -> Result<usize> {
        for change in changes {
            if let Change::Put(item, vector) = change {
                let named = |e: Error| Error::input(format!("the item `{}`", item.id)).because(e);
                self.snapshot.check(vector).map_err(named)?;
            }
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let there = changes.iter().filter(|change| {
            let at = self.ids.get(change.id()).copied();
            state.apply(change, at)
        });
        Ok(there.count())
    }
}

impl State {
    /// Fresh items that a filter keeps.
    fn kept<'a>(&'a self, filter: Option<&'a Filter>) -> impl Iterator<Item = (u32, &'a Item)> {
        let items = self.fresh.iter().enumerate().filter_map(|(at, item)| Some((at as u32, item.as_ref()?)));
        items.filter(move |(_, item)| filter.is_none_or(|filter| filter.keeps(item)))
    }

    /// Whether there was an item of that id.
    fn apply(&mut self, change: &Change, old: Option<u32>) -> bool {
        let was = self.remove(change.id(), old);
        if let Change::Put(item, vector) = change {
            self.fresh_ids.insert(item.id.clone(), self.fresh.len() as u32);
            self.fresh.push(Some(item.clone()));
            self.vectors.extend(vector);
        }
        was
    }

    fn remove(&mut self, id: &str, old: Option<u32>) -> bool {
        if let Some(at) = self.fresh_ids.remove(id) {
            self.fresh[at as usize] = None;
            return true;
        }
        match old {
            Some(item) if !self.gone.has(item as usize) => {
                self.gone.insert(item as usize);
                self.num_gone += 1;
                true
            }
            _ => false,
        }
    }
}

impl Index for Live {
    fn check<'a>(&'a self, filter: &'a Filter) -> Answer<'a, ()> {
        Box::pin(async { self.known(filter) })
    }

    fn nearest<'a>(&'a self, ask: Ask<'a>, filter: Option<&'a Filter>) -> Answer<'a, Vec<Found>> {
        Box::pin(async move { self.find(&ask, filter) })
    }

    fn lexical<'a>(&'a self, query: &'a str, k: usize, filter: Option<&'a Filter>) -> Answer<'a, Option<Vec<Found>>> {
        Box::pin(async move {
            self.lexical.as_ref().map(|lexical| self.find_terms(lexical, (query, k), filter)).transpose()
        })
    }

    fn get<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<Item>>> {
        Box::pin(async move {
            let state = self.state();
            ids.iter().map(|id| self.item(&state, id)).collect()
        })
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Answer<'a, usize> {
        Box::pin(async move { self.change(changes) })
    }

    fn num_items(&self) -> Answer<'_, usize> {
        let state = self.state();
        let num = self.snapshot.num_items() - state.num_gone + state.fresh_ids.len();
        Box::pin(async move { Ok(num) })
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Page> {
        Box::pin(async move { self.some(after, limit) })
    }

    fn fields(&self) -> Answer<'_, Vec<Field>> {
        Box::pin(async move { Ok(self.columns.fields()) })
    }

    fn overlap(&self, query: &str, text: &str) -> Option<f32> {
        self.lexical.as_ref().map(|lexical| lexical.overlap(query, text))
    }

    fn recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize) -> Answer<'a, f64> {
        Box::pin(async move { self.snapshot.recall(vectors, k) })
    }
}
