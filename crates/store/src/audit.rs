//! Audited rewards, kept so that a trained model can be explained: written in batches, read in pages by time.

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::database::{Database, checked_text};
use souk_io::audit::Audit;
use souk_io::domain::Level;
use souk_io::error::{Error, Result};

/// Position in the list of audits, ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditMark {
    pub judged_at: i64,
    pub number: i64,
}

impl AuditMark {
    /// Position before all audits from this time on.
    pub fn at(judged_at: i64) -> Self {
        Self { judged_at, number: 0 }
    }
}

pub(super) async fn append(database: &Database, audits: &[Audit]) -> Result<()> {
    for audit in audits {
        for text in [&audit.query, &audit.item, &audit.text_hash, &audit.source] {
            checked_text("a text of an audit", text)?;
        }
        if audit.score.is_some_and(|score| !score.is_finite()) {
            return Err(Error::input(format!("the score of `{}` is not a number", audit.item)));
        }
    }
    let mut transaction = database.begin().await?;
    let last = database.reserve_numbers(&mut transaction, "audit", audits.len()).await?;
    let row = |(audit, number): (&Audit, i64)| {
        json!({
            "number": number, "query": audit.query, "item": audit.item, "text_hash": audit.text_hash,
            "source": audit.source, "score": audit.score, "level": audit.level.map(Level::number),
            "judged_at": audit.judged_at,
        })
    };
    let rows: Vec<_> = audits.iter().zip(last - audits.len() as i64 + 1..).map(row).collect();
    let sql = "INSERT INTO audits (number, query, item, text_hash, source, score, level, judged_at) \
               SELECT CAST(value->>'number' AS BIGINT), value->>'query', value->>'item', value->>'text_hash', \
               value->>'source', CAST(value->>'score' AS DOUBLE PRECISION), CAST(value->>'level' AS BIGINT), \
               CAST(value->>'judged_at' AS BIGINT) FROM {rows}";
    database.execute_batch(&mut transaction, "write audits", sql, &rows).await?;
    database.commit(transaction).await
}

/// Audits after `after` and before `until`, each with its position for the next page.
pub(super) async fn page(
    database: &Database,
    after: AuditMark,
    until: i64,
    limit: i64,
) -> Result<Vec<(AuditMark, Audit)>> {
    let sql = "SELECT judged_at, number, query, item, text_hash, source, score, level FROM audits \
               WHERE (judged_at, number) > ($1, $2) AND judged_at < $3 ORDER BY judged_at, number LIMIT $4";
    let query = sqlx::query(sql).bind(after.judged_at).bind(after.number).bind(until).bind(limit);
    let failed = database.failed("read audits");
    let rows = query.fetch_all(&database.reads).await.map_err(&failed)?;
    let read = |row: &AnyRow| {
        let judged_at = row.try_get(0)?;
        let audit = Audit {
            query: row.try_get(2)?,
            item: row.try_get(3)?,
            text_hash: row.try_get(4)?,
            source: row.try_get(5)?,
            score: row.try_get(6)?,
            level: row.try_get::<Option<i64>, _>(7)?.and_then(Level::from_number),
            judged_at,
        };
        Ok((AuditMark { judged_at, number: row.try_get(1)? }, audit))
    };
    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(failed)
}
