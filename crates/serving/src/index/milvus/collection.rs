//! A collection of Milvus as an index. Searches are strongly consistent, so the next one knows of a change; what a filter
//! keeps is decided by the server and looked at once more here. Never holds an item.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use milvus::v2::prelude::{
    AlterAliasRequest, ConsistencyLevel, CreateAliasRequest, DeleteRequest, DropCollectionRequest,
    HasCollectionRequest, QueryResults, ResultRow, SearchRequest, SearchVectors, SingleResult,
};

use super::expression::{expression, ids, quoted};
use super::layout::{ID, ITEM, MAX_TEXT, Row, VECTOR, check, creation, upserts, width};
use super::link::{Link, Query, call};
use super::settings::MilvusSettings;
use crate::index::ask::Ask;
use crate::index::columns::Field;
use crate::index::filter::Filter;
use crate::index::journal::Change;
use crate::index::manifest::IndexSettings;
use crate::index::{Found, Index, Page};
use souk_io::domain::Item;
use souk_io::error::Answer;
use souk_io::error::{Error, Result};

/// Milvus gives no more hits to one search.
const MAX_HITS: usize = 16_384;
/// How far a walk through the graph looks around where nobody says.
const REACH: usize = 128;
/// A search that met too few items that are kept looks so many times further.
const FURTHER: usize = 4;
/// Milvus' client takes no longer answer.
const ANSWER_BYTES: usize = 4 << 20;
/// Items that one answer can hold, however long they are.
const SURE: usize = ANSWER_BYTES / (MAX_TEXT + 2048);
/// Items that are asked for at once; where they do not fit into an answer, fewer are.
const CHUNK: usize = 500;
/// More are not gone through to measure a recall.
const MAX_MEASURED: usize = 100_000;

pub struct Milvus {
    link: Link,
    width: u32,
}

impl Milvus {
    /// Opens a collection, or what an alias names, provided that `model` made it.
    pub async fn open(settings: &MilvusSettings, collection: &str, model: &str, dimensions: i64) -> Result<Self> {
        let width = width(dimensions)?;
        let mut link = Link::open(settings, collection).await?;
        let found = link.describe().await?;
        check(&link.place(), &found, model, width)?;
        // what an alias names can change
        link.name = found.get_collection_name().to_owned();
        link.load().await?;
        Ok(Self { link, width })
    }

    /// Makes an empty collection for vectors of `model`; of `index`, kind, links and build_reach count.
    pub async fn create(
        settings: &MilvusSettings,
        collection: &str,
        (model, dimensions): (&str, i64),
        index: &IndexSettings,
    ) -> Result<Self> {
        index.check()?;
        let width = width(dimensions)?;
        let link = Link::open(settings, collection).await?;
        // a server may take the same again for done
        let request = HasCollectionRequest::builder().collection_name(&link.name).build();
        if link.ask("look for the collection", request, call!(has_collection)).await?.exists() {
            return Err(Error::config(link.place(), "is there already: choose another name"));
        }
        let request = creation(&link.name, (model, width), index);
        link.ask("create the collection", request, call!(create_collection)).await?;
        link.load().await?;
        Ok(Self { link, width })
    }

    /// As the server calls it.
    pub fn name(&self) -> &str {
        &self.link.name
    }

    /// Gives the alias to this collection, whichever had it before; a search by the alias finds the one or the other.
    pub async fn serve_as(&self, settings: &MilvusSettings, alias: &str) -> Result<()> {
        let alias = settings.name(alias)?;
        let alter = AlterAliasRequest::builder().collection_name(self.name()).alias(&alias).build();
        let Err(failure) = self.link.ask("change the alias", alter, call!(alter_alias)).await else { return Ok(()) };
        // servers disagree about the error where there is no such alias
        let create = CreateAliasRequest::builder().collection_name(self.name()).alias(&alias).build();
        self.link.ask("create the alias", create, call!(create_alias)).await.map_err(|_| failure)
    }

