//! Copies a whole ledger to a file of JSON lines, one per row, and back, into either kind of database. The copy is of one
//! moment, while others write.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Executor, Row, Transaction};

use super::changes::STREAM_ID;
use super::database::{Database, DatabaseKind};
use souk_io::error::{Error, Result};

/// Rows read or written at once.
const PAGE: usize = 1000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ColumnKind {
    Text,
    Integer,
    Real,
}

use ColumnKind::{Integer, Real, Text};

struct Table {
    name: &'static str,
    /// The first columns are unique together; rows are copied in their order.
    num_keys: usize,
    columns: &'static [(&'static str, ColumnKind)],
}

/// All tables but `migrations`. A row refers only to rows before it. The stream's id is not copied: changes that follow in the copy
/// are others than those that follow in the original.
const TABLES: [Table; 10] = [
    Table { name: "counters", num_keys: 1, columns: &[("name", Text), ("last", Integer)] },
    Table {
        name: "changes",
        num_keys: 1,
        columns: &[("position", Integer), ("id", Text), ("fields", Text), ("json", Text)],
    },
    Table {
        name: "quality",
        num_keys: 1,
        columns: &[
            ("item", Text),
            ("units", Integer),
            ("returns", Integer),
            ("ratings_sum", Real),
            ("num_ratings", Integer),
            ("score", Real),
        ],
    },
    Table {
        name: "versions",
        num_keys: 1,
        columns: &[
            ("number", Integer),
            ("version", Text),
            ("path", Text),
            ("fingerprint", Text),
            ("parent", Text),
            ("metrics", Text),
            ("state", Text),
            ("created_at", Integer),
        ],
    },
    Table {
        name: "generations",
        num_keys: 1,
        columns: &[
            ("generation", Text),
            ("version", Text),
            ("path", Text),
            ("manifest", Text),
            ("state", Text),
            ("created_at", Integer),
        ],
    },
    Table {
        name: "promotions",
        num_keys: 1,
        columns: &[
            ("number", Integer),
            ("version", Text),
            ("generation", Text),
            ("promoted_at", Integer),
            ("undone_at", Integer),
        ],
    },
    Table {
        name: "reports",
        num_keys: 1,
        columns: &[("number", Integer), ("version", Text), ("split", Text), ("metrics", Text), ("created_at", Integer)],
    },
    Table {
        name: "votes",
        num_keys: 1,
        columns: &[
            ("number", Integer),
            ("id", Text),
            ("query", Text),
            ("left_side", Text),
            ("right_side", Text),
            ("verdict", Text),
            ("grades", Text),
            ("left_items", Integer),
            ("left_good_items", Integer),
            ("right_items", Integer),
            ("right_good_items", Integer),
            ("voter", Text),
            ("cast_at", Integer),
        ],
    },
    Table {
        name: "offsets",
        num_keys: 2,
        columns: &[("source", Text), ("lane", Text), ("position", Text), ("revision", Integer), ("moved_at", Integer)],
    },
    Table {
        name: "audits",
        num_keys: 1,
        columns: &[
            ("number", Integer),
            ("query", Text),
            ("item", Text),
            ("text_hash", Text),
            ("source", Text),
            ("score", Real),
            ("level", Integer),
            ("judged_at", Integer),
        ],
    },
];

/// Summary of a ledger's copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerCopy {
    pub num_rows: u64,
    /// The live version, if any.
    pub served: Option<String>,
    /// Position of the last catalogue change.
    pub last_change: u64,
}

/// One row of a table.
#[derive(Serialize, Deserialize)]
struct Line {
    table: String,
    row: Map<String, Value>,
}

impl LedgerCopy {
    fn see(&mut self, table: &str, row: &Map<String, Value>) {
        self.num_rows += 1;
        match table {
            // in the order of their numbers
            "promotions" if row["undone_at"].is_null() => self.served = row["version"].as_str().map(str::to_owned),
            "counters" if row["name"] == "change" => self.last_change = row["last"].as_u64().unwrap_or(0),
            _ => {}
        }
    }
}

