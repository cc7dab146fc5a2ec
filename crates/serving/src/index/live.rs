//! Mutable index: an immutable snapshot plus the changes since. New items go to a delta, removed items are skipped, and
//! the next search sees every change. Everything is in memory: the journal makes changes durable, and the next snapshot
//! includes them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::columns::{Columns, Field, FilterCache, ItemSet};
use super::delta::{Delta, passage};
use super::filter::Filter;
use super::frame::ItemChange;
use super::manifest::IndexKind;
use super::snapshot::Snapshot;
use super::vector_query::VectorQuery;
use super::{HitItem, Index, IndexHit, Page};
use souk_io::domain::Item;
use souk_io::error::Answer;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_lexical::{Lexical, LexicalOptions, TermMatcher};

const LEXICAL: &str = "lexical";
/// Factor by which a lexical search is widened when too few of its hits pass the filter.
const WIDEN: usize = 4;

pub struct Live {
    snapshot: Arc<Snapshot>,
    /// Rows are the snapshot's items.
    lexical: Option<Lexical>,
    columns: Columns,
    filter_cache: FilterCache,
    /// Computed once: the snapshot's fields do not change.
    fields: OnceLock<Vec<Field>>,
    /// Item number in the snapshot by id.
    id_to_item: HashMap<Box<str>, u32>,
    /// Items of the snapshot in byte order of ids, once somebody lists them.
    by_id: OnceLock<Vec<u32>>,
    state: RwLock<LiveState>,
    /// Ensures that one thread at a time grows the graph.
    growing: Mutex<()>,
    item_text: ItemText,
}

struct LiveState {
    /// Snapshot items that were neither removed nor replaced.
    present: ItemSet,
    num_removed: usize,
    delta: Delta,
}

impl Live {
    /// Builds the lexical index of a snapshot in a subfolder.
    pub fn add_lexical(dir: &Path, snapshot: &Snapshot, options: LexicalOptions, item_text: &ItemText) -> Result<()> {
        let passages = (0..snapshot.num_items()).map(|item| Ok(passage(item_text, &snapshot.item(item)?, options)));
        Lexical::build_in(&dir.join(LEXICAL), options, passages).map(drop)
    }

    /// Opens the snapshot in `dir`, and its lexical index if there is one. `item_text` is the model's template of the items' texts.
    pub fn open(dir: &Path, model: &str, dimensions: i64, item_text: &ItemText) -> Result<Self> {
        let snapshot = Arc::new(Snapshot::open(dir, model, dimensions)?);
        let num = snapshot.num_items();
        let path = dir.join(LEXICAL);
        let lexical = path.exists().then(|| Lexical::load(&path)).transpose()?;
        if lexical.as_ref().is_some_and(|lexical| lexical.num_items() as usize != num) {
            return Err(Error::data(&path, None, "was built from other items than the index: rebuild the index"));
        }
        let (mut columns, mut id_to_item) = (Columns::default(), HashMap::with_capacity(num));
        for at in 0..num {
            let item = snapshot.item(at)?;
            columns.push(&item);
            id_to_item.insert(item.id.into_boxed_str(), at as u32);
        }
        let manifest = snapshot.manifest();
        let options = lexical.as_ref().map(Lexical::options).unwrap_or_default();
        let delta = Delta::new(manifest.dimensions, manifest.kind == IndexKind::Hnsw, item_text.clone(), options);
        let state = RwLock::new(LiveState { present: ItemSet::all(num), num_removed: 0, delta });
        let (filter_cache, fields, growing) = (FilterCache::default(), OnceLock::new(), Mutex::default());
        let item_text = item_text.clone();
        let by_id = OnceLock::new();
        Ok(Self { snapshot, lexical, columns, filter_cache, fields, id_to_item, by_id, state, growing, item_text })
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Vector of the snapshot's item with the same id and text, if any.
    pub fn vector_of(&self, item: &Item) -> Result<Option<&[f32]>> {
        let Some(at) = self.id_to_item.get(item.id.as_str()).map(|at| *at as usize) else { return Ok(None) };
        let same = self.item_text.render(&self.snapshot.item(at)?) == self.item_text.render(item);
        Ok(same.then(|| self.snapshot.vector(at)))
    }

    /// Vector of the item with the same id and text, whether it is in the delta, in the snapshot, or was replaced there.
    fn known_vector(&self, state: &LiveState, item: &Item, template: &ItemText) -> Result<Option<Vec<f32>>> {
        let text = template.render(item);
        if let Some((newer, vector)) = state.delta.find_with_vector(&item.id)
            && template.render(newer) == text
        {
            return Ok(Some(vector.to_vec()));
        }
        self.vector_of(item).map(|vector| vector.map(<[f32]>::to_vec))
    }

    /// Whether every item was removed.
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.num_removed == self.snapshot.num_items() && state.delta.num_items() == 0
    }

