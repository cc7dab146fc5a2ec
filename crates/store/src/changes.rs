//! The stream of catalogue changes. Numbers are given inside the transaction that writes them, and their counter stays locked until it
//! ends, so they become visible in order: a reader that has reached a position has missed nothing before it.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use serde_json::json;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::database::{Database, checked_key};
use souk_io::catalogue_stream::Mutation;
use souk_io::error::{Error, Result};
use souk_io::time;

/// The counter that holds the stream's id.
pub(super) const STREAM_ID: &str = "stream_id";
/// Maximum bytes of an item as JSON.
pub const MAX_ITEM: usize = 1 << 20;

/// Appends all mutations or none, and drops those that they make superfluous. Returns the position of the last. Appends none and returns
/// none if an item has changed after the position `unchanged_since`.
pub(super) async fn append(
    database: &Database,
    mutations: &[Mutation],
    unchanged_since: Option<u64>,
) -> Result<Option<u64>> {
    if mutations.is_empty() {
        return last(database).await.map(Some);
    }
    let mut rows = Vec::with_capacity(mutations.len());
    let (mut whole, mut updated) = (HashSet::new(), HashSet::new());
    for (at, mutation) in mutations.iter().enumerate().rev() {
        let (id, fields, text) = (mutation.id(), mutation.updated_fields(), mutation.to_json());
        mutation.check()?;
        checked_key("an item's id", id)?;
        if !fields.is_empty() {
            checked_key("the updated fields' names", &fields)?;
        }
        if text.len() > MAX_ITEM {
            return Err(Error::input(format!("the item `{id}` has {} bytes as JSON: at most {MAX_ITEM}", text.len())));
        }
        let is_latest = !whole.contains(id)
            && if fields.is_empty() { whole.insert(id) } else { updated.insert((id, fields.clone())) };
        if is_latest {
            rows.push((at as i64, json!({"id": id, "fields": fields, "json": text})));
        }
    }
    let mut transaction = database.begin().await?;
    let last = database.reserve_numbers(&mut transaction, "change", mutations.len()).await?;
    if let Some(position) = unchanged_since {
        // counts later changes of these items, and changes nothing
        let later = format!(
            "UPDATE changes SET position = position WHERE id IN (SELECT value FROM {{texts}}) AND position > {position}"
        );
        let ids: Vec<_> = mutations.iter().map(|mutation| json!(mutation.id())).collect();
        if database.execute_batch(&mut transaction, "read catalogue changes", &later, &ids).await? > 0 {
            return Ok(None);
        }
    }
    let first = last + 1 - mutations.len() as i64;
    for (at, row) in &mut rows {
        row["position"] = json!(first + *at);
    }
    let whole: Vec<_> = whole.into_iter().map(|id| json!(id)).collect();
    let updated: Vec<_> = updated.into_iter().map(|(id, fields)| json!({"id": id, "fields": fields})).collect();
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    let statements = [
        ("DELETE FROM changes WHERE id IN (SELECT value FROM {texts})", whole),
        ("DELETE FROM changes WHERE (id, fields) IN (SELECT value->>'id', value->>'fields' FROM {rows})", updated),
        (
            "INSERT INTO changes (position, id, fields, json) SELECT CAST(value->>'position' AS BIGINT), value->>'id', \
             value->>'fields', value->>'json' FROM {rows} WHERE true",
            rows,
        ),
    ];
    for (sql, rows) in statements {
        database.execute_batch(&mut transaction, "write catalogue changes", sql, &rows).await?;
    }
    database.commit(transaction).await?;
    Ok(Some(last as u64))
}

/// Mutations after a position, each with its own, in order.
pub(super) async fn page(database: &Database, after: u64, limit: i64) -> Result<Vec<(u64, Mutation)>> {
    let failed = database.failed("read catalogue changes");
    let query = sqlx::query("SELECT position, json FROM changes WHERE position > $1 ORDER BY position LIMIT $2");
    let query = query.bind(i64::try_from(after).unwrap_or(i64::MAX)).bind(limit);
    let rows = query.fetch_all(&database.reads).await.map_err(&failed)?;
    let read = |row: &AnyRow| {
        let (position, text): (i64, String) = (row.try_get(0).map_err(&failed)?, row.try_get(1).map_err(&failed)?);
        let position = position as u64;
        Ok((position, Mutation::parse(text.as_bytes(), Path::new("changes"), position)?))
    };
    rows.iter().map(read).collect()
}

/// Number that tells this stream from others, such as the one before a backup was restored. Drawn on first use.
pub(super) async fn stream_id(database: &Database) -> Result<i64> {
    let failed = database.failed("read which catalogue stream it has");
    let find = async || {
        let query = sqlx::query_scalar::<_, i64>("SELECT last FROM counters WHERE name = $1").bind(STREAM_ID);
        query.fetch_optional(&database.writes).await.map_err(&failed)
    };
    if let Some(known) = find().await? {
        return Ok(known);
    }
    let drawn = i64::from(RandomState::new().hash_one(time::now()) as u32);
    let mut transaction = database.begin().await?;
    let sql = "INSERT INTO counters (name, last) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
    let query = sqlx::query(sql).bind(STREAM_ID).bind(drawn);
    query.execute(&mut *transaction).await.map_err(&failed)?;
    database.commit(transaction).await?;
    // another process may have been first
    Ok(find().await?.unwrap_or(drawn))
}

/// Position of the last mutation, 0 if there is none.
pub(super) async fn last(database: &Database) -> Result<u64> {
    let query = sqlx::query_scalar::<_, i64>("SELECT last FROM counters WHERE name = 'change'");
    let last = query.fetch_one(&database.reads).await.map_err(database.failed("read the last catalogue change"))?;
    Ok(last as u64)
}