    /// Deletes a collection and all in it, whatever model made it.
    pub async fn remove(settings: &MilvusSettings, collection: &str) -> Result<()> {
        let link = Link::open(settings, collection).await?;
        let request = DropCollectionRequest::builder().collection_name(&link.name).build();
        link.ask("drop the collection", request, call!(drop_collection)).await
    }

    fn check(&self, vector: &[f32]) -> Result<()> {
        if vector.len() != self.width as usize {
            let problem = format!("a vector of {} entries for an index of {}", vector.len(), self.width);
            return Err(Error::input(problem));
        }
        if !vector.iter().all(|x| x.is_finite()) {
            return Err(Error::input("a vector with an entry that is not finite is near to nothing"));
        }
        Ok(())
    }

    async fn find(&self, ask: &Ask<'_>, filter: Option<&Filter>) -> Result<Vec<Found>> {
        self.check(ask.vector)?;
        if ask.k > MAX_HITS {
            return Err(Error::input(format!("{} hits of one search: Milvus gives at most {MAX_HITS}", ask.k)));
        }
        filter.map_or(Ok(()), Filter::check)?;
        let Some(expression) = filter.map_or(Some(String::new()), expression) else { return Ok(Vec::new()) };
        let mut k = ask.k;
        while k > 0 {
            let (met, mut found) = self.search(&Ask { k, ..*ask }, &expression).await?;
            found.retain(|found| filter.is_none_or(|filter| filter.keeps(&found.item)));
            if found.len() >= ask.k || met < k || k == MAX_HITS {
                found.truncate(ask.k);
                return Ok(found);
            }
            k = (k * FURTHER).min(MAX_HITS);
        }
        Ok(Vec::new())
    }

    /// How many were met, and those of them that are still there.
    async fn search(&self, ask: &Ask<'_>, expression: &str) -> Result<(usize, Vec<Found>)> {
        let met = self.meet(ask, expression, if ask.k <= SURE { ITEM } else { ID }).await?;
        let rows: Vec<ResultRow<'_>> = met.rows().map_err(|e| self.link.failed("search", e))?.collect();
        let mut hits = Vec::with_capacity(rows.len());
        for row in &rows {
            hits.push((self.text(row, ID)?, self.score(row)?));
        }
        let found: Result<Vec<Found>> = if ask.k <= SURE {
            let items =
                rows.iter().zip(&hits).map(|(row, (_, score))| Ok(Found { score: *score, item: self.item(row)? }));
            items.collect()
        } else {
            let wanted: Vec<&str> = hits.iter().map(|(id, _)| *id).collect();
            let mut items = self.items(&wanted).await?;
            // one that went meanwhile is left out
            Ok(hits.iter().filter_map(|(id, score)| Some(Found { score: *score, item: items.remove(*id)? })).collect())
        };
        Ok((rows.len(), found?))
    }

    async fn meet(&self, ask: &Ask<'_>, expression: &str, field: &str) -> Result<SingleResult> {
        let reach = ask.reach.unwrap_or(REACH).max(ask.k);
        let request = SearchRequest::builder()
            .collection_name(self.name())
            .vector_field(VECTOR)
            .vectors(SearchVectors::Float(vec![ask.vector.to_vec()]))
            .filter(expression)
            .output_fields([field])
            .limit(ask.k as i64)
            .extra_params(HashMap::from([("ef".into(), reach.to_string())]))
            .consistency_level(ConsistencyLevel::Strong);
        let found = self.link.ask("search", request.build(), call!(search)).await?;
        let [single] = found.results().get_results() else {
            return Err(self.link.strange("gave another number of answers than it was asked"));
        };
        Ok(single.clone())
    }

