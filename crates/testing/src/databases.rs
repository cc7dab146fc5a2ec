//! Temporary databases for tests, removed when the test ends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use souk_io::address::Address;
use souk_store::SqlLedger;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::runtime::Runtime;

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

/// Runs a test on a new SQLite database; the test gets its URL.
pub fn on_sqlite(test: impl AsyncFn(String)) {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(test(format!("sqlite:{}", folder.path().join("shop.db").display())));
}

/// Runs a test in a new schema of the PostgreSQL server in DATABASE_URL; skips it if the variable is not set.
pub fn on_postgres(name: &str, test: impl AsyncFn(String)) {
    let Some(server) = server_url("DATABASE_URL", name, |url| url.starts_with("postgres")) else { return };
    let schema = unique("souk_test");
    let sql = |sql: String| {
        let server = server.clone();
        runtime().block_on(async move {
            let mut connection = PgConnection::connect(&server).await.unwrap();
            connection.execute(AssertSqlSafe(sql)).await.unwrap();
        });
    };
    sql(format!("CREATE SCHEMA {schema}"));
    let separator = if server.contains('?') { '&' } else { '?' };
    let url = format!("{server}{separator}options[search_path]={schema}&application_name={schema}");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime().block_on(test(url))));
    sql(format!("DROP SCHEMA {schema} CASCADE"));
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Server URL in an environment variable, if it matches. Otherwise reports the test `name` as skipped.
pub fn server_url(variable: &str, name: &str, is_match: impl Fn(&str) -> bool) -> Option<String> {
    let url = std::env::var(variable).ok().filter(|url| is_match(url));
    if url.is_none() {
        crate::skip(name, &format!("no {variable}"));
    }
    url
}

/// Unique name for a schema or key prefix.
pub fn unique(name: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    format!("{name}_{}_{}_{time}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Opens a ledger after its migrations.
pub async fn ledger(url: &str) -> SqlLedger {
    SqlLedger::migrate(&Address::new(url)).await.unwrap();
    SqlLedger::open(&Address::new(url)).await.unwrap()
}
