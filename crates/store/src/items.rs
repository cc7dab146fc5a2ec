//! Items, and their quality measured from sales. Batches are upserts; the last of several rows with one key wins. Rows are
//! written in key order, so concurrent writers do not deadlock.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::database::{Database, checked_key, checked_text, checked_texts};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Maximum bytes of an item as JSON.
pub const MAX_ITEM: usize = 1 << 20;

/// Quality statistics of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    pub item: String,
    pub units: i64,
    pub returns: i64,
    pub ratings_sum: f64,
    pub num_ratings: i64,
    /// Score from 0 to 1, by the writer's own rule.
    pub score: f64,
}

pub(super) async fn put(database: &Database, items: &[Item]) -> Result<()> {
    let mut rows = BTreeMap::new();
    for item in items {
        checked_key("an item's id", &item.id)?;
        let text = serde_json::to_string(item).expect("an item has a JSON form");
        if text.len() > MAX_ITEM {
            let problem = format!("the item `{}` has {} bytes as JSON: at most {MAX_ITEM}", item.id, text.len());
            return Err(Error::input(problem));
        }
        rows.insert(&item.id, json!({"id": item.id, "json": text}));
    }
    let sql = "INSERT INTO items (id, json) SELECT value->>'id', value->>'json' FROM {rows} WHERE true \
               ON CONFLICT (id) DO UPDATE SET json = excluded.json";
    write(database, "write items", sql, rows.into_values().collect()).await.map(drop)
}

/// In the order of `ids`.
pub(super) async fn get(database: &Database, ids: &[String]) -> Result<Vec<Option<Item>>> {
    checked_texts("an item's id", ids)?;
    let sql = "SELECT id, json FROM items WHERE id IN (SELECT value FROM {texts})";
    let rows = database.fetch_batch("read items", sql, ids).await?;
    let read = |row: &AnyRow| {
        let item: Item = database.parse_column(row, "json")?;
        Ok((item.id.clone(), item))
    };
    let found: HashMap<String, Item> = rows.iter().map(read).collect::<Result<_>>()?;
    Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
}

pub(super) async fn delete(database: &Database, ids: &[String]) -> Result<u64> {
    checked_texts("an item's id", ids)?;
    let rows = ids.iter().map(|id| json!(id)).collect();
    write(database, "delete items", "DELETE FROM items WHERE id IN (SELECT value FROM {texts})", rows).await
}

pub(super) async fn page(database: &Database, after: Option<&str>, limit: i64) -> Result<Vec<Item>> {
    checked_text("an item's id", after.unwrap_or_default())?;
    let query = sqlx::query("SELECT json FROM items WHERE id > $1 ORDER BY id LIMIT $2");
    let query = query.bind(after.unwrap_or_default()).bind(limit);
    let rows = query.fetch_all(&database.reads).await.map_err(database.failed("read items"))?;
    rows.iter().map(|row| database.parse_column(row, "json")).collect()
}

pub(super) async fn put_quality(database: &Database, quality: &[Quality]) -> Result<()> {
    let mut rows = BTreeMap::new();
    for row in quality {
        checked_key("an item's id", &row.item)?;
        let counted = row.units >= 0 && row.returns >= 0 && row.num_ratings >= 0 && row.ratings_sum.is_finite();
        if !counted || !(0.0..=1.0).contains(&row.score) {
            let problem = format!("quality of `{}`: counts are 0 or more, and the score is from 0 to 1", row.item);
            return Err(Error::input(problem));
        }
        rows.insert(&row.item, json!(row));
    }
    let sql = "INSERT INTO quality (item, units, returns, ratings_sum, num_ratings, score) \
               SELECT value->>'item', CAST(value->>'units' AS BIGINT), CAST(value->>'returns' AS BIGINT), \
               CAST(value->>'ratings_sum' AS DOUBLE PRECISION), CAST(value->>'num_ratings' AS BIGINT), \
               CAST(value->>'score' AS DOUBLE PRECISION) FROM {rows} WHERE true \
               ON CONFLICT (item) DO UPDATE SET units = excluded.units, returns = excluded.returns, \
               ratings_sum = excluded.ratings_sum, num_ratings = excluded.num_ratings, score = excluded.score";
    write(database, "write quality", sql, rows.into_values().collect()).await.map(drop)
}

/// In the order of `items`.
pub(super) async fn get_quality(database: &Database, items: &[String]) -> Result<Vec<Option<Quality>>> {
    checked_texts("an item's id", items)?;
    let sql = "SELECT item, units, returns, ratings_sum, num_ratings, score FROM quality \
               WHERE item IN (SELECT value FROM {texts})";
    let rows = database.fetch_batch("read quality", sql, items).await?;
    let read = |row: &AnyRow| {
        Ok(Quality {
            item: row.try_get(0)?,
            units: row.try_get(1)?,
            returns: row.try_get(2)?,
            ratings_sum: row.try_get(3)?,
            num_ratings: row.try_get(4)?,
            score: row.try_get(5)?,
        })
    };
    let found: Vec<Quality> =
        rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(database.failed("read quality"))?;
    let found: HashMap<&str, &Quality> = found.iter().map(|row| (row.item.as_str(), row)).collect();
    Ok(items.iter().map(|item| found.get(item.as_str()).map(|row| (*row).clone())).collect())
}

/// All rows or none.
async fn write(
    database: &Database,
    action: &'static str,
    sql: &'static str,
    rows: Vec<serde_json::Value>,
) -> Result<u64> {
    let mut transaction = database.begin().await?;
    let num_changed = database.execute_batch(&mut transaction, action, sql, &rows).await?;
    database.commit(transaction).await?;
    Ok(num_changed)
}