    /// Those of the items that are there.
    async fn items(&self, wanted: &[&str]) -> Result<HashMap<String, Item>> {
        let mut items = HashMap::with_capacity(wanted.len());
        let mut give = |row: &ResultRow<'_>| {
            let item = self.item(row)?;
            items.insert(item.id.clone(), item);
            Ok(())
        };
        self.rows(wanted, ITEM, &mut give).await?;
        Ok(items)
    }

    /// Gives one field of each of the items that are there.
    async fn rows(
        &self,
        wanted: &[&str],
        field: &str,
        give: &mut (dyn FnMut(&ResultRow<'_>) -> Result<()> + Send),
    ) -> Result<()> {
        let mut rest: Vec<&[&str]> = wanted.chunks(CHUNK).collect();
        while let Some(chunk) = rest.pop() {
            let query = Query { expression: ids(ID, chunk), fields: &[field], limit: None };
            match self.link.query(&query).await? {
                Some(results) => self.each(&results, give)?,
                None if chunk.len() > 1 => {
                    let (a, b) = chunk.split_at(chunk.len() / 2);
                    rest.extend([a, b]);
                }
                None => return Err(self.link.strange("gave a longer item than it takes")),
            }
        }
        Ok(())
    }

    fn each(&self, results: &QueryResults, give: &mut (dyn FnMut(&ResultRow<'_>) -> Result<()> + Send)) -> Result<()> {
        let mut rows = results.rows().map_err(|e| self.link.failed("read items", e))?;
        rows.try_for_each(|row| give(&row))
    }

    fn text<'a>(&self, row: &ResultRow<'a>, field: &str) -> Result<&'a str> {
        row.get_str(field).map_err(|e| self.link.failed("read items", e))
    }

    fn score(&self, row: &ResultRow<'_>) -> Result<f32> {
        row.get_f32("score").map_err(|e| self.link.failed("search", e))
    }

    fn item(&self, row: &ResultRow<'_>) -> Result<Item> {
        Item::parse(self.text(row, ITEM)?.as_bytes(), Path::new(&self.link.place()), row.index() as u64)
    }

    /// What a change puts in.
    fn row<'a>(&self, change: &'a Change) -> Result<Option<Row<'a>>> {
        let Change::Put(item, vector) = change else { return Ok(None) };
        let named = |e| Error::input(format!("the item `{}`", item.id)).because(e);
        self.check(vector).and_then(|()| Row::new(item, vector)).map(Some).map_err(named)
    }

    async fn change(&self, changes: &[Change]) -> Result<usize> {
        // of one id, the last change counts
        let mut last: HashMap<&str, Option<Row<'_>>> = HashMap::with_capacity(changes.len());
        for change in changes {
            last.insert(change.id(), self.row(change)?);
        }
        let before = self.there(&last.keys().copied().collect::<Vec<_>>()).await?;
        let mut there: HashSet<&str> = before.iter().map(String::as_str).collect();
        let was = changes.iter().filter(|change| match change {
            Change::Put(item, _) => !there.insert(&item.id),
            Change::Delete(id) => there.remove(id.as_str()),
        });
        let num_before = was.count();
        let gone: Vec<&str> = before.iter().map(String::as_str).filter(|id| last[id].is_none()).collect();
        self.delete(&gone).await?;
        self.put(&last.into_values().flatten().collect::<Vec<_>>()).await?;
        Ok(num_before)
    }

    /// Which of these ids are there.
    async fn there(&self, wanted: &[&str]) -> Result<HashSet<String>> {
        let mut there = HashSet::with_capacity(wanted.len());
        let mut give = |row: &ResultRow<'_>| {
            there.insert(self.text(row, ID)?.to_owned());
            Ok(())
        };
        self.rows(wanted, ID, &mut give).await?;
        Ok(there)
    }

    async fn delete(&self, gone: &[&str]) -> Result<()> {
        for chunk in gone.chunks(CHUNK) {
            let request = DeleteRequest::builder().collection_name(self.name()).filter(ids(ID, chunk)).build();
            self.link.ask("delete items", request, call!(delete)).await?;
        }
        Ok(())
    }

    async fn put(&self, rows: &[Row<'_>]) -> Result<()> {
        let requests = upserts(self.name(), rows).map_err(|e| self.link.failed("write items", e))?;
        for request in requests {
            self.link.ask("write items", Ok(request), call!(upsert)).await?;
        }
        Ok(())
    }

    async fn count(&self) -> Result<usize> {
        const COUNT: &str = "count(*)";
        let query = Query { expression: String::new(), fields: &[COUNT], limit: None };
        let mut num = None;
        if let Some(results) = self.link.query(&query).await? {
            let mut give = |row: &ResultRow<'_>| {
                num = row.get_i64(COUNT).ok().and_then(|num| usize::try_from(num).ok());
                Ok(())
            };
            self.each(&results, &mut give)?;
        }
        num.ok_or_else(|| self.link.strange("gave no number of its items"))
    }

    /// The mark is the last id of the page before.
    async fn some(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let expression = after.map_or(String::new(), |mark| format!("{ID} > {}", quoted(mark)));
        let mut limit = limit.clamp(1, CHUNK);
        let results = loop {
            let query = Query { expression: expression.clone(), fields: &[ITEM, VECTOR], limit: Some(limit) };
            match self.link.query(&query).await? {
                Some(results) => break results,
                None if limit > 1 => limit /= 2,
                None => return Err(self.link.strange("gave a longer item than it takes")),
            }
        };
        let mut items = Vec::with_capacity(limit);
        let mut give = |row: &ResultRow<'_>| {
            let vector = row.get_float_vector(VECTOR).map_err(|e| self.link.failed("read items", e))?;
            items.push((self.item(row)?, vector.to_vec()));
            Ok(())
        };
        self.each(&results, &mut give)?;
        let next = (items.len() >= limit).then(|| items.last().map(|(item, _)| item.id.clone())).flatten();
        Ok(Page { items, next })
    }

    /// Against the products with all vectors, which are gone through here.
    async fn measured(&self, vectors: &[Vec<f32>], k: usize) -> Result<f64> {
        let num = self.count().await?;
        if num > MAX_MEASURED {
            let problem = format!("the recall of {num} items in Milvus is not measured: of {MAX_MEASURED} at most");
            return Err(Error::input(problem));
        }
        vectors.iter().try_for_each(|vector| self.check(vector))?;
        let mut best: Vec<Vec<(f32, String)>> = vec![Vec::new(); vectors.len()];
        let mut after = None;
        loop {
            let page = self.some(after.as_deref(), CHUNK).await?;
            for (best, vector) in best.iter_mut().zip(vectors) {
                let score = |other: &[f32]| vector.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
                best.extend(page.items.iter().map(|(item, other)| (score(other), item.id.clone())));
                best.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
                best.truncate(k);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let (mut found, mut there) = (0, 0);
        for (best, vector) in best.iter().zip(vectors) {
            let hits = self.find(&Ask::new(vector, k), None).await?;
            let hits: HashSet<&str> = hits.iter().map(|hit| hit.item.id.as_str()).collect();
            there += best.len();
            found += best.iter().filter(|(_, id)| hits.contains(id.as_str())).count();
        }
        Ok(if there == 0 { 1.0 } else { found as f64 / there as f64 })
    }
}

impl Index for Milvus {
    fn nearest<'a>(&'a self, ask: Ask<'a>, filter: Option<&'a Filter>) -> Answer<'a, Vec<Found>> {
        Box::pin(async move { self.find(&ask, filter).await })
    }

    fn lexical<'a>(&'a self, _: &'a str, _: usize, _: Option<&'a Filter>) -> Answer<'a, Option<Vec<Found>>> {
        Box::pin(async { Ok(None) })
    }

    fn get<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<Item>>> {
        Box::pin(async move {
            let wanted: Vec<&str> = ids.iter().map(String::as_str).collect();
            let items = self.items(&wanted).await?;
            Ok(ids.iter().map(|id| items.get(id).cloned()).collect())
        })
    }

    fn takes(&self, changes: &[Change]) -> Result<()> {
        changes.iter().try_for_each(|change| self.row(change).map(drop))
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Answer<'a, usize> {
        Box::pin(self.change(changes))
    }

    fn num_items(&self) -> Answer<'_, usize> {
        Box::pin(self.count())
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Page> {
        Box::pin(self.some(after, limit))
    }

    /// Milvus does not know them.
    fn fields(&self) -> Answer<'_, Vec<Field>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn overlap(&self, _: &str, _: &str) -> Option<f32> {
        None
    }

    fn recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize) -> Answer<'a, f64> {
        Box::pin(self.measured(vectors, k))
    }
}
