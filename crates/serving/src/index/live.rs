//! An index that items come into and go from while it is searched. The snapshot stays as it is; what came since stands
//! beside it, and what went is passed over. A change is found by the next search. All of it is in memory: the journal makes
//! it durable, and a new snapshot takes it up.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::ask::Ask;
use super::columns::{Columns, Field, Selected, Selections};
use super::filter::Filter;
use super::fresh::Fresh;
use super::journal::Change;
use super::manifest::Kind;
use super::snapshot::Snapshot;
use super::{Found, Index, Page};
use souk_io::domain::Item;
use souk_io::error::Answer;
use souk_io::error::{Error, Result};
use souk_lexical::{Lexical, LexicalOptions};

const LEXICAL: &str = "lexical";
/// A search by terms that met too few items that are kept looks so many times further.
const FURTHER: usize = 4;

pub struct Live {
    snapshot: Snapshot,
    /// Rows are the snapshot's items.
    lexical: Option<Lexical>,
    columns: Columns,
    selections: Selections,
    /// Told once: of a snapshot they stay as they are.
    fields: OnceLock<Vec<Field>>,
    /// Where each id is in the snapshot.
    ids: HashMap<Box<str>, u32>,
    state: RwLock<State>,
    /// One thread lets rows join at a time.
    tending: Mutex<()>,
}

struct State {
    /// Of the snapshot's items, those that neither went nor were replaced.
    there: Selected,
    num_gone: usize,
    fresh: Fresh,
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
        let manifest = snapshot.manifest();
        let fresh = Fresh::new(manifest.dimensions, manifest.kind == Kind::Hnsw);
        let state = RwLock::new(State { there: Selected::all(num), num_gone: 0, fresh });
        let (selections, fields, tending) = (Selections::default(), OnceLock::new(), Mutex::default());
        Ok(Self { snapshot, lexical, columns, selections, fields, ids, state, tending })
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The vector of the snapshot's item that has the same id and says the same.
    pub fn vector_of(&self, item: &Item) -> Result<Option<&[f32]>> {
        let Some(at) = self.ids.get(item.id.as_str()).map(|at| *at as usize) else { return Ok(None) };
        let same = self.snapshot.item(at)?.passage() == item.passage();
        Ok(same.then(|| self.snapshot.vector(at)))
    }

