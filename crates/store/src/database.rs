//! Connections to SQLite or PostgreSQL, with one SQL dialect for both. On SQLite a single connection writes, so writers queue here
//! instead of at the file's lock; every commit is synced. Never changes a table's definition.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sqlx::any::{AnyConnectOptions, AnyPoolOptions, AnyRow};
use sqlx::{Any, AnyConnection, AnyPool, AssertSqlSafe, ConnectOptions, Connection, Executor, Row, Transaction};

use super::failure;
use souk_io::address::Address;
use souk_io::error::{Error, Result};

/// Time limit for a write to wait for others, and for a PostgreSQL statement.
const TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Limits on the rows and bytes of one statement of a batch.
const CHUNK: usize = 1000;
const CHUNK_BYTES: usize = 8 << 20;
const MAX_KEY_TEXT: usize = 1024;
pub(super) const NOT_MIGRATED: &str = "lacks tables that Souk needs: run souk db migrate";
/// Allowed parameters of a PostgreSQL URL, besides `options[NAME]`.
const PARAMETERS: [&str; 13] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenMode {
    /// Creates a missing file.
    Create,
    Existing,
}

pub(super) struct Database {
    pub(super) reads: AnyPool,
    pub(super) writes: AnyPool,
    pub(super) kind: DatabaseKind,
}

pub(super) enum DatabaseKind {
    Sqlite { file: PathBuf },
    Postgres { server: String },
}

impl Database {
    pub(super) async fn open(address: &Address, open: OpenMode) -> Result<Self> {
        sqlx::any::install_default_drivers();
        match address.scheme() {
            "sqlite" => Self::open_sqlite(address, open).await,
            "postgres" | "postgresql" => Self::open_postgres(address).await,
            _ => Err(Error::config(
                address,
                "is not a database address: use sqlite:PATH or postgres://USER@HOST/DATABASE",
            )),
        }
    }

    pub fn exists(address: &Address) -> Result<bool> {
        Ok(address.scheme() != "sqlite" || sqlite_file(address)?.exists())
    }

    async fn open_sqlite(address: &Address, open: OpenMode) -> Result<Self> {
        let file = sqlite_file(address)?;
        if open == OpenMode::Existing && !file.exists() {
            return Err(Error::config(file.display(), NOT_MIGRATED));
        }
        let kind = DatabaseKind::Sqlite { file };
        let options = kind.sqlite_options(open)?;
        let failed = |e| kind.failed("open the database", e);
        let begun = Instant::now();
        // two processes that enable write-ahead logging on a new file at once fail without waiting
        loop {
            match Self::enable_wal(&options).await {
                Err(e) if is_busy(&e) && begun.elapsed() < TIMEOUT => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                done => break done.map_err(failed)?,
            }
        }
        let pool = |connections| {
            let pool = AnyPoolOptions::new().max_connections(connections).test_before_acquire(false);
            let pool = pool.acquire_timeout(TIMEOUT).after_connect(|connection, _| Box::pin(durable(connection)));
            pool.connect_lazy_with(options.clone())
        };
        Ok(Self { reads: pool(4), writes: pool(1), kind })
    }

    /// Enables write-ahead logging; the setting is stored in the file.
    async fn enable_wal(options: &AnyConnectOptions) -> sqlx::Result<()> {
        let mut connection = AnyConnection::connect_with(options).await?;
        connection.execute("PRAGMA journal_mode = WAL").await?;
        connection.close().await
    }

    async fn open_postgres(address: &Address) -> Result<Self> {
        check_parameters(address)?;
        let kind = DatabaseKind::Postgres { server: address.server() };
        let options: AnyConnectOptions = address.secret().parse().map_err(|e| kind.failed("connect", e))?;
        let options = options.disable_statement_logging();
        // one connection first: a pool would retry and then report only a timeout
        let tried = tokio::time::timeout(CONNECT_TIMEOUT, AnyConnection::connect_with(&options)).await;
        let tried = tried.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(|e| kind.failed("connect", e))?;
        tried.close().await.map_err(|e| kind.failed("connect", e))?;
        let pool = AnyPoolOptions::new().max_connections(8).acquire_timeout(CONNECT_TIMEOUT);
        let pool = pool.after_connect(|connection, _| Box::pin(limit_statements(connection)));
        let pool = pool.connect_lazy_with(options);
        Ok(Self { reads: pool.clone(), writes: pool, kind })
    }

