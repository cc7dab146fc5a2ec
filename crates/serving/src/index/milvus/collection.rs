//! Milvus collection as an index. Searches use strong consistency, so the next one sees a change. The server applies
//! filters, and hits are checked again here. Never stores items locally.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use milvus::v2::prelude::{
    AlterAliasRequest, ConsistencyLevel, CreateAliasRequest, DeleteRequest, DropCollectionRequest,
    HasCollectionRequest, QueryResults, ResultRow, SearchRequest, SearchVectors, SingleResult,
};
use tokio::sync::OnceCell;

use super::client::{MilvusClient, RowQuery, call};
use super::expression::{expression, id_in};
use super::layout::{ID, ITEM, UpsertRow, VECTOR, check_collection, create_request, has_terms, upserts, vector_width};
use super::settings::MilvusSettings;
use super::terms::{MAX_TEXT, SPARSE, TermSearch, joined_terms};
use crate::index::columns::Field;
use crate::index::filter::Filter;
use crate::index::frame::ItemChange;
use crate::index::manifest::IndexSettings;
use crate::index::vector_query::VectorQuery;
use crate::index::{HitItem, Index, IndexHit, Page};
use souk_io::domain::Item;
use souk_io::error::Answer;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_lexical::{LexicalOptions, TermMatcher};

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
pub(super) const READ_CHUNK: usize = 500;

pub struct Milvus {
    pub(super) client: MilvusClient,
    width: u32,
    terms: Option<TermSearch>,
    /// Read once, from a part of the items.
    pub(super) fields: OnceCell<Vec<Field>>,
}

/// Content of a collection: vectors of a model, and the terms of items' texts if they are searched by terms.
#[derive(Clone, Copy)]
pub struct CollectionContent<'a> {
    /// Fingerprint.
    pub model: &'a str,
    pub dimensions: i64,
    pub item_text: &'a ItemText,
    pub lexical: Option<LexicalOptions>,
}

impl CollectionContent<'_> {
    fn terms(&self, options: Option<LexicalOptions>) -> Option<TermSearch> {
        options.map(|options| TermSearch { item_text: self.item_text.clone(), options })
    }
}

impl Milvus {
    /// Opens a collection, or what an alias points to, which has this content.
    pub async fn open(settings: &MilvusSettings, collection: &str, content: CollectionContent<'_>) -> Result<Self> {
        let width = vector_width(content.dimensions)?;
        let mut client = MilvusClient::open(settings, collection).await?;
        let found = client.describe().await?;
        check_collection(&client.location(), &found, content.model, width)?;
        // an alias can move: keep the collection's own name
        client.name = found.get_collection_name().to_owned();
        client.load().await?;
        // each row needs the field if the collection has it
        let options = has_terms(&found).then(|| content.lexical.unwrap_or_default());
        Ok(Self { client, width, terms: content.terms(options), fields: OnceCell::new() })
    }

    /// Creates an empty collection. Uses kind, links and build_reach of `index`.
    pub async fn create(
        settings: &MilvusSettings,
        collection: &str,
        content: CollectionContent<'_>,
        index: &IndexSettings,
    ) -> Result<Self> {
        index.check()?;
        let width = vector_width(content.dimensions)?;
        let terms = content.terms(content.lexical);
        let client = MilvusClient::open(settings, collection).await?;
        // some servers accept a second create of the same collection
        let request = HasCollectionRequest::builder().collection_name(&client.name).build();
        if client.request("look for the collection", request, call!(has_collection)).await?.exists() {
            return Err(Error::config(client.location(), "exists already: choose another name"));
        }
        let request = create_request(&client.name, content.model, width, index, terms.as_ref());
        client.request("create the collection", request, call!(create_collection)).await?;
        client.load().await?;
        Ok(Self { client, width, terms, fields: OnceCell::new() })
    }

    /// Name on the server.
    pub fn name(&self) -> &str {
        &self.client.name
    }

    /// Moves an alias to a collection in one step.
    pub async fn point_alias(settings: &MilvusSettings, collection: &str, alias: &str) -> Result<()> {
        let (client, alias) = (MilvusClient::open(settings, collection).await?, settings.name(alias)?);
        let alter = AlterAliasRequest::builder().collection_name(&client.name).alias(&alias).build();
        let Err(failure) = client.request("change the alias", alter, call!(alter_alias)).await else {
            return Ok(());
        };
        // servers return different errors for a missing alias
        let create = CreateAliasRequest::builder().collection_name(&client.name).alias(&alias).build();
        client.request("create the alias", create, call!(create_alias)).await.map_err(|_| failure)
    }

    /// Deletes a collection, whichever model made it.
    pub async fn remove(settings: &MilvusSettings, collection: &str) -> Result<()> {
        let client = MilvusClient::open(settings, collection).await?;
        let request = DropCollectionRequest::builder().collection_name(&client.name).build();
        client.request("drop the collection", request, call!(drop_collection)).await
    }

    pub(super) fn check(&self, vector: &[f32]) -> Result<()> {
        if vector.len() != self.width as usize {
            let problem = format!("the vector has {} entries, but the index has {}", vector.len(), self.width);
            return Err(Error::input(problem));
        }
        if !vector.iter().all(|x| x.is_finite()) {
            return Err(Error::input("the vector has an entry that is not finite"));
        }
        Ok(())
    }

    pub(super) async fn find(&self, query: &VectorQuery<'_>, filter: Option<&Filter>) -> Result<Vec<IndexHit>> {
        self.check(query.vector)?;
        let ef = query.ef.unwrap_or(DEFAULT_EF);
        let ask = Ask { field: VECTOR, vectors: SearchVectors::Float(vec![query.vector.to_vec()]), ef: Some(ef) };
        self.find_by(&ask, query.k, filter).await
    }

