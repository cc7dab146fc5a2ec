//! What people said of two result pages side by side. Takes votes with ids of their casters' choice, so that one sent
//! twice counts once; gives them back in the order they came, and counted for each pair of channels.

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::database::{Database, checked_key, checked_text};
use crate::error::Result;

/// How the left side compares with the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Good,
    Same,
    Bad,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Left,
    Right,
}

/// What the voter thinks of one item on a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grade {
    pub side: Side,
    pub item: String,
    pub good: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// Chosen by whoever casts it.
    pub id: String,
    pub query: String,
    /// A channel or a model version.
    pub left: String,
    pub right: String,
    pub verdict: Verdict,
    pub grades: Vec<Grade>,
    pub voter: String,
    /// Milliseconds since 1970.
    pub cast_at: i64,
}

/// The votes on one pair, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PairVotes {
    pub left: String,
    pub right: String,
    pub num_good: i64,
    pub num_same: i64,
    pub num_bad: i64,
    /// Graded items, and the good ones among them.
    pub left_items: i64,
    pub left_good_items: i64,
    pub right_items: i64,
    pub right_good_items: i64,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Same => "same",
            Self::Bad => "bad",
        }
    }
}

impl Vote {
    fn row(&self, number: i64) -> serde_json::Value {
        let num = |side: Side, good: bool| {
            self.grades.iter().filter(|grade| grade.side == side && (grade.good || !good)).count()
        };
        json!({
            "number": number, "id": self.id, "query": self.query, "left": self.left, "right": self.right,
            "verdict": self.verdict.name(), "grades": json!(self.grades).to_string(),
            "left_items": num(Side::Left, false), "left_good_items": num(Side::Left, true),
            "right_items": num(Side::Right, false), "right_good_items": num(Side::Right, true),
            "voter": self.voter, "cast_at": self.cast_at,
        })
    }
}

pub(super) async fn append(database: &Database, votes: &[Vote]) -> Result<u64> {
    for vote in votes {
        for (what, key) in [("a vote's id", &vote.id), ("a vote's left", &vote.left), ("a vote's right", &vote.right)] {
            checked_key(what, key)?;
        }
        checked_text("a vote's query", &vote.query)?;
        checked_text("a vote's voter", &vote.voter)?;
    }
    let mut transaction = database.begin().await?;
    let last = database.count(&mut transaction, "vote", votes.len()).await?;
    let numbers = last - votes.len() as i64 + 1..;
    let rows: Vec<_> = votes.iter().zip(numbers).map(|(vote, number)| vote.row(number)).collect();
    let sql = "INSERT INTO votes (number, id, query, left_side, right_side, verdict, grades, left_items, \
               left_good_items, right_items, right_good_items, voter, cast_at) \
               SELECT CAST(value->>'number' AS BIGINT), value->>'id', value->>'query', value->>'left', value->>'right', \
               value->>'verdict', value->>'grades', CAST(value->>'left_items' AS BIGINT), \
               CAST(value->>'left_good_items' AS BIGINT), CAST(value->>'right_items' AS BIGINT), \
               CAST(value->>'right_good_items' AS BIGINT), value->>'voter', CAST(value->>'cast_at' AS BIGINT) \
               FROM {rows} WHERE true ON CONFLICT (id) DO NOTHING";
    let num_new = database.execute_batch(&mut transaction, "write votes", sql, &rows).await?;
    database.commit(transaction).await?;
    Ok(num_new)
}

pub(super) async fn page(database: &Database, after: i64, limit: i64) -> Result<Vec<(i64, Vote)>> {
    let failed = database.failed("read votes");
    let sql = "SELECT number, id, query, left_side, right_side, verdict, grades, voter, cast_at FROM votes \
               WHERE number > $1 ORDER BY number LIMIT $2";
    let rows = sqlx::query(sql).bind(after).bind(limit).fetch_all(&database.reads).await.map_err(&failed)?;
    let read = |row: &AnyRow| {
        let text = |column| row.try_get::<String, _>(column).map_err(&failed);
        let named = text(5)?;
        let verdict = [Verdict::Good, Verdict::Same, Verdict::Bad].into_iter().find(|verdict| verdict.name() == named);
        let vote = Vote {
            id: text(1)?,
            query: text(2)?,
            left: text(3)?,
            right: text(4)?,
            verdict: verdict.ok_or_else(|| database.unsound(format!("`{named}` is no verdict")))?,
            grades: database.stored(row, "grades")?,
            voter: text(7)?,
            cast_at: row.try_get(8).map_err(&failed)?,
        };
        Ok((row.try_get(0).map_err(&failed)?, vote))
    };
    rows.iter().map(read).collect()
}

/// Each pair that was voted on, by name.
pub(super) async fn summarise(database: &Database, limit: i64) -> Result<Vec<PairVotes>> {
    let sql = "SELECT left_side, right_side, count(CASE verdict WHEN 'good' THEN 1 END), \
               count(CASE verdict WHEN 'same' THEN 1 END), count(CASE verdict WHEN 'bad' THEN 1 END), \
               CAST(sum(left_items) AS BIGINT), CAST(sum(left_good_items) AS BIGINT), \
               CAST(sum(right_items) AS BIGINT), CAST(sum(right_good_items) AS BIGINT) \
               FROM votes GROUP BY left_side, right_side ORDER BY left_side, right_side LIMIT $1";
    let failed = database.failed("count votes");
    let rows = sqlx::query(sql).bind(limit).fetch_all(&database.reads).await.map_err(&failed)?;
    let read = |row: &AnyRow| {
        Ok(PairVotes {
            left: row.try_get(0)?,
            right: row.try_get(1)?,
            num_good: row.try_get(2)?,
            num_same: row.try_get(3)?,
            num_bad: row.try_get(4)?,
            left_items: row.try_get(5)?,
            left_good_items: row.try_get(6)?,
            right_items: row.try_get(7)?,
            right_good_items: row.try_get(8)?,
        })
    };
    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(failed)
}