    /// Whether every item went.
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.num_gone == self.snapshot.num_items() && state.fresh.num() == 0
    }

    /// Items that a search looks at beside the snapshot, or passes over in it: what a new snapshot would spare.
    pub fn num_changed(&self) -> usize {
        let state = self.state();
        state.fresh.num_places() + state.num_gone
    }

    /// A panic while the lock was held left nothing half done that a search could not live with.
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets what came join the graph in which it is found faster. Searches go on meanwhile.
    pub fn tend(&self) {
        let _alone = self.tending.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let chosen = self.state().fresh.choose();
            if chosen.is_empty() {
                return;
            }
            self.write().fresh.link(&chosen);
        }
    }

    fn find(&self, ask: &Ask, filter: Option<&Filter>) -> Result<Vec<Found>> {
        self.snapshot.check(ask.vector)?;
        let state = self.state();
        let (old, new) = self.select(&state, filter)?;
        let old = self.snapshot.nearest_of(ask, old.as_ref())?;
        let new = state.fresh.nearest(ask, &new);
        self.merged(&state, ask.k, old, new)
    }

    fn find_terms(&self, lexical: &Lexical, (query, k): (&str, usize), filter: Option<&Filter>) -> Result<Vec<Found>> {
        let state = self.state();
        let (old, new) = self.select(&state, filter)?;
        let mut reach = k;
        let old = loop {
            let hits = lexical.search(query, reach)?;
            let all = hits.len() < reach;
            let hits = hits.into_iter().map(|hit| (hit.score, hit.row as usize));
            let kept: Vec<_> = hits.filter(|(_, item)| old.as_ref().is_none_or(|old| old.has(*item))).take(k).collect();
            if all || kept.len() == k {
                break kept;
            }
            reach = reach.saturating_mul(FURTHER);
        };
        let hits = lexical.search_outside(query, state.fresh.texts())?.into_iter();
        let new = hits.map(|hit| (hit.score, hit.row as usize)).filter(|(_, at)| new.has(*at)).collect();
        self.merged(&state, k, old, new)
    }

    /// The items of the snapshot, or nothing where all of them, and of those that came, that a search may find.
    fn select(&self, state: &State, filter: Option<&Filter>) -> Result<(Option<Selected>, Selected)> {
        let new = state.fresh.select(filter);
        let old = match filter {
            None => (state.num_gone > 0).then(|| state.there.clone()),
            Some(filter) => {
                self.known(state, filter)?;
                let selected = self.selections.of(&self.columns, filter);
                Some(state.there.clone().both(&selected))
            }
        };
        Ok((old, new))
    }

    /// A field that no item has is a slip, and would look like an empty shop.
    fn known(&self, state: &State, filter: &Filter) -> Result<()> {
        filter.check()?;
        let unknown = |field: &&str| !self.columns.knows(field) && !state.fresh.columns().knows(field);
        match filter.must.iter().map(|condition| condition.field.as_str()).find(unknown) {
            Some(field) => Err(self.columns.unknown(field)),
            None => Ok(()),
        }
    }

    /// The best of both; of equal ones those of the snapshot first.
    fn merged(&self, state: &State, k: usize, old: Vec<(f32, usize)>, new: Vec<(f32, usize)>) -> Result<Vec<Found>> {
        let both = old.into_iter().map(|(score, item)| (score, false, item));
        let mut both: Vec<_> = both.chain(new.into_iter().map(|(score, at)| (score, true, at))).collect();
        // stable: those of the snapshot stand in the order of the catalogue already
        both.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        both.truncate(k);
        let found = both.into_iter().map(|(score, is_new, at)| {
            let item = match is_new {
                true => state.fresh.get(at).cloned().expect("what went was not looked at"),
                false => self.snapshot.item(at)?,
            };
            Ok(Found { score, item })
        });
        found.collect()
    }

    fn item(&self, state: &State, id: &str) -> Result<Option<Item>> {
        if let Some(item) = state.fresh.find(id) {
            return Ok(Some(item.clone()));
        }
        match self.ids.get(id) {
            Some(item) if state.there.has(*item as usize) => self.snapshot.item(*item as usize).map(Some),
            _ => Ok(None),
        }
    }

    /// Marks count the snapshot's items, and then what came.
    fn some(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let (state, num) = (self.state(), self.snapshot.num_items());
        let unknown = |e| Error::input("a page follows the one whose mark is given").because(e);
        let mut at = after.map_or(Ok(0), |mark| mark.parse::<usize>().map_err(unknown))?;
        let end = num + state.fresh.num_places();
        let mut items = Vec::new();
        while items.len() < limit && at < end {
            if at >= num {
                let new = at - num;
                items.extend(state.fresh.get(new).map(|item| (item.clone(), state.fresh.vector(new).to_vec())));
            } else if state.there.has(at) {
                items.push((self.snapshot.item(at)?, self.snapshot.vector(at).to_vec()));
            }
            at += 1;
        }
        Ok(Page { items, next: (at < end).then(|| at.to_string()) })
    }

    fn change(&self, changes: &[Change]) -> Result<usize> {
        self.takes(changes)?;
        let mut state = self.write();
        let there = changes.iter().filter(|change| {
            let at = self.ids.get(change.id()).copied();
            state.apply(change, at)
        });
        Ok(there.count())
    }
}

impl State {
    /// Whether there was an item of that id.
    fn apply(&mut self, change: &Change, old: Option<u32>) -> bool {
        let was = self.remove(change.id(), old);
        if let Change::Put(item, vector) = change {
            self.fresh.push(item.clone(), vector);
        }
        was
    }

    fn remove(&mut self, id: &str, old: Option<u32>) -> bool {
        let is_old = old.is_some_and(|item| self.there.has(item as usize));
        if let Some(item) = old.filter(|_| is_old) {
            self.there.remove(item as usize);
            self.num_gone += 1;
        }
        self.fresh.remove(id) || is_old
    }
}

impl Index for Live {
    fn check<'a>(&'a self, filter: &'a Filter) -> Answer<'a, ()> {
        Box::pin(async { self.known(&self.state(), filter) })
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

    fn takes(&self, changes: &[Change]) -> Result<()> {
        changes.iter().try_for_each(|change| {
            let Change::Put(item, vector) = change else { return Ok(()) };
            let named = |e: Error| Error::input(format!("the item `{}`", item.id)).because(e);
            self.snapshot.check(vector).map_err(named)
        })
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Answer<'a, usize> {
        Box::pin(async move { self.change(changes) })
    }

    fn num_items(&self) -> Answer<'_, usize> {
        let state = self.state();
        let num = self.snapshot.num_items() - state.num_gone + state.fresh.num();
        Box::pin(async move { Ok(num) })
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Page> {
        Box::pin(async move { self.some(after, limit) })
    }

    fn fields(&self) -> Answer<'_, Vec<Field>> {
        Box::pin(async move { Ok(self.fields.get_or_init(|| self.columns.fields()).clone()) })
    }

    fn overlap(&self, query: &str, text: &str) -> Option<f32> {
        self.lexical.as_ref().map(|lexical| lexical.overlap(query, text))
    }

    fn recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize) -> Answer<'a, f64> {
        Box::pin(async move { self.snapshot.recall(vectors, k) })
    }
}
