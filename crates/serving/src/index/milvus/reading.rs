//! Reading a collection: pages of items, the fields of a part of them, and recall against brute force.

use std::collections::HashSet;

use super::client::RowQuery;
use super::collection::{Milvus, READ_CHUNK};
use super::expression::quoted;
use super::layout::{ID, ITEM, VECTOR};
use crate::index::columns::{Columns, Field};
use crate::index::vector_query::VectorQuery;
use crate::index::{HitKey, Page};
use milvus::v2::prelude::{QueryResults, ResultRow};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Largest collection whose recall is measured: every vector is downloaded.
const MAX_RECALL_ITEMS: usize = 100_000;
/// Items whose fields are listed.
const FIELD_ITEMS: usize = 10_000;

impl Milvus {
    /// Some fields of the rows after an id, and how many rows were asked for in the end: as many as fit in one answer.
    async fn rows_after(&self, after: Option<&str>, fields: &[&str], limit: usize) -> Result<(QueryResults, usize)> {
        let expression = after.map_or(String::new(), |mark| format!("{ID} > {}", quoted(mark)));
        let mut limit = limit.clamp(1, READ_CHUNK);
        loop {
            let query = RowQuery { expression: expression.clone(), fields, limit: Some(limit) };
            match self.client.query(&query).await? {
                Some(results) => return Ok((results, limit)),
                None if limit > 1 => limit /= 2,
                None => return Err(self.client.unexpected("returned an item longer than the client accepts")),
            }
        }
    }

    /// Page of items; the mark is the last id of the previous page.
    pub(super) async fn read_page(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let (results, limit) = self.rows_after(after, &[ITEM, VECTOR], limit).await?;
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

    pub(super) async fn list_after(&self, id: &str, limit: usize) -> Result<Vec<Item>> {
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
    pub(super) async fn measure_recall(&self, vectors: &[Vec<f32>], k: usize) -> Result<f64> {
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
            let hits: HashSet<HitKey<'_>> = hits.iter().map(|hit| hit.item.key()).collect();
            num_exact += best.len();
            num_found += best.iter().filter(|(_, id)| hits.contains(&HitKey::Id(id))).count();
        }
        Ok(if num_exact == 0 { 1.0 } else { num_found as f64 / num_exact as f64 })
    }

    /// Fields of the first items. Their values are counted here, because the server does not.
    pub(super) async fn read_fields(&self) -> Result<Vec<Field>> {
        let (mut columns, mut after, mut num): (Columns, Option<String>, usize) = (Columns::default(), None, 0);
        while num < FIELD_ITEMS {
            let (results, limit) = self.rows_after(after.as_deref(), &[ITEM], READ_CHUNK).await?;
            let before = num;
            let mut visit = |row: &ResultRow<'_>| {
                let item = self.item(row)?;
                columns.push(&item);
                num += 1;
                after = Some(item.id);
                Ok(())
            };
            self.each(&results, &mut visit)?;
            if num - before < limit {
                break;
            }
        }
        Ok(columns.fields())
    }
}