    /// Begins a transaction that may write. On SQLite it takes the write lock at once, so it cannot fail later because another
    /// transaction changed what it has read.
    pub(super) async fn begin(&self) -> Result<Transaction<'static, Any>> {
        let begun = match self.kind {
            DatabaseKind::Sqlite { .. } => self.writes.begin_with("BEGIN IMMEDIATE").await,
            DatabaseKind::Postgres { .. } => self.writes.begin().await,
        };
        begun.map_err(self.failed("begin a transaction"))
    }

    pub(super) async fn commit(&self, transaction: Transaction<'static, Any>) -> Result<()> {
        transaction.commit().await.map_err(self.failed("commit"))
    }

    /// Runs a statement on up to a thousand rows at a time, passed as a JSON array. In the statement, `{rows}` stands for a table whose
    /// column `value` is an object, and `{texts}` for one whose column `value` is a text.
    pub(super) async fn execute_batch(
        &self,
        transaction: &mut Transaction<'static, Any>,
        action: &'static str,
        sql: &str,
        rows: &[serde_json::Value],
    ) -> Result<u64> {
        let mut num_changed = 0;
        for array in arrays(rows) {
            let query = sqlx::query(AssertSqlSafe(self.kind.fill(sql))).bind(array);
            num_changed += query.execute(&mut **transaction).await.map_err(self.failed(action))?.rows_affected();
        }
        Ok(num_changed)
    }

    /// Rows of a query on many keys, in no particular order; placeholders as in `execute_batch`.
    pub(super) async fn fetch_batch(&self, action: &'static str, sql: &str, keys: &[String]) -> Result<Vec<AnyRow>> {
        let mut rows = Vec::new();
        for array in arrays(keys) {
            let query = sqlx::query(AssertSqlSafe(self.kind.fill(sql))).bind(array);
            rows.extend(query.fetch_all(&self.reads).await.map_err(self.failed(action))?);
        }
        Ok(rows)
    }

    /// Reserves `num` numbers of a counter and returns the last. Others wait for this transaction to end.
    pub(super) async fn reserve_numbers(
        &self,
        transaction: &mut Transaction<'static, Any>,
        name: &'static str,
        num: usize,
    ) -> Result<i64> {
        let sql = "UPDATE counters SET last = last + $1 WHERE name = $2 RETURNING last";
        let query = sqlx::query_scalar(sql).bind(num as i64).bind(name);
        query.fetch_one(&mut **transaction).await.map_err(self.failed("reserve numbers"))
    }

    pub(super) fn failed(&self, action: &'static str) -> impl Fn(sqlx::Error) -> Error {
        move |e| self.kind.failed(action, e)
    }

    /// Error for a stored value that Souk cannot have written.
    pub(super) fn corrupt(&self, problem: String) -> Error {
        match &self.kind {
            DatabaseKind::Sqlite { file } => Error::data(file, None, problem),
            DatabaseKind::Postgres { server } => {
                Error::Upstream { service: server.clone(), problem, retryable: false, source: None }
            }
        }
    }

    /// Parses a column that holds JSON or the name of a variant.
    pub(super) fn parse_column<T: serde::de::DeserializeOwned>(&self, row: &AnyRow, column: &str) -> Result<T> {
        let text: String = row.try_get(column).map_err(self.failed("read a row"))?;
        serde_json::from_str(&text).map_err(|e| self.corrupt(format!("`{column}` holds `{text:.80}`")).because(e))
    }

    pub(super) async fn close(self) {
        self.reads.close().await;
        self.writes.close().await;
    }
}

impl DatabaseKind {
    pub(super) fn failed(&self, action: &'static str, failure: sqlx::Error) -> Error {
        match self {
            Self::Sqlite { file } => failure::of_file(file, action, failure),
            Self::Postgres { server } => failure::of_server(server, action, failure),
        }
    }

    /// Name of the database in errors.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Sqlite { file } => file.display().to_string(),
            Self::Postgres { server } => server.clone(),
        }
    }

    fn fill(&self, sql: &str) -> String {
        let (rows, texts) = match self {
            Self::Sqlite { .. } => ("json_each($1)", "json_each($1)"),
            Self::Postgres { .. } => {
                ("jsonb_array_elements($1::jsonb) AS value", "jsonb_array_elements_text($1::jsonb) AS value")
            }
        };
        sql.replace("{rows}", rows).replace("{texts}", texts)
    }

    fn sqlite_options(&self, open: OpenMode) -> Result<AnyConnectOptions> {
        let mode = if open == OpenMode::Create { "rwc" } else { "rw" };
        let name = self.name();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
        let path =
            name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") });
        let url = format!("sqlite://{}?mode={mode}", path.collect::<String>());
        let options: AnyConnectOptions = url.parse().map_err(|e| self.failed("open the database", e))?;
        Ok(options.disable_statement_logging())
    }
}

