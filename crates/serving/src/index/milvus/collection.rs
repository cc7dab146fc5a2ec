//! Milvus collection as an index. Searches use strong consistency, so the next one sees a change. The server applies
//! filters, and hits are checked again here. Never stores items locally.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use milvus::v2::prelude::{
    AlterAliasRequest, ConsistencyLevel, CreateAliasRequest, DeleteRequest, DropCollectionRequest,
    HasCollectionRequest, QueryResults, ResultRow, SearchRequest, SearchVectors, SingleResult,
};

use super::client::{MilvusClient, RowQuery, call};
use super::expression::{expression, id_in, quoted};
use super::layout::{ID, ITEM, MAX_TEXT, UpsertRow, VECTOR, check_collection, create_request, upserts, vector_width};
use super::settings::MilvusSettings;
use crate::index::columns::Field;
use crate::index::filter::Filter;
use crate::index::frame::ItemChange;
use crate::index::manifest::IndexSettings;
use crate::index::vector_query::VectorQuery;
use crate::index::{Index, IndexHit, Page};
use souk_io::domain::Item;
use souk_io::error::Answer;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_lexical::TermMatcher;

/// Milvus' limit of hits per search.
const MAX_HITS: usize = 16_384;
/// Default search width in the graph (ef).
const DEFAULT_EF: usize = 128;
/// Factor by which a search is widened when too few of its hits pass the filter.
const WIDEN: usize = 4;
/// Size limit of one answer in Milvus' client.
const ANSWER_BYTES: usize = 4 << 20;
/// Number of items of any size that fit in one answer.
const ITEMS_PER_ANSWER: usize = ANSWER_BYTES / (MAX_TEXT + 2048);
/// Items requested at once; halved when the answer would be too large.
const READ_CHUNK: usize = 500;
/// Largest collection whose recall is measured: every vector is downloaded.
const MAX_RECALL_ITEMS: usize = 100_000;

pub struct Milvus {
    client: MilvusClient,
    width: u32,
}

impl Milvus {
    /// Opens a collection, or what an alias points to, built by `model`.
    pub async fn open(settings: &MilvusSettings, collection: &str, model: &str, dimensions: i64) -> Result<Self> {
        let width = vector_width(dimensions)?;
        let mut client = MilvusClient::open(settings, collection).await?;
        let found = client.describe().await?;
        check_collection(&client.location(), &found, model, width)?;
        // an alias can move: keep the collection's own name
        client.name = found.get_collection_name().to_owned();
        client.load().await?;
        Ok(Self { client, width })
    }

    /// Creates an empty collection for vectors of `model`. Uses kind, links and build_reach of `index`.
    pub async fn create(
        settings: &MilvusSettings,
        collection: &str,
        model: &str,
        dimensions: i64,
        index: &IndexSettings,
    ) -> Result<Self> {
        index.check()?;
        let width = vector_width(dimensions)?;
        let client = MilvusClient::open(settings, collection).await?;
        // some servers accept a second create of the same collection
        let request = HasCollectionRequest::builder().collection_name(&client.name).build();
        if client.request("look for the collection", request, call!(has_collection)).await?.exists() {
            return Err(Error::config(client.location(), "exists already: choose another name"));
        }
        let request = create_request(&client.name, model, width, index);
        client.request("create the collection", request, call!(create_collection)).await?;
        client.load().await?;
        Ok(Self { client, width })
    }

    /// Name on the server.
    pub fn name(&self) -> &str {
        &self.client.name
    }

    /// Moves the alias to this collection in one step.
    pub async fn point_alias(&self, settings: &MilvusSettings, alias: &str) -> Result<()> {
        let alias = settings.name(alias)?;
        let alter = AlterAliasRequest::builder().collection_name(self.name()).alias(&alias).build();
        let Err(failure) = self.client.request("change the alias", alter, call!(alter_alias)).await else {
            return Ok(());
        };
        // servers return different errors for a missing alias
        let create = CreateAliasRequest::builder().collection_name(self.name()).alias(&alias).build();
        self.client.request("create the alias", create, call!(create_alias)).await.map_err(|_| failure)
    }

    /// Deletes a collection, whichever model made it.
    pub async fn remove(settings: &MilvusSettings, collection: &str) -> Result<()> {
        let client = MilvusClient::open(settings, collection).await?;
        let request = DropCollectionRequest::builder().collection_name(&client.name).build();
        client.request("drop the collection", request, call!(drop_collection)).await
    }

    fn check(&self, vector: &[f32]) -> Result<()> {
        if vector.len() != self.width as usize {
            let problem = format!("the vector has {} entries, but the index has {}", vector.len(), self.width);
            return Err(Error::input(problem));
        }
        if !vector.iter().all(|x| x.is_finite()) {
            return Err(Error::input("the vector has an entry that is not finite"));
        }
        Ok(())
    }