    /// Number of delta slots and of removed snapshot items: the overhead that a new snapshot would save.
    pub fn num_changed(&self) -> usize {
        let state = self.state();
        state.delta.num_slots() + state.num_removed
    }

    /// a poisoned lock is safe to use: a panic leaves no state that searches cannot handle
    fn state(&self) -> RwLockReadGuard<'_, LiveState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, LiveState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds new vectors to the delta's graph, which makes searches faster. Searches continue meanwhile.
    pub fn grow_graph(&self) {
        let _alone = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let chosen = self.state().delta.choose_neighbors();
            if chosen.is_empty() {
                return;
            }
            self.write().delta.add_to_graph(&chosen);
        }
    }

    fn search_vectors(&self, query: &VectorQuery, filter: Option<&Filter>) -> Result<Vec<IndexHit>> {
        self.snapshot.check(query.vector)?;
        let state = self.state();
        let (old, new) = self.select(&state, filter)?;
        let old = self.snapshot.nearest_filtered(query, old.as_ref())?;
        let new = state.delta.nearest(query, &new, self.snapshot.base_ef());
        Ok(self.merge(&state, query.k, old, new))
    }

    fn search_terms(&self, lexical: &Lexical, query: &str, k: usize, filter: Option<&Filter>) -> Result<Vec<IndexHit>> {
        let state = self.state();
        let (old, new) = self.select(&state, filter)?;
        let mut depth = k;
        let old = loop {
            let hits = lexical.search(query, depth)?;
            let all = hits.len() < depth;
            let hits = hits.into_iter().map(|hit| (hit.score, hit.row as usize));
            let kept: Vec<_> = hits.filter(|(_, item)| old.as_ref().is_none_or(|old| old.has(*item))).take(k).collect();
            if all || kept.len() == k {
                break kept;
            }
            depth = depth.saturating_mul(WIDEN);
        };
        let hits = lexical.search_unindexed(query, state.delta.texts())?.into_iter();
        let new = hits.map(|hit| (hit.score, hit.row as usize)).filter(|(_, at)| new.has(*at)).collect();
        Ok(self.merge(&state, k, old, new))
    }

    /// Searchable items of the snapshot (None if all are) and of the delta.
    fn select(&self, state: &LiveState, filter: Option<&Filter>) -> Result<(Option<ItemSet>, ItemSet)> {
        let new = state.delta.select(filter);
        let old = match filter {
            None => (state.num_removed > 0).then(|| state.present.clone()),
            Some(filter) => {
                self.check_fields(state, filter)?;
                let selected = self.filter_cache.get_or_select(&self.columns, filter);
                Some(state.present.clone().intersect(&selected))
            }
        };
        Ok((old, new))
    }

    /// Rejects fields that no item has: a typo would look like an empty result.
    fn check_fields(&self, state: &LiveState, filter: &Filter) -> Result<()> {
        filter.check()?;
        let unknown_field = |field: &&str| !self.columns.has_field(field) && !state.delta.columns().has_field(field);
        match filter.must.iter().map(|condition| condition.field.as_str()).find(unknown_field) {
            Some(field) => Err(self.columns.unknown_field(field)),
            None => Ok(()),
        }
    }

    /// Best hits of snapshot and delta; on equal scores the snapshot's come first.
    fn merge(&self, state: &LiveState, k: usize, old: Vec<(f32, usize)>, new: Vec<(f32, usize)>) -> Vec<IndexHit> {
        let best = old.into_iter().map(|(score, item)| (score, false, item));
        let mut best: Vec<_> = best.chain(new.into_iter().map(|(score, at)| (score, true, at))).collect();
        // a stable sort keeps the snapshot's hits in catalogue order
        best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        best.truncate(k);
        let found = best.into_iter().map(|(score, is_new, at)| {
            let item = if is_new {
                let item = state.delta.get(at).cloned().expect("removed items are not searched");
                let row = self.id_to_item.get(item.id.as_str()).copied();
                HitItem::Loaded { item, row }
            } else {
                HitItem::Stored { snapshot: self.snapshot.clone(), row: at as u32 }
            };
            IndexHit { score, item }
        });
        found.collect()
    }

    fn item(&self, state: &LiveState, id: &str) -> Result<Option<Item>> {
        if let Some(item) = state.delta.find(id) {
            return Ok(Some(item.clone()));
        }
        match self.id_to_item.get(id) {
            Some(item) if state.present.has(*item as usize) => self.snapshot.item(*item as usize).map(Some),
            _ => Ok(None),
        }
    }

    /// Reads a page of items; marks count the snapshot's items, then the delta's slots.
    fn read_page(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let state = self.state();
        let invalid_mark = |e| Error::input("invalid page mark: pass the mark of the previous page").because(e);
        let mut at = after.map_or(Ok(0), |mark| mark.parse::<usize>().map_err(invalid_mark))?;
        let end = self.snapshot.num_items() + state.delta.num_slots();
        let mut items = Vec::new();
        while items.len() < limit && at < end {
            items.extend(self.item_at(&state, at)?);
            at += 1;
        }
        Ok(Page { items, next: (at < end).then(|| at.to_string()) })
    }

    /// Evenly spaced items, as `read_page` counts them; those that were removed are left out.
    fn read_sample(&self, num: usize) -> Result<Vec<(Item, Vec<f32>)>> {
        let state = self.state();
        let end = self.snapshot.num_items() + state.delta.num_slots();
        let step = end.div_ceil(num.max(1)).max(1);
        (0..end).step_by(step).filter_map(|at| self.item_at(&state, at).transpose()).collect()
    }

    /// Item with its vector, by its number in the snapshot or, after those, its slot in the delta; none if it was removed.
    fn item_at(&self, state: &LiveState, at: usize) -> Result<Option<(Item, Vec<f32>)>> {
        match at.checked_sub(self.snapshot.num_items()) {
            Some(slot) => Ok(state.delta.get(slot).map(|item| ((**item).clone(), state.delta.vector(slot).to_vec()))),
            None if state.present.has(at) => Ok(Some((self.snapshot.item(at)?, self.snapshot.vector(at).to_vec()))),
            None => Ok(None),
        }
    }

    /// Items of the snapshot in byte order of ids.
    fn snapshot_order(&self) -> &[u32] {
        self.by_id.get_or_init(|| {
            let mut ids: Vec<(&str, u32)> = self.id_to_item.iter().map(|(id, item)| (&**id, *item)).collect();
            ids.sort_unstable();
            ids.into_iter().map(|(_, item)| item).collect()
        })
    }

    fn list_after(&self, id: &str, limit: usize) -> Result<Vec<Item>> {
        let (state, order) = (self.state(), self.snapshot_order());
        let (mut low, mut high) = (0, order.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.snapshot.item(order[middle] as usize)?.id.as_str() <= id { low = middle + 1 } else { high = middle }
        }
        let old = order[low..].iter().filter(|item| state.present.has(**item as usize)).take(limit);
        let mut items: Vec<Item> = old.map(|item| self.snapshot.item(*item as usize)).collect::<Result<_>>()?;
        items.extend(state.delta.items().filter(|item| item.id.as_str() > id).cloned());
        items.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        items.truncate(limit);
        Ok(items)
    }

    fn apply_changes(&self, changes: &[ItemChange]) -> Result<usize> {
        self.check_changes(changes)?;
        let mut state = self.write();
        let present = changes.iter().filter(|apply_changes| {
            let at = self.id_to_item.get(apply_changes.id()).copied();
            state.apply(apply_changes, at)
        });
        Ok(present.count())
    }
}

