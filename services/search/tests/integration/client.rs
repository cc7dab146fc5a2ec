//! A search service on a real socket, with a small catalogue and a small model.

#![allow(dead_code, reason = "each test uses its part")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use souk::address::Address;
use souk::config::{Change, Config};
use souk::store::SqlLedger;
use souk_http::Keys;
use souk_search::{SearchService, router, start};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{RwLock, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use souk_testing::http_client::ask;
#[allow(unused_imports, reason = "each test uses its part")]
pub use souk_testing::http_client::{HttpResponse, TIMEOUT, try_ask, try_ask_with};

/// Read-locked by tests that need the broker or the database all the time, write-locked while one is restarted.
pub static SERVERS: RwLock<()> = RwLock::const_new(());
pub const NUM: usize = 60;
const BRANDS: [&str; 2] = ["A", "B"];
pub const COLOURS: [&str; 3] = ["red", "oak", "blue"];

pub fn golden(model: &str) -> PathBuf {
    souk_testing::golden("").join(model)
}

/// Folder with a catalogue, and room for a service's state.
pub fn shop() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("data")).unwrap();
    let lines: String = (0..NUM).map(|i| item(i).to_string() + "\n").collect();
    fs::write(home.path().join("data/corpus.jsonl"), lines).unwrap();
    home
}

pub fn item(i: usize) -> Value {
    let title = format!("{} lamp number {i}", COLOURS[i % COLOURS.len()]);
    json!({"_id": format!("i{i}"), "title": title, "text": "for a desk", "price": i, "brand": BRANDS[i % 2]})
}

pub fn config(home: &Path, sets: &[&str]) -> Config {
    let text = |path: &str, value: PathBuf| Change::text(path, "test", &value.to_string_lossy());
    let mut changes = vec![
        text("model.path", golden("st_mean_dense")),
        text("search.data", home.join("data")),
        text("search.state", home.join("state")),
        Change::text("search.version", "test", "first"),
        Change::text("store.database", "test", &format!("sqlite:{}", home.join("souk.db").display())),
    ];
    changes.extend(sets.iter().map(|set| Change::parse(set).unwrap()));
    Config::load(None, &changes).unwrap()
}

pub struct Running {
    pub address: SocketAddr,
    pub service: Arc<SearchService>,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<std::io::Result<()>>,
    chores: JoinSet<()>,
}

impl Running {
    pub async fn start(home: &Path, sets: &[&str]) -> Self {
        Self::with_keys(home, sets, "").await
    }

    pub async fn with_keys(home: &Path, sets: &[&str], keys: &str) -> Self {
        Self::of(&config(home, sets), keys).await.unwrap()
    }

    pub async fn of(config: &Config, keys: &str) -> anyhow::Result<Self> {
        let service = SearchService::open(config, Keys::parse(keys)?, |_| ()).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (stop, asked) = oneshot::channel();
        let chores = start(&service);
        let router = router(service.clone());
        let ended =
            tokio::spawn(async move { souk_http::run(listener, router, None, async { drop(asked.await) }).await });
        Ok(Self { address, service, stop: Some(stop), ended, chores })
    }

    pub async fn ask(&self, method_and_path: &str, body: Value) -> HttpResponse {
        self.ask_with(method_and_path, "", body.to_string().as_bytes()).await
    }

    pub async fn ask_with(&self, method_and_path: &str, headers: &str, body: &[u8]) -> HttpResponse {
        ask(self.address, method_and_path, headers, body).await
    }

    pub async fn get(&self, path: &str) -> HttpResponse {
        self.ask_with(&format!("GET {path}"), "", b"").await
    }

    /// Ids of a search's hits.
    pub async fn ids(&self, body: Value) -> Vec<String> {
        let answer = self.ask("POST /search", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        ids(&answer.json())
    }

    pub async fn stop(mut self) {
        drop(self.stop.take());
        timeout(TIMEOUT, &mut self.ended).await.unwrap().unwrap().unwrap();
        // a chore that still runs would hold the state folder
        self.chores.shutdown().await;
    }
}

/// Waits until the ledger's last connection is closed: until then its newest rows are in a log beside it.
pub async fn ledger_is_closed(home: &Path) {
    let address = Address::new(format!("sqlite:{}", home.join("souk.db").display()));
    let closed = async {
        while home.join("souk.db-wal").exists() {
            // of two connections that close at the same moment, neither is the last; this one is
            drop(SqlLedger::open(&address).await.unwrap());
            tokio::time::sleep(std::time::Duration::from_millis(100)).await
        }
    };
    timeout(TIMEOUT, closed).await.unwrap();
}

pub fn ids(answer: &Value) -> Vec<String> {
    let hits = answer["hits"].as_array().unwrap();
    hits.iter().map(|hit| hit["id"].as_str().unwrap().to_owned()).collect()
}

/// The service as a separate process.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

impl Process {
    pub fn start(home: &Path, sets: &[&str], keys: &str) -> Self {
        let keys = if keys.is_empty() { None } else { Some(("SOUK_SEARCH_KEYS", keys)) };
        Self::start_with(home, sets, &keys.into_iter().collect::<Vec<_>>())
    }

    /// Starts the process with environment variables.
    pub fn start_with(home: &Path, sets: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut all = vec![
            format!("model.path={}", golden("st_mean_dense").display()),
            format!("search.data={}", home.join("data").display()),
            format!("search.state={}", home.join("state").display()),
            format!("store.database=sqlite:{}", home.join("souk.db").display()),
            "search.version=first".into(),
            "search.listen=127.0.0.1:0".into(),
        ];
        all.extend(sets.iter().map(|set| (*set).to_owned()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-search"));
        command.envs(variables.iter().copied()).args(all.iter().flat_map(|set| ["--set", set]));
        Self::of(command)
    }

    /// Starts the process with a configuration file.
    pub fn with_file(file: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-search"));
        command.arg("--config").arg(file);
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit("http://").next().unwrap().parse().unwrap_or_else(|e| panic!("{e}: {line}"));
        Self { child, address }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Stops the process with SIGTERM.
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
    }
}