    async fn find(&self, query: &VectorQuery<'_>, filter: Option<&Filter>) -> Result<Vec<IndexHit>> {
        self.check(query.vector)?;
        if query.k > MAX_HITS {
            return Err(Error::input(format!("{} hits in one search: Milvus returns at most {MAX_HITS}", query.k)));
        }
        filter.map_or(Ok(()), Filter::check)?;
        let Some(expression) = filter.map_or(Some(String::new()), expression) else { return Ok(Vec::new()) };
        let mut k = query.k;
        while k > 0 {
            let (met, mut found) = self.search(&VectorQuery { k, ..*query }, &expression).await?;
            found.retain(|found| filter.is_none_or(|filter| filter.matches(&found.item)));
            if found.len() >= query.k || met < k || k == MAX_HITS {
                found.truncate(query.k);
                return Ok(found);
            }
            k = (k * WIDEN).min(MAX_HITS);
        }
        Ok(Vec::new())
    }

    /// Number of hits before filtering, and the hits whose items still exist.
    async fn search(&self, query: &VectorQuery<'_>, expression: &str) -> Result<(usize, Vec<IndexHit>)> {
        let met = self.request_hits(query, expression, if query.k <= ITEMS_PER_ANSWER { ITEM } else { ID }).await?;
        let rows: Vec<ResultRow<'_>> = met.rows().map_err(|e| self.client.failed("search", e))?.collect();
        let mut hits = Vec::with_capacity(rows.len());
        for row in &rows {
            hits.push((self.text(row, ID)?, self.score(row)?));
        }
        let found: Result<Vec<IndexHit>> = if query.k <= ITEMS_PER_ANSWER {
            let items =
                rows.iter().zip(&hits).map(|(row, (_, score))| Ok(IndexHit { score: *score, item: self.item(row)? }));
            items.collect()
        } else {
            let wanted: Vec<&str> = hits.iter().map(|(id, _)| *id).collect();
            let mut items = self.items(&wanted).await?;
            // skip an item that was deleted meanwhile
            Ok(hits
                .iter()
                .filter_map(|(id, score)| Some(IndexHit { score: *score, item: items.remove(*id)? }))
                .collect())
        };
        Ok((rows.len(), found?))
    }

    async fn request_hits(&self, query: &VectorQuery<'_>, expression: &str, field: &str) -> Result<SingleResult> {
        let ef = query.ef.unwrap_or(DEFAULT_EF).max(query.k);
        let request = SearchRequest::builder()
            .collection_name(self.name())
            .vector_field(VECTOR)
            .vectors(SearchVectors::Float(vec![query.vector.to_vec()]))
            .filter(expression)
            .output_fields([field])
            .limit(query.k as i64)
            .extra_params(HashMap::from([("ef".into(), ef.to_string())]))
            .consistency_level(ConsistencyLevel::Strong);
        let found = self.client.request("search", request.build(), call!(search)).await?;
        let [single] = found.results().get_results() else {
            return Err(self.client.unexpected("did not return exactly one result list"));
        };
        Ok(single.clone())
    }

