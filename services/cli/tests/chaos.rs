//! The loop under attack, on real Kafka, Redis, PostgreSQL and Milvus: the trainer is killed at random moments, every server is
//! restarted, the judge is cut off, and a client searches all along. At the end every event counts once, nothing half written
//! was used, and what is served is as good as if nothing had happened. SOUK_CHAOS_KILLS sets how often; the long form is
//! `make chaos`.
#![cfg(feature = "milvus")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "what was seen is what the long form is run for")]

mod broker;
#[expect(dead_code, reason = "other tests need more of it")]
#[path = "../../../tests/store/places.rs"]
mod places;
#[expect(dead_code, reason = "other tests need more of it")]
#[path = "../../../src/reward/wire/pretend.rs"]
mod pretend;
#[path = "../../trainer/tests/shop/mod.rs"]
mod shop;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::{Value, json};
use souk::beir::DataFolder;
use souk::dataset::{Catalogue, Examples};
use souk::store::{Address, Ledger, SqlLedger, Version};

use crate::broker::{client, topic};
use crate::places::{named_by, on_postgres, runtime};
use crate::pretend::{Pretend, Reply, Seen};
use crate::shop::{messages, model, shop};

const PATIENCE: Duration = Duration::from_secs(240);
const SERVERS: [&str; 4] = ["redis", "kafka", "postgres", "milvus"];

/// Where the real servers are.
#[derive(Clone)]
struct Servers {
    brokers: String,
    redis: String,
    milvus: String,
    /// The folder that they can be restarted in.
    folder: String,
}

impl Servers {
    fn named() -> Option<Self> {
        let named = |variable| named_by(variable, "the loop under attack", |url| !url.is_empty());
        Some(Self {
            brokers: named("KAFKA_BROKERS")?,
            redis: named("REDIS_URL")?,
            milvus: named("MILVUS_URL")?,
            folder: named("SOUK_SERVICES")?,
        })
    }

    fn restart(&self, name: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services.sh");
        let done = Command::new(script).args(["restart", name, &self.folder]).stdout(Stdio::null()).status().unwrap();
        assert!(done.success(), "{name} did not come back");
    }
}

/// The item with the query's number is what was meant; one of its kind is near it.
fn verdicts(seen: &Seen) -> Value {
    let query: Vec<&str> = seen.body["query"].as_str().unwrap().split(' ').collect();
    let level = |item: &Value| {
        let words: Vec<&str> = item["text"].as_str().unwrap().split(' ').collect();
        let has = |word: Option<&&str>| word.is_some_and(|word| words.contains(word));
        1 + 2 * u8::from(has(query.get(1))) + u8::from(has(query.first()))
    };
    let levels: Vec<u8> = seen.body["items"].as_array().unwrap().iter().map(level).collect();
    let scores: Vec<f64> = levels.iter().map(|level| f64::from(level - 1) / 3.0).collect();
    json!({"model": "told", "scores": scores, "levels": levels})
}

/// `souk VERB`, which says on its first line where it is asked.
struct Daemon {
    child: Child,
    address: String,
}

impl Daemon {
    fn start(verb: &str, sets: &[String], log: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
        let log = fs::File::options().create(true).append(true).open(log).unwrap();
        command.arg(verb).env("OMP_NUM_THREADS", "1").env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(log);
        let mut child = command.args(sets.iter().flat_map(|set| ["--set", set])).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.split("http://").nth(1).map(|rest| rest.trim().split('/').next().unwrap_or_default().to_owned());
        Self { child, address: address.unwrap_or_else(|| panic!("`{verb}` said: {line}")) }
    }