/// Writes all rows as of one moment.
pub(super) async fn save(database: &Database, path: &Path) -> Result<LedgerCopy> {
    let mut transaction = database.reads.begin().await.map_err(database.failed("begin a transaction"))?;
    if let DatabaseKind::Postgres { .. } = database.kind {
        let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY";
        transaction.execute(snapshot).await.map_err(database.failed("begin a transaction"))?;
    }
    let mut out = BufWriter::new(File::create(path).map_err(Error::store(path, "create it"))?);
    let mut copy = LedgerCopy::default();
    for table in &TABLES {
        let mut last: Option<Map<String, Value>> = None;
        loop {
            let rows = page(database, &mut transaction, table, last.as_ref()).await?;
            let is_last = rows.len() < PAGE;
            for row in rows {
                if row.get("name").is_some_and(|name| name == STREAM_ID) {
                    last = Some(row);
                    continue;
                }
                copy.see(table.name, &row);
                let line = Line { table: table.name.into(), row };
                let text = serde_json::to_string(&line).expect("texts and numbers have a JSON form");
                writeln!(out, "{text}").map_err(Error::store(path, "write it"))?;
                last = Some(line.row);
            }
            if is_last {
                break;
            }
        }
    }
    out.flush().map_err(Error::store(path, "write it"))?;
    Ok(copy)
}

/// Rows after the given one.
async fn page(
    database: &Database,
    transaction: &mut Transaction<'static, Any>,
    table: &Table,
    after: Option<&Map<String, Value>>,
) -> Result<Vec<Map<String, Value>>> {
    let failed = database.failed("read a table");
    let columns: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    let keys = &table.columns[..table.num_keys];
    let key = columns[..table.num_keys].join(", ");
    let condition = after.map_or(String::new(), |_| {
        let places: Vec<String> = (1..=keys.len()).map(|at| format!("${at}")).collect();
        format!("WHERE ({key}) > ({})", places.join(", "))
    });
    let sql = format!("SELECT {} FROM {} {condition} ORDER BY {key} LIMIT {PAGE}", columns.join(", "), table.name);
    let mut query = sqlx::query(AssertSqlSafe(sql));
    if let Some(after) = after {
        for (name, kind) in keys {
            query = match kind {
                Integer => query.bind(after[*name].as_i64()),
                Text | Real => query.bind(after[*name].as_str().map(str::to_owned)),
            };
        }
    }
    let read = |row: &AnyRow| {
        let value = |at: usize, kind: ColumnKind| match kind {
            Text => row.try_get::<Option<String>, _>(at).map(|value| json!(value)),
            Integer => row.try_get::<Option<i64>, _>(at).map(|value| json!(value)),
            Real => row.try_get::<Option<f64>, _>(at).map(|value| json!(value)),
        };
        let named =
            table.columns.iter().enumerate().map(|(at, (name, kind))| Ok(((*name).to_owned(), value(at, *kind)?)));
        named.collect::<sqlx::Result<Map<String, Value>>>()
    };
    let rows = query.fetch_all(&mut **transaction).await.map_err(&failed)?;
    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(failed)
}

/// Checks that a copy can be read into this ledger.
pub(super) async fn check_empty(database: &Database) -> Result<()> {
    let mut transaction = database.reads.begin().await.map_err(database.failed("begin a transaction"))?;
    check_no_rows(database, &mut transaction).await
}

async fn check_no_rows(database: &Database, transaction: &mut Transaction<'static, Any>) -> Result<()> {
    for table in &TABLES {
        let used =
            if table.name == "counters" { format!("WHERE last > 0 AND name <> '{STREAM_ID}'") } else { String::new() };
        let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {} {used} LIMIT 1) AS found", table.name);
        let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql));
        if query.fetch_one(&mut **transaction).await.map_err(database.failed("read a table"))? > 0 {
            let problem = format!("has rows in the table {}: restore into a new database", table.name);
            return Err(Error::config(database.kind.name(), problem));
        }
    }
    Ok(())
}