impl LiveState {
    /// Applies one change; returns whether the id was present.
    fn apply(&mut self, apply_changes: &ItemChange, old: Option<u32>) -> bool {
        let was = self.remove(apply_changes.id(), old);
        if let ItemChange::Put(item, vector) = apply_changes {
            self.delta.push(item.clone(), vector);
        }
        was
    }

    fn remove(&mut self, id: &str, old: Option<u32>) -> bool {
        let is_old = old.is_some_and(|item| self.present.has(item as usize));
        if let Some(item) = old.filter(|_| is_old) {
            self.present.remove(item as usize);
            self.num_removed += 1;
        }
        self.delta.remove(id) || is_old
    }
}

impl Index for Live {
    fn check<'a>(&'a self, filter: &'a Filter) -> Answer<'a, ()> {
        Box::pin(async { self.check_fields(&self.state(), filter) })
    }

    fn nearest<'a>(&'a self, query: VectorQuery<'a>, filter: Option<&'a Filter>) -> Answer<'a, Vec<IndexHit>> {
        Box::pin(async move { self.search_vectors(&query, filter) })
    }

    fn lexical<'a>(
        &'a self,
        query: &'a str,
        k: usize,
        filter: Option<&'a Filter>,
    ) -> Answer<'a, Option<Vec<IndexHit>>> {
        Box::pin(async move {
            self.lexical.as_ref().map(|lexical| self.search_terms(lexical, query, k, filter)).transpose()
        })
    }

    fn get<'a>(&'a self, id_to_item: &'a [String]) -> Answer<'a, Vec<Option<Item>>> {
        Box::pin(async move {
            let state = self.state();
            id_to_item.iter().map(|id| self.item(&state, id)).collect()
        })
    }

    fn known_vectors<'a>(&'a self, items: &'a [Item], template: &'a ItemText) -> Answer<'a, Vec<Option<Vec<f32>>>> {
        Box::pin(async move {
            let state = self.state();
            items.iter().map(|item| self.known_vector(&state, item, template)).collect()
        })
    }

    fn check_changes(&self, changes: &[ItemChange]) -> Result<()> {
        changes.iter().try_for_each(|apply_changes| {
            let ItemChange::Put(item, vector) = apply_changes else { return Ok(()) };
            let named = |e: Error| Error::input(format!("the item `{}`", item.id)).because(e);
            self.snapshot.check(vector).map_err(named)
        })
    }

    fn apply<'a>(&'a self, changes: &'a [ItemChange]) -> Answer<'a, usize> {
        Box::pin(async move { self.apply_changes(changes) })
    }

    fn num_items(&self) -> Answer<'_, usize> {
        let state = self.state();
        let num = self.snapshot.num_items() - state.num_removed + state.delta.num_items();
        Box::pin(async move { Ok(num) })
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Page> {
        Box::pin(async move { self.read_page(after, limit) })
    }

    fn sample(&self, num: usize) -> Answer<'_, Vec<(Item, Vec<f32>)>> {
        Box::pin(async move { self.read_sample(num) })
    }

    fn items_after<'a>(&'a self, id: &'a str, limit: usize) -> Answer<'a, Vec<Item>> {
        Box::pin(async move { self.list_after(id, limit) })
    }

    fn fields(&self) -> Answer<'_, Vec<Field>> {
        Box::pin(async move { Ok(self.fields.get_or_init(|| self.columns.fields()).clone()) })
    }

    fn matcher(&self, query: &str) -> Option<TermMatcher> {
        self.lexical.as_ref().map(|lexical| lexical.matcher(query))
    }

    fn recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize) -> Answer<'a, f64> {
        Box::pin(async move { self.snapshot.recall(vectors, k) })
    }

    fn hold_recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize, asked: f64) -> Answer<'a, f64> {
        Box::pin(async move { self.snapshot.hold_recall(vectors, k, asked) })
    }
}