    fn status(&self) -> Option<Value> {
        let (status, body) = ask(&self.address, "GET /status", "")?;
        (status == 200).then(|| serde_json::from_str(&body).unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn ask(address: &str, route: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let length = body.len();
    write!(stream, "{route} HTTP/1.1\r\nHost: souk\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// What a client that searches all along was told.
#[derive(Default)]
struct Searched {
    stop: AtomicBool,
    answered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    versions: std::sync::Mutex<BTreeSet<String>>,
}

impl Searched {
    fn run(&self, address: &str) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let body = json!({"query": format!("lamp {}", number % shop::ITEMS), "k": 5}).to_string();
            match ask(address, "POST /search", &body) {
                Some((200, body)) => {
                    let found: Value = serde_json::from_str(&body).unwrap();
                    // model and index are one
                    let (model, index) = (found["model"].as_str().unwrap(), found["index"].as_str().unwrap());
                    assert!(index.starts_with(model) && found["hits"].as_array().unwrap().len() == 5, "{found}");
                    self.versions.lock().unwrap().insert(model.to_owned());
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                Some((429, _)) => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
                other => {
                    println!("a search failed: {other:?}");
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            sleep(Duration::from_millis(40));
        }
    }
}

/// Sends a number of searches with their clicks, over so many seconds, whatever becomes of the broker.
fn produce(brokers: &str, topic: &str, num: usize, seconds: f64) {
    let mut client = client(brokers);
    client.set("enable.idempotence", "true").set("message.timeout.ms", "180000");
    let producer: BaseProducer = client.create().unwrap();
    for n in 0..num {
        for (key, line) in messages(n..n + 1) {
            producer.send(BaseRecord::to(topic).key(&key).payload(&line)).map_err(|(error, _)| error).unwrap();
        }
        producer.poll(Duration::from_secs_f64(seconds / num as f64));
    }
    producer.flush(Duration::from_secs(180)).unwrap();
}

/// What the two daemons of one run are told.
struct Loop<'a> {
    home: &'a Path,
    servers: &'a Servers,
    topic: String,
    database: String,
    judge: String,
}

impl Loop<'_> {
    fn trainer(&self) -> Vec<String> {
        let adamw = "\"train.optimizer.learning_rate=2e-3\", \"train.checkpoint_steps=4\", \"train.batch=24\"";
        let sft = format!("{{name=\"sft\", set=[\"objective.type=info_nce\", \"train.epochs=3\", {adamw}]}}");
        let rgrpo = format!(
            "{{name=\"rgrpo\", set=[\"objective.type=r_grpo\", \"objective.group=6\", \"train.most_steps=8\", {adamw}]}}"
        );
        vec![
            format!("model.path={}", model().display()),
            "model.device=cpu".into(),
            format!("store.database={}", self.database),
            format!("store.cache={}", self.servers.redis),
            format!("log.brokers={}", self.servers.brokers),
            format!("log.topics=[\"{}\"]", self.topic),
            format!("log.group={}", self.topic),
            "log.properties.\"session.timeout.ms\"=\"1500\"".into(),
            "log.properties.\"heartbeat.interval.ms\"=\"300\"".into(),
            "ingest.commit_seconds=1".into(),
            "judge.type=souk".into(),
            "judge.model=told".into(),
            format!("judge.url={}", self.judge),
            "judge.limits={retries=1, timeout_seconds=2, deadline_seconds=4, breaker_failures=3, breaker_seconds=0.5}"
                .into(),
            "reward.most_missing=0".into(),
            "reward.pause_seconds=0.1".into(),
            format!("trainer.data={}", self.home.join("data").display()),
            format!("trainer.state={}", self.home.join("trainer").display()),
            "trainer.listen=127.0.0.1:0".into(),
            format!("trainer.stage=[{sft}, {rgrpo}]"),
            "trainer.pace={examples=150, seconds=0}".into(),
            "trainer.gate={watched=[\"ndcg@10\"], depth=101}".into(),
            "trainer.alarms.free_bytes=0".into(),
        ]
    }

    fn search(&self) -> Vec<String> {
        let prefix = format!("{}_", self.topic.replace('-', "_"));
        vec![
            format!("model.path={}", model().display()),
            "search.version=first".into(),
            format!("store.database={}", self.database),
            format!("store.cache={}", self.servers.redis),
            format!("search.data={}", self.home.join("data").display()),
            format!("search.state={}", self.home.join("search").display()),
            "search.listen=127.0.0.1:0".into(),
            "search.registry_seconds=1".into(),
            "search.index.type=milvus".into(),
            format!("search.index.address={}", self.servers.milvus),
            format!("search.index.collection_prefix={prefix}"),
            // one client that comes after each answer is no overload, however slow a restarted server is
            "search.bounds.slowdown=1000".into(),
            "search.bounds.deadline_ms=60000".into(),
        ]
    }

    fn start(&self, verb: &str) -> Daemon {
        let sets = if verb == "trainer" { self.trainer() } else { self.search() };
        Daemon::start(verb, &sets, &self.home.join(format!("{verb}.log")))
    }

    fn examples(&self) -> Examples {
        let data = DataFolder::open(&self.home.join("data")).unwrap();
        Examples::open(&data.path().join("examples"), &Catalogue::open(&data).unwrap(), None).unwrap()
    }

    fn versions(&self) -> Vec<Version> {
        runtime().block_on(async {
            let ledger = SqlLedger::open(&Address::new(&self.database)).await.unwrap();
            ledger.page_versions(None, 1000).await.unwrap()
        })
    }

    /// Waits until everything is read and no round is left to do.
    fn settle(&self, trainer: &Daemon, num: usize) {
        let began = Instant::now();
        loop {
            let status = trainer.status().unwrap();
            let idle = status["doing"] == "waiting" && status["round"].is_null();
            let stages = status["stages"].as_array().unwrap();
            let due = stages.iter().any(|stage| stage["fresh"].as_u64() >= Some(150));
            if idle && !stages.is_empty() && !due && self.examples().len() == num as u64 {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{status:#}");
            sleep(Duration::from_millis(200));
        }
    }

    /// nDCG@10 of what is served at the end.
    fn quality(&self, search: &Daemon) -> f64 {
        let (_, body) = ask(&search.address, "GET /models", "").unwrap();
        let models: Value = serde_json::from_str(&body).unwrap();
        let served = models["served"]["version"].as_str().unwrap().to_owned();
        let version =
            models["versions"].as_array().unwrap().iter().find(|version| version["version"] == *served).unwrap();
        assert_eq!(version["state"], "promoted", "{models:#}");
        version["report"]["metrics"]["overall"]["ndcg@10"].as_f64().unwrap_or_else(|| panic!("{models:#}"))
    }
}

/// Moments that are others each time, from a seed that is said.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// A run to its end: `kills` of the trainer, and each server restarted as often as `restarts` says.
fn run(running: &Loop, (kills, restarts): (u64, u64), cut: &AtomicBool) -> f64 {
    let num = 600 + 60 * kills as usize;
    let seconds = 10.0 + 3.0 * kills as f64;
    let search = running.start("serve");
    let searched = Arc::new(Searched::default());
    let client = {
        let (searched, address) = (searched.clone(), search.address.clone());
        thread::spawn(move || searched.run(&address))
    };
    let producer = {
        let (brokers, topic) = (running.servers.brokers.clone(), running.topic.clone());
        thread::spawn(move || produce(&brokers, &topic, num, seconds))
    };
    let mut dice = Dice(kills + 7);
    let mut trainer = running.start("trainer");
    for kill in 0..kills {
        sleep(Duration::from_millis(200 + dice.below(3000)));
        drop(trainer);
        if kill < restarts * SERVERS.len() as u64 {
            running.servers.restart(SERVERS[kill as usize % SERVERS.len()]);
        }
        cut.store(kill % 3 == 1, Ordering::Relaxed);
        trainer = running.start("trainer");
    }
    cut.store(false, Ordering::Relaxed);
    producer.join().unwrap();
    running.settle(&trainer, num);
    sleep(Duration::from_secs(3));
    let quality = running.quality(&search);
    searched.stop.store(true, Ordering::Relaxed);
    client.join().unwrap();
    audit(running, num, &searched);
    println!(
        "{kills} kills, {restarts} restarts of each server: {num} events counted once; {} searches answered by {} versions, \
         {} refused, {} failed; nDCG@10 {quality:.2}",
        searched.answered.load(Ordering::Relaxed),
        searched.versions.lock().unwrap().len(),
        searched.refused.load(Ordering::Relaxed),
        searched.failed.load(Ordering::Relaxed)
    );
    quality
}

fn audit(running: &Loop, num: usize, searched: &Searched) {
    let examples = running.examples();
    let times: BTreeSet<i64> = (0..examples.len()).map(|row| examples.row(row).time).collect();
    assert_eq!((examples.len(), times.len()), (num as u64, num), "every event counts once");
    let rounds = running.home.join("trainer/rounds");
    let mut numbers = Vec::new();
    for entry in fs::read_dir(&rounds).unwrap() {
        let place = entry.unwrap().path();
        let name = place.file_name().unwrap().to_string_lossy().into_owned();
        numbers.push(name.parse::<u64>().unwrap_or_else(|_| panic!("{name} was left half written")));
        assert!(place.join("ended.json").exists(), "{name} has not ended");
    }
    let published: Vec<u64> =
        running.versions().iter().filter_map(|version| version.metrics["round"].as_u64()).collect();
    let distinct: BTreeSet<u64> = published.iter().copied().collect();
    assert_eq!(published.len(), distinct.len(), "a round is published once");
    assert!(!published.is_empty() && distinct.iter().all(|round| numbers.contains(round)));
    assert_eq!(searched.failed.load(Ordering::Relaxed), 0, "searches failed");
    assert!(searched.answered.load(Ordering::Relaxed) > 50);
}

#[test]
fn the_loop_outlives_what_is_done_to_it() {
    let Some(servers) = Servers::named() else { return };
    let kills: u64 = std::env::var("SOUK_CHAOS_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let restarts = if kills >= 20 { 5 } else { 1 };
    let cut = Arc::new(AtomicBool::new(false));
    let judge = {
        let cut = cut.clone();
        Pretend::start(move |_, seen| match cut.load(Ordering::Relaxed) {
            true => Reply::Close,
            false => Reply::Json(verdicts(seen)),
        })
    };
    let qualities = std::sync::Mutex::new(Vec::new());
    for (kills, restarts) in [(0, 0), (kills, restarts)] {
        on_postgres("the loop under attack", async |url: String| {
            SqlLedger::migrate(&Address::new(&url)).await.unwrap();
            let (servers, judge, cut) = (servers.clone(), judge.url(), cut.clone());
            let attacked = move || {
                let home = shop();
                let topic = topic(&servers.brokers, &format!("chaos-{kills}"), 2);
                let running = Loop { home: home.path(), servers: &servers, topic, database: url, judge };
                run(&running, (kills, restarts), &cut)
            };
            // it waits for processes, and asks the ledger from threads of its own
            qualities.lock().unwrap().push(thread::spawn(attacked).join().unwrap());
        });
    }
    let [calm, wild] = qualities.into_inner().unwrap().try_into().unwrap();
    assert!((calm - wild).abs() < 15.0, "nDCG@10 is {wild:.2} after what was done, {calm:.2} undisturbed");
}
