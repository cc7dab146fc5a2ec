//! Votes of people who compare two result pages. The caller chooses each vote's id, so a vote that is sent twice counts once.
//! Votes are read in insertion order, or as counts per pair of channels.

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::database::{Database, checked_key, checked_text};
use souk_io::error::Result;

/// Result of the comparison, from the left side's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VoteVerdict {
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

/// Grade of one item on a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grade {
    pub side: Side,
    pub item: String,
    pub good: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// Chosen by the caller.
    pub id: String,
    pub query: String,
    /// Channel or model version.
    pub left: String,
    pub right: String,
    pub verdict: VoteVerdict,
    pub grades: Vec<Grade>,
    pub voter: String,
    /// Milliseconds since 1970.
    pub cast_at: i64,
}

/// Vote counts of one pair. `left` is the name that sorts first, wherever it was shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PairVotes {
    pub left: String,
    pub right: String,
    pub num_good: i64,
    pub num_same: i64,
    pub num_bad: i64,
    pub left_grades: Grades,
    pub right_grades: Grades,
}

/// Grades of one channel's items. Grades of one vote share query and voter; the sums of squares over votes give the variance of
/// a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Grades {
    pub num_items: i64,
    pub num_good: i64,
    /// Votes with at least one grade.
    pub num_votes: i64,
    /// Sums over the votes: items², good², and good × items.
    pub items_squared: i64,
    pub good_squared: i64,
    pub good_by_items: i64,
}

impl VoteVerdict {
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
    let last = database.reserve_numbers(&mut transaction, "vote", votes.len()).await?;
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
        let verdict = [VoteVerdict::Good, VoteVerdict::Same, VoteVerdict::Bad]
            .into_iter()
            .find(|verdict| verdict.name() == named);
        let vote = Vote {
            id: text(1)?,
            query: text(2)?,
            left: text(3)?,
            right: text(4)?,
            verdict: verdict.ok_or_else(|| database.corrupt(format!("`{named}` is not a verdict")))?,
            grades: database.parse_column(row, "grades")?,
            voter: text(7)?,
            cast_at: row.try_get(8).map_err(&failed)?,
        };
        Ok((row.try_get(0).map_err(&failed)?, vote))
    };
    rows.iter().map(read).collect()
}

/// All pairs with votes, by name. Votes on the swapped pair are swapped.
pub(super) async fn summarise(database: &Database, limit: i64) -> Result<Vec<PairVotes>> {
    let sql = "SELECT a, b, count(CASE verdict WHEN 'good' THEN 1 END), count(CASE verdict WHEN 'same' THEN 1 END), \
               count(CASE verdict WHEN 'bad' THEN 1 END), \
               CAST(sum(items_a) AS BIGINT), CAST(sum(good_a) AS BIGINT), count(CASE WHEN items_a > 0 THEN 1 END), \
               CAST(sum(items_a * items_a) AS BIGINT), CAST(sum(good_a * good_a) AS BIGINT), \
               CAST(sum(good_a * items_a) AS BIGINT), \
               CAST(sum(items_b) AS BIGINT), CAST(sum(good_b) AS BIGINT), count(CASE WHEN items_b > 0 THEN 1 END), \
               CAST(sum(items_b * items_b) AS BIGINT), CAST(sum(good_b * good_b) AS BIGINT), \
               CAST(sum(good_b * items_b) AS BIGINT) \
               FROM (SELECT left_side AS a, right_side AS b, verdict, left_items AS items_a, left_good_items AS good_a, \
               right_items AS items_b, right_good_items AS good_b FROM votes WHERE left_side <= right_side \
               UNION ALL SELECT right_side, left_side, \
               CASE verdict WHEN 'good' THEN 'bad' WHEN 'bad' THEN 'good' ELSE verdict END, right_items, \
               right_good_items, left_items, left_good_items FROM votes WHERE left_side > right_side) AS turned \
               GROUP BY a, b ORDER BY a, b LIMIT $1";
    let failed = database.failed("count votes");
    let rows = sqlx::query(sql).bind(limit).fetch_all(&database.reads).await.map_err(&failed)?;
    let read = |row: &AnyRow| {
        Ok(PairVotes {
            left: row.try_get(0)?,
            right: row.try_get(1)?,
            num_good: row.try_get(2)?,
            num_same: row.try_get(3)?,
            num_bad: row.try_get(4)?,
            left_grades: read_grades(row, 5)?,
            right_grades: read_grades(row, 11)?,
        })
    };
    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(failed)
}

/// Six columns from `at` on.
fn read_grades(row: &AnyRow, at: usize) -> sqlx::Result<Grades> {
    Ok(Grades {
        num_items: row.try_get(at)?,
        num_good: row.try_get(at + 1)?,
        num_votes: row.try_get(at + 2)?,
        items_squared: row.try_get(at + 3)?,
        good_squared: row.try_get(at + 4)?,
        good_by_items: row.try_get(at + 5)?,
    })
}