/// Absolute path of `sqlite:PATH` or `sqlite://PATH`.
fn sqlite_file(address: &Address) -> Result<PathBuf> {
    let url = address.secret();
    let path = url.strip_prefix("sqlite:").unwrap_or(url);
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path.starts_with(':') || path.contains('?') {
        return Err(Error::config(address, "has no file: use sqlite:PATH, without parameters"));
    }
    let file = std::path::absolute(path).map_err(Error::store(Path::new(path), "find the folder"))?;
    if file.is_dir() {
        return Err(Error::config(file.display(), "is a folder: give a file"));
    }
    Ok(file)
}

/// Rejects URLs that sqlx would misread: it logs unknown parameters with their values, and misplaced `@` signs change the database's
/// name.
fn check_parameters(address: &Address) -> Result<()> {
    let wrong = |problem: String| Err(Error::config(address.server(), problem));
    let Some((_, place)) = address.secret().split_once("://").filter(|(scheme, _)| !scheme.contains(':')) else {
        return wrong("is not a PostgreSQL URL: use postgres://USER@HOST/DATABASE".into());
    };
    if place.find(['/', '?', '#']).is_some_and(|end| place[end..].contains('@')) {
        return wrong("has an @ after the host: write @ as %40, / as %2F, ? as %3F and # as %23".into());
    }
    let query = place.split_once('?').map_or("", |(_, query)| query);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let name = parameter.split_once('=').map_or("", |(name, _)| name);
        let name = name.replace("%5B", "[").replace("%5D", "]");
        let option = name.starts_with("options[") && name.ends_with(']');
        if !option && !PARAMETERS.contains(&name.as_str()) {
            return wrong(format!("unknown parameter `{name}`: use one of {}", PARAMETERS.join(", ")));
        }
    }
    Ok(())
}

/// Makes commits durable.
async fn durable(connection: &mut AnyConnection) -> sqlx::Result<()> {
    for pragma in ["PRAGMA busy_timeout = 30000", "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON"] {
        connection.execute(pragma).await?;
    }
    Ok(())
}

/// Limits the run time of statements.
async fn limit_statements(connection: &mut AnyConnection) -> sqlx::Result<()> {
    connection.execute("SET statement_timeout = 30000").await.map(drop)
}

fn is_busy(failure: &sqlx::Error) -> bool {
    failure.as_database_error().and_then(|e| e.code()).is_some_and(|code| code == "5" || code == "261")
}

/// Splits rows into JSON arrays, each small enough for one statement.
fn arrays<T: serde::Serialize>(rows: &[T]) -> impl Iterator<Item = String> {
    let mut rest = rows.iter().peekable();
    std::iter::from_fn(move || {
        rest.peek()?;
        let (mut array, mut num) = (String::from("["), 0);
        while num < CHUNK
            && array.len() < CHUNK_BYTES
            && let Some(row) = rest.next()
        {
            let comma = if num > 0 { "," } else { "" };
            array.push_str(comma);
            array.push_str(&serde_json::to_string(row).expect("texts and numbers have a JSON form"));
            num += 1;
        }
        array.push(']');
        Some(array)
    })
}

/// Checks a key: PostgreSQL cannot index long texts.
pub(super) fn checked_key(what: &str, text: &str) -> Result<()> {
    if text.is_empty() || text.len() > MAX_KEY_TEXT {
        return Err(Error::input(format!("{what} has {} bytes: give 1 to {MAX_KEY_TEXT}", text.len())));
    }
    checked_text(what, text)
}

/// Rejects NUL, which PostgreSQL cannot store.
pub(super) fn checked_text(what: &str, text: &str) -> Result<()> {
    if text.contains('\0') { Err(Error::input(format!("{what} contains a NUL character"))) } else { Ok(()) }
}

pub(super) fn checked_texts(what: &str, texts: &[String]) -> Result<()> {
    texts.iter().try_for_each(|text| checked_text(what, text))
}