/// Reads a copy into a ledger without rows. `moved` is a version whose model is at another path now. All rows or none.
pub(super) async fn load(database: &Database, path: &Path, moved: Option<(&str, &str)>) -> Result<LedgerCopy> {
    let mut transaction = database.begin().await?;
    let failed = database.failed("restore the ledger");
    check_no_rows(database, &mut transaction).await?;
    transaction.execute("DELETE FROM counters").await.map_err(&failed)?;
    let file = BufReader::new(File::open(path).map_err(Error::store(path, "open it"))?);
    let (mut copy, mut pending, mut current) = (LedgerCopy::default(), Vec::new(), None::<&Table>);
    for (at, text) in file.lines().enumerate() {
        let text = text.map_err(Error::store(path, "read it"))?;
        let broken = |problem: &str| Error::data(path, Some(at as u64 + 1), problem);
        let line: Line = serde_json::from_str(&text).map_err(|e| broken("is not a row of a ledger").because(e))?;
        let table = TABLES.iter().find(|table| table.name == line.table);
        let table = table.ok_or_else(|| broken("is of a table that this version of Souk does not know"))?;
        if pending.len() == PAGE || current.is_some_and(|current| current.name != table.name) {
            insert(database, &mut transaction, current, &mut pending).await?;
        }
        copy.see(table.name, &line.row);
        current = Some(table);
        pending.push(Value::Object(line.row));
    }
    insert(database, &mut transaction, current, &mut pending).await?;
    if let Some((version, path)) = moved {
        let sql = "UPDATE versions SET path = $1 WHERE version = $2";
        sqlx::query(sql).bind(path).bind(version).execute(&mut *transaction).await.map_err(&failed)?;
    }
    database.commit(transaction).await?;
    Ok(copy)
}

async fn insert(
    database: &Database,
    transaction: &mut Transaction<'static, Any>,
    table: Option<&Table>,
    rows: &mut Vec<Value>,
) -> Result<()> {
    let Some(table) = table else { return Ok(()) };
    let columns: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    let value = |(name, kind): &(&str, ColumnKind)| match kind {
        Text => format!("value->>'{name}'"),
        Integer => format!("CAST(value->>'{name}' AS BIGINT)"),
        Real => format!("CAST(value->>'{name}' AS DOUBLE PRECISION)"),
    };
    let values: Vec<String> = table.columns.iter().map(value).collect();
    let sql = format!(
        "INSERT INTO {} ({}) SELECT {} FROM {{rows}} WHERE true",
        table.name,
        columns.join(", "),
        values.join(", ")
    );
    database.execute_batch(transaction, "restore the ledger", &sql, rows).await?;
    rows.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::SqlLedger;
    use souk_io::address::Address;

    /// A migration that adds a table or a column must add it here.
    #[tokio::test]
    async fn every_column_of_every_table_is_copied() {
        let home = tempfile::tempdir().unwrap();
        let address = Address::new(format!("sqlite:{}", home.path().join("souk.db").display()));
        SqlLedger::migrate(&address).await.unwrap();
        let ledger = SqlLedger::open(&address).await.unwrap();
        let sql = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' \
                   AND m.name NOT IN ('migrations', 'sqlite_sequence') ORDER BY 1, 2";
        let rows = sqlx::query(sql).fetch_all(&ledger.database().reads).await.unwrap();
        let found: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let of = |table: &Table| {
            table.columns.iter().map(|(name, _)| (table.name.to_owned(), (*name).to_owned())).collect::<Vec<_>>()
        };
        let mut copied: Vec<(String, String)> = TABLES.iter().flat_map(of).collect();
        copied.sort();
        assert_eq!(copied, found);
    }
}
