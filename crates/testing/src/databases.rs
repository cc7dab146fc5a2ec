//! A database of a test's own, gone when the test is over.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use souk_io::address::Address;
use souk_store::SqlLedger;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::runtime::Runtime;

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

pub fn on_sqlite(test: impl AsyncFn(String)) {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(test(format!("sqlite:{}", folder.path().join("shop.db").display())));
}

/// In a new schema of the server that DATABASE_URL names.
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
    let mark = if server.contains('?') { '&' } else { '?' };
    let url = format!("{server}{mark}options[search_path]={schema}&application_name={schema}");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime().block_on(test(url))));
    sql(format!("DROP SCHEMA {schema} CASCADE"));
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// The value of a variable that names a server; without it the test is reported as skipped.
pub fn server_url(variable: &str, name: &str, fits: impl Fn(&str) -> bool) -> Option<String> {
    let url = std::env::var(variable).ok().filter(|url| fits(url));
    if url.is_none()
        && let Some(file) = std::env::var_os("SOUK_SKIPPED")
    {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        writeln!(file, "{name}: no {variable}").unwrap();
    }
    url
}

pub fn unique(name: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    format!("{name}_{}_{}_{time}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A ledger whose tables are there.
pub async fn ledger(url: &str) -> SqlLedger {
    SqlLedger::migrate(&Address::new(url)).await.unwrap();
    SqlLedger::open(&Address::new(url)).await.unwrap()
}
