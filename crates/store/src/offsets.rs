//! Read positions of the lanes of an event source. Moving a position requires the revision that was read, so a stale reader
//! moves nothing.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::database::{Database, checked_key, checked_text};
use souk_io::error::Result;
use souk_io::time;

/// Read position of one lane, such as a partition or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offset {
    pub lane: String,
    /// In the source's own format: a number, or JSON.
    pub position: String,
    /// Number of times it was moved. To move it, pass the revision that was read; 0 for a new lane.
    pub revision: i64,
}

/// Moves all positions or none; returns false if another process has moved one since.
pub(super) async fn move_all(database: &Database, source: &str, offsets: &[Offset]) -> Result<bool> {
    checked_key("a source's name", source)?;
    let failed = database.failed("move offsets");
    let mut lanes: Vec<&Offset> = offsets.iter().collect();
    lanes.sort_by(|a, b| a.lane.cmp(&b.lane));
    let mut transaction = database.begin().await?;
    for offset in lanes {
        checked_key("a lane's name", &offset.lane)?;
        checked_text("a position", &offset.position)?;
        let sql = match offset.revision {
            0 => {
                "INSERT INTO offsets (source, lane, position, moved_at, revision) VALUES ($1, $2, $3, $4, $5 + 1) \
                  ON CONFLICT (source, lane) DO NOTHING"
            }
            _ => {
                "UPDATE offsets SET position = $3, moved_at = $4, revision = revision + 1 \
                  WHERE source = $1 AND lane = $2 AND revision = $5"
            }
        };
        let query = sqlx::query(sql).bind(source).bind(&offset.lane).bind(&offset.position).bind(time::now());
        let done = query.bind(offset.revision).execute(&mut *transaction).await.map_err(&failed)?;
        if done.rows_affected() == 0 {
            transaction.rollback().await.map_err(&failed)?;
            return Ok(false);
        }
    }
    database.commit(transaction).await?;
    Ok(true)
}

/// All lanes of a source, by name.
pub(super) async fn of_source(database: &Database, source: &str) -> Result<Vec<Offset>> {
    checked_text("a source's name", source)?;
    let failed = database.failed("read offsets");
    let sql = "SELECT lane, position, revision FROM offsets WHERE source = $1 ORDER BY lane";
    let rows = sqlx::query(sql).bind(source).fetch_all(&database.reads).await.map_err(&failed)?;
    let read =
        |row: &AnyRow| Ok(Offset { lane: row.try_get(0)?, position: row.try_get(1)?, revision: row.try_get(2)? });
    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(failed)
}