    /// Stored items by id.
    async fn items(&self, wanted: &[&str]) -> Result<HashMap<String, Item>> {
        let mut items = HashMap::with_capacity(wanted.len());
        let mut visit = |row: &ResultRow<'_>| {
            let item = self.item(row)?;
            items.insert(item.id.clone(), item);
            Ok(())
        };
        self.rows(wanted, &[ITEM], &mut visit).await?;
        Ok(items)
    }

    /// Calls `visit` with some fields of each stored item.
    async fn rows(
        &self,
        wanted: &[&str],
        fields: &[&str],
        visit: &mut (dyn FnMut(&ResultRow<'_>) -> Result<()> + Send),
    ) -> Result<()> {
        let mut rest: Vec<&[&str]> = wanted.chunks(READ_CHUNK).collect();
        while let Some(chunk) = rest.pop() {
            let query = RowQuery { expression: id_in(ID, chunk), fields, limit: None };
            match self.client.query(&query).await? {
                Some(results) => self.each(&results, visit)?,
                None if chunk.len() > 1 => {
                    let (a, b) = chunk.split_at(chunk.len() / 2);
                    rest.extend([a, b]);
                }
                None => return Err(self.client.unexpected("returned an item longer than the client accepts")),
            }
        }
        Ok(())
    }

    fn each(&self, results: &QueryResults, visit: &mut (dyn FnMut(&ResultRow<'_>) -> Result<()> + Send)) -> Result<()> {
        let mut rows = results.rows().map_err(|e| self.client.failed("read items", e))?;
        rows.try_for_each(|row| visit(&row))
    }

    fn text<'a>(&self, row: &ResultRow<'a>, field: &str) -> Result<&'a str> {
        row.get_str(field).map_err(|e| self.client.failed("read items", e))
    }

    fn score(&self, row: &ResultRow<'_>) -> Result<f32> {
        row.get_f32("score").map_err(|e| self.client.failed("search", e))
    }

    fn item(&self, row: &ResultRow<'_>) -> Result<Item> {
        Item::parse(self.text(row, ITEM)?.as_bytes(), Path::new(&self.client.location()), row.index() as u64)
    }

    /// Vectors of stored items with the same id and text.
    async fn vectors_of(&self, items: &[Item], template: &ItemText) -> Result<Vec<Option<Vec<f32>>>> {
        let texts: HashMap<&str, String> = items.iter().map(|item| (item.id.as_str(), template.render(item))).collect();
        let mut known = HashMap::new();
        let mut visit = |row: &ResultRow<'_>| {
            let item = self.item(row)?;
            if texts.get(item.id.as_str()).is_some_and(|text| *text == template.render(&item)) {
                let vector = row.get_float_vector(VECTOR).map_err(|e| self.client.failed("read items", e))?;
                known.insert(item.id, vector.to_vec());
            }
            Ok(())
        };
        let wanted: Vec<&str> = texts.keys().copied().collect();
        self.rows(&wanted, &[ITEM, VECTOR], &mut visit).await?;
        // of several items with one id, the last has its text compared
        let same = |item: &&Item| texts[item.id.as_str()] == template.render(item);
        Ok(items.iter().map(|item| Some(item).filter(same).and_then(|item| known.get(&item.id).cloned())).collect())
    }

    /// Row of a put.
    fn row<'a>(&self, change: &'a ItemChange) -> Result<Option<UpsertRow<'a>>> {
        let ItemChange::Put(item, vector) = change else { return Ok(None) };
        let named = |e| Error::input(format!("the item `{}`", item.id)).because(e);
        self.check(vector).and_then(|()| UpsertRow::new(item, vector)).map(Some).map_err(named)
    }

    async fn apply_changes(&self, changes: &[ItemChange]) -> Result<usize> {
        // of several changes to one id, the last counts
        let mut last: HashMap<&str, Option<UpsertRow<'_>>> = HashMap::with_capacity(changes.len());
        for change in changes {
            last.insert(change.id(), self.row(change)?);
        }
        let before = self.existing_ids(&last.keys().copied().collect::<Vec<_>>()).await?;
        let mut there: HashSet<&str> = before.iter().map(String::as_str).collect();
        let was = changes.iter().filter(|change| match change {
            ItemChange::Put(item, _) => !there.insert(&item.id),
            ItemChange::Delete(id) => there.remove(id.as_str()),
        });
        let num_before = was.count();
        let gone: Vec<&str> = before.iter().map(String::as_str).filter(|id| last[id].is_none()).collect();
        self.delete(&gone).await?;
        self.upsert(&last.into_values().flatten().collect::<Vec<_>>()).await?;
        Ok(num_before)
    }

    /// Ids that exist.
    async fn existing_ids(&self, wanted: &[&str]) -> Result<HashSet<String>> {
        let mut there = HashSet::with_capacity(wanted.len());
        let mut visit = |row: &ResultRow<'_>| {
            there.insert(self.text(row, ID)?.to_owned());
            Ok(())
        };
        self.rows(wanted, &[ID], &mut visit).await?;
        Ok(there)
    }

    async fn delete(&self, gone: &[&str]) -> Result<()> {
        for chunk in gone.chunks(READ_CHUNK) {
            let request = DeleteRequest::builder().collection_name(self.name()).filter(id_in(ID, chunk)).build();
            self.client.request("delete items", request, call!(delete)).await?;
        }
        Ok(())
    }

    async fn upsert(&self, rows: &[UpsertRow<'_>]) -> Result<()> {
        let requests = upserts(self.name(), rows).map_err(|e| self.client.failed("write items", e))?;
        for request in requests {
            self.client.request("write items", Ok(request), call!(upsert)).await?;
        }
        Ok(())
    }

    async fn count(&self) -> Result<usize> {
        const COUNT: &str = "count(*)";
        let query = RowQuery { expression: String::new(), fields: &[COUNT], limit: None };
        let mut num = None;
        if let Some(results) = self.client.query(&query).await? {
            let mut visit = |row: &ResultRow<'_>| {
                num = row.get_i64(COUNT).ok().and_then(|num| usize::try_from(num).ok());
                Ok(())
            };
            self.each(&results, &mut visit)?;
        }
        num.ok_or_else(|| self.client.unexpected("did not return its number of items"))
    }

    /// Page of items; the mark is the last id of the previous page.
    async fn read_page(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let expression = after.map_or(String::new(), |mark| format!("{ID} > {}", quoted(mark)));
        let mut limit = limit.clamp(1, READ_CHUNK);
        let results = loop {
            let query = RowQuery { expression: expression.clone(), fields: &[ITEM, VECTOR], limit: Some(limit) };
            match self.client.query(&query).await? {
                Some(results) => break results,
                None if limit > 1 => limit /= 2,
                None => return Err(self.client.unexpected("returned an item longer than the client accepts")),
            }
        };
        let mut items = Vec::with_capacity(limit);
        let mut visit = |row: &ResultRow<'_>| {
            let vector = row.get_float_vector(VECTOR).map_err(|e| self.client.failed("read items", e))?;
            items.push((self.item(row)?, vector.to_vec()));
            Ok(())
        };
        self.each(&results, &mut visit)?;
        let next = (items.len() >= limit).then(|| items.last().map(|(item, _)| item.id.clone())).flatten();
        Ok(Page { items, next })
    }

    async fn list_after(&self, id: &str, limit: usize) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        let mut after = Some(id.to_owned());
        while items.len() < limit
            && let Some(mark) = after
        {
            let page = self.read_page(Some(&mark), limit - items.len()).await?;
            items.extend(page.items.into_iter().map(|(item, _)| item));
            after = page.next;
        }
        Ok(items)
    }

    /// Recall against brute force over all vectors, which are downloaded.
    async fn measure_recall(&self, vectors: &[Vec<f32>], k: usize) -> Result<f64> {
        let num = self.count().await?;
        if num > MAX_RECALL_ITEMS {
            let problem =
                format!("the collection has {num} items: recall on Milvus is measured for at most {MAX_RECALL_ITEMS}");
            return Err(Error::input(problem));
        }
        vectors.iter().try_for_each(|vector| self.check(vector))?;
        let mut best: Vec<Vec<(f32, String)>> = vec![Vec::new(); vectors.len()];
        let mut after = None;
        loop {
            let page = self.read_page(after.as_deref(), READ_CHUNK).await?;
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
        let (mut num_found, mut num_exact) = (0, 0);
        for (best, vector) in best.iter().zip(vectors) {
            let hits = self.find(&VectorQuery::new(vector, k), None).await?;
            let hits: HashSet<&str> = hits.iter().map(|hit| hit.item.id.as_str()).collect();
            num_exact += best.len();
            num_found += best.iter().filter(|(_, id)| hits.contains(id.as_str())).count();
        }
        Ok(if num_exact == 0 { 1.0 } else { num_found as f64 / num_exact as f64 })
    }
}

