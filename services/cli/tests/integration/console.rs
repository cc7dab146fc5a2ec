//! The console beside a trainer, in a browser: rounds with the gate's rows, queries that changed, queries without clicks, live curves, a
//! map of the catalogue.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souk_testing::small_shop::{messages, model, search};
use souk_testing::{repository, small_shop};

const PATIENCE: Duration = Duration::from_secs(120);
const KEY: &str = "boss";
/// Searches, one each second; those of the last 300 seconds measure the candidate.
const SEARCHES: usize = 1000;
const UNCLICKED: &str = "gift for grandma";

/// A service of `souk`; killed when dropped.
struct Service {
    child: Child,
    address: String,
}

impl Service {
    fn start(command: &str, sets: &[String]) -> Self {
        let mut engine = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
        engine.arg(command).args(sets.iter().flat_map(|set| ["--set", set]));
        engine.env("OMP_NUM_THREADS", "1").env("SOUK_SEARCH_KEYS", format!("admin:{KEY}"));
        engine.env("SOUK_TRAINER_KEYS", KEY).env("SOUK_TRAINER_KEY", KEY).stdout(Stdio::piped());
        let mut child = engine.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("http://")).expect("it does not start: see its output above");
        std::thread::spawn(move || lines.for_each(drop));
        let address = line.split("http://").nth(1).unwrap();
        let end = address.find(|letter: char| !letter.is_alphanumeric() && !".:".contains(letter));
        Self { child, address: address[..end.unwrap_or(address.len())].to_owned() }
    }

    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let host = &self.address;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap_or_else(|_| panic!("{answer}"))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The small shop, with a field to filter by and to colour the map.
fn shop(home: &Path) {
    let corpus = home.join("data/corpus.jsonl");
    let items = fs::read_to_string(&corpus).unwrap();
    let with_category = |line: &str| {
        let mut item: Value = serde_json::from_str(line).unwrap();
        let kind = item["title"].as_str().unwrap().split(' ').next().unwrap().to_owned();
        item["category"] = json!(kind);
        format!("{item}\n")
    };
    fs::write(&corpus, items.lines().map(with_category).collect::<String>()).unwrap();
    // without raters, the log judges
    fs::remove_dir_all(home.join("data/qrels")).unwrap();
    let mut log: Vec<String> = messages(0..SEARCHES).map(|(_, line)| line).collect();
    // the first of the two messages is the search, the second the click
    log.extend((SEARCHES..SEARCHES + 30).map(|at| search(at, UNCLICKED, "d1")[0].1.clone()));
    fs::write(home.join("log.ndjson"), log.into_iter().map(|line| line + "\n").collect::<String>()).unwrap();
}

fn sets(home: &Path) -> Vec<String> {
    let path = |name: &str| home.join(name).display().to_string();
    vec![
        format!("model.path={}", model().display()),
        "model.device=cpu".into(),
        format!("store.database=sqlite:{}", path("souk.db")),
    ]
}

fn start_trainer(home: &Path) -> Service {
    let path = |name: &str| home.join(name).display().to_string();
    let stage = r#"{name="sft", set=["objective.type=info_nce", "objective.temperature=0.1", "train.batch=24", "train.epochs=6",
        "train.optimizer.learning_rate=2e-3"]}"#;
    let mut sets = sets(home);
    sets.extend([
        format!("log.paths=[\"{}\"]", path("log.ndjson")),
        format!("trainer.data={}", path("data")),
        format!("trainer.state={}", path("trainer")),
        "trainer.listen=127.0.0.1:0".into(),
        format!("trainer.stage=[{}]", stage.replace('\n', "")),
        "trainer.pace={examples=240, seconds=0, look_back=0.5}".into(),
        "trainer.gate={source=\"log\", days=0.003472222, watched=[\"ndcg@10\"], depth=101}".into(),
        "trainer.alarms.free_bytes=0".into(),
        "ingest={commit_seconds=1, commit_log_hours=0.01}".into(),
    ]);
    Service::start("trainer", &sets)
}

fn start_search(home: &Path, trainer: &Service) -> Service {
    let path = |name: &str| home.join(name).display().to_string();
    let mut sets = sets(home);
    sets.extend([
        format!("search.data={}", path("data")),
        format!("search.state={}", path("search")),
        format!("search.training=http://{}", trainer.address),
        "search.training_key_env=SOUK_TRAINER_KEY".into(),
        "search.listen=127.0.0.1:0".into(),
        "search.version=base".into(),
        // the console promotes the trainer's version
        "search.adopt=false".into(),
        "search.free_bytes=0".into(),
    ]);
    Service::start("serve", &sets)
}

/// Python interpreter with the packages of the search service's clients.
fn python() -> PathBuf {
    let requirements = "services/search/tests/clients/requirements.txt";
    let made = Command::new(repository().join("scripts/python.sh")).arg(requirements).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim().into()
}

#[test]
fn console_shows_what_the_trainer_does() {
    let home = small_shop::shop();
    shop(home.path());
    let trainer = start_trainer(home.path());
    let began = Instant::now();
    let round = loop {
        let rounds = trainer.get("/rounds")["rounds"].clone();
        if rounds[0]["ended_at"].is_i64() {
            break rounds[0].clone();
        }
        assert!(began.elapsed() < PATIENCE, "{rounds:#}");
        sleep(Duration::from_millis(100));
    };
    assert_eq!((&round["number"], &round["passed"]), (&json!(1), &json!(true)), "{round:#}");
    let details = trainer.get("/rounds/1");
    assert_eq!(details["unclicked"], json!([{"query": UNCLICKED, "searches": 30}]));
    let changes = &details["splits"][0]["changes"];
    assert_eq!(changes["metric"], "ndcg@10");
    let count = |name: &str| changes[name].as_u64().unwrap();
    assert_eq!(count("better") + count("worse") + count("same"), 60, "every item was searched for");
    assert!(count("better") > count("worse"), "{changes:#}");
    let service = start_search(home.path(), &trainer);
    assert_eq!(service.get("/rounds/1"), details, "the search service passes on what the trainer says");
    assert_eq!(service.get("/rounds/99")["error"]["code"], "not_found");

    let script = repository().join("services/search/tests/clients/console.py");
    let mut browser = Command::new(python());
    browser.arg("-B").arg(script).arg(format!("http://{}", service.address)).args([KEY, "--query", "desk 12"]);
    let ran = browser.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}\n{err}");
}
