//! The quality of items, measured from sales. Batches are upserts; the last of several rows with one key wins. Rows are
//! written in key order, so concurrent writers do not deadlock.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::database::{Database, checked_key, checked_texts};
use souk_io::error::{Error, Result};

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

pub(super) async fn put(database: &Database, quality: &[Quality]) -> Result<()> {
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
    let rows: Vec<_> = rows.into_values().collect();
    let mut transaction = database.begin().await?;
    database.execute_batch(&mut transaction, "write quality", sql, &rows).await?;
    database.commit(transaction).await
}

/// In the order of `items`.
pub(super) async fn get(database: &Database, items: &[String]) -> Result<Vec<Option<Quality>>> {
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