impl Index for Milvus {
    fn nearest<'a>(&'a self, query: VectorQuery<'a>, filter: Option<&'a Filter>) -> Answer<'a, Vec<IndexHit>> {
        Box::pin(async move { self.find(&query, filter).await })
    }

    fn lexical<'a>(&'a self, _: &'a str, _: usize, _: Option<&'a Filter>) -> Answer<'a, Option<Vec<IndexHit>>> {
        Box::pin(async { Ok(None) })
    }

    fn get<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<Item>>> {
        Box::pin(async move {
            let wanted: Vec<&str> = ids.iter().map(String::as_str).collect();
            let items = self.items(&wanted).await?;
            Ok(ids.iter().map(|id| items.get(id).cloned()).collect())
        })
    }

    fn known_vectors<'a>(&'a self, items: &'a [Item], template: &'a ItemText) -> Answer<'a, Vec<Option<Vec<f32>>>> {
        Box::pin(self.vectors_of(items, template))
    }

    fn check_changes(&self, changes: &[ItemChange]) -> Result<()> {
        changes.iter().try_for_each(|change| self.row(change).map(drop))
    }

    fn apply<'a>(&'a self, changes: &'a [ItemChange]) -> Answer<'a, usize> {
        Box::pin(self.apply_changes(changes))
    }

    fn num_items(&self) -> Answer<'_, usize> {
        Box::pin(self.count())
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Page> {
        Box::pin(self.read_page(after, limit))
    }

    fn items_after<'a>(&'a self, id: &'a str, limit: usize) -> Answer<'a, Vec<Item>> {
        Box::pin(self.list_after(id, limit))
    }

    /// Milvus does not list fields.
    fn fields(&self) -> Answer<'_, Vec<Field>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn matcher(&self, _: &str) -> Option<TermMatcher> {
        None
    }

    fn recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize) -> Answer<'a, f64> {
        Box::pin(self.measure_recall(vectors, k))
    }
}