    async fn find_terms(&self, text: &str, k: usize, filter: Option<&Filter>) -> Result<Option<Vec<IndexHit>>> {
        let Some(terms) = &self.terms else { return Ok(None) };
        let joined = joined_terms(terms.options.language, text);
        if joined.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let ask = Ask { field: SPARSE, vectors: SearchVectors::EmbeddedText(vec![joined]), ef: None };
        let mut hits = self.find_by(&ask, k, filter).await?;
        hits.iter_mut().for_each(|hit| hit.score = terms.own_score(hit.score));
        hits.retain(|hit| hit.score > 0.0);
        Ok(Some(hits))
    }

    async fn find_by(&self, ask: &Ask, wanted: usize, filter: Option<&Filter>) -> Result<Vec<IndexHit>> {
        if wanted > MAX_HITS {
            return Err(Error::input(format!("{wanted} hits in one search: Milvus returns at most {MAX_HITS}")));
        }
        filter.map_or(Ok(()), Filter::check)?;
        let Some(expression) = filter.map_or(Some(String::new()), expression) else { return Ok(Vec::new()) };
        let mut k = wanted;
        while k > 0 {
            let (met, mut found) = self.search(ask, k, &expression).await?;
            found.retain(|(_, item)| filter.is_none_or(|filter| filter.matches(item)));
            if found.len() >= wanted || met < k || k == MAX_HITS {
                found.truncate(wanted);
                let hits = found.into_iter().map(|(score, item)| IndexHit { score, item: HitItem::of(item) });
                return Ok(hits.collect());
            }
            k = (k * WIDEN).min(MAX_HITS);
        }
        Ok(Vec::new())
    }

    /// Number of hits before filtering, and the hits whose items still exist.
    async fn search(&self, ask: &Ask, k: usize, expression: &str) -> Result<(usize, Vec<(f32, Item)>)> {
        let met = self.request_hits(ask, k, expression).await?;
        let rows: Vec<ResultRow<'_>> = met.rows().map_err(|e| self.client.failed("search", e))?.collect();
        let mut hits = Vec::with_capacity(rows.len());
        for row in &rows {
            hits.push((self.text(row, ID)?, self.score(row)?));
        }
        let found: Result<Vec<(f32, Item)>> = if k <= ITEMS_PER_ANSWER {
            rows.iter().zip(&hits).map(|(row, (_, score))| Ok((*score, self.item(row)?))).collect()
        } else {
            let wanted: Vec<&str> = hits.iter().map(|(id, _)| *id).collect();
            let mut items = self.items(&wanted).await?;
            // skip an item that was deleted meanwhile
            Ok(hits.iter().filter_map(|(id, score)| Some((*score, items.remove(*id)?))).collect())
        };
        Ok((rows.len(), found?))
    }

    async fn request_hits(&self, ask: &Ask, k: usize, expression: &str) -> Result<SingleResult> {
        let params = ask.ef.map(|ef| ("ef".to_owned(), ef.max(k).to_string()));
        let request = SearchRequest::builder()
            .collection_name(self.name())
            .vector_field(ask.field)
            .vectors(ask.vectors.clone())
            .filter(expression)
            .output_fields([if k <= ITEMS_PER_ANSWER { ITEM } else { ID }])
            .limit(k as i64)
            .extra_params(params.into_iter().collect::<HashMap<String, String>>())
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
    pub(super) async fn rows(
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

    pub(super) fn each(
        &self,
        results: &QueryResults,
        visit: &mut (dyn FnMut(&ResultRow<'_>) -> Result<()> + Send),
    ) -> Result<()> {
        let mut rows = results.rows().map_err(|e| self.client.failed("read items", e))?;
        rows.try_for_each(|row| visit(&row))
    }

    fn text<'a>(&self, row: &ResultRow<'a>, field: &str) -> Result<&'a str> {
        row.get_str(field).map_err(|e| self.client.failed("read items", e))
    }

    fn score(&self, row: &ResultRow<'_>) -> Result<f32> {
        row.get_f32("score").map_err(|e| self.client.failed("search", e))
    }

    pub(super) fn item(&self, row: &ResultRow<'_>) -> Result<Item> {
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
        self.check(vector).and_then(|()| UpsertRow::new(item, vector, self.terms.as_ref())).map(Some).map_err(named)
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

    pub(super) async fn count(&self) -> Result<usize> {
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
}

/// A search on the server: by a vector, or by terms.
struct Ask {
    field: &'static str,
    vectors: SearchVectors,
    /// Width of a graph search.
    ef: Option<usize>,
}

impl Index for Milvus {
    fn nearest<'a>(&'a self, query: VectorQuery<'a>, filter: Option<&'a Filter>) -> Answer<'a, Vec<IndexHit>> {
        Box::pin(async move { self.find(&query, filter).await })
    }

    fn lexical<'a>(
        &'a self,
        query: &'a str,
        k: usize,
        filter: Option<&'a Filter>,
    ) -> Answer<'a, Option<Vec<IndexHit>>> {
        Box::pin(self.find_terms(query, k, filter))
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

    fn fields(&self) -> Answer<'_, Vec<Field>> {
        Box::pin(async { self.fields.get_or_try_init(|| self.read_fields()).await.cloned() })
    }

    /// The server does not tell how many items have a term: all terms weigh the same.
    fn matcher(&self, query: &str) -> Option<TermMatcher> {
        self.terms.as_ref().map(|terms| TermMatcher::unweighted(terms.options.language, query))
    }

    fn recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize) -> Answer<'a, f64> {
        Box::pin(self.measure_recall(vectors, k))
    }
}
