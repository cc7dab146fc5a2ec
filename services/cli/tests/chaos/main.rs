//! The loop under attack, on real Kafka, Redis, PostgreSQL and Milvus: the trainer is killed at random moments, every server
//! and both processes of the search service are killed and started again, the wire to the judge is cut, the disk is full for a
//! while, and a client searches all along. At the end every event counts once, nothing half written was used, and what is
//! served is as good as if nothing had happened. SOUK_CHAOS_KILLS sets how often; the long form is `make chaos`.
#![cfg(feature = "milvus")]
#![expect(clippy::print_stdout, reason = "what was seen is what the long form is run for")]
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod audit;
#[path = "../broker/mod.rs"]
mod broker;
mod daemon;
mod disk;
mod judge;
mod scene;
mod shopper;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::Value;
use souk::address::Address;
use souk::beir::DataFolder;
use souk::catalogue::Catalogue;
use souk::dataset::Examples;
use souk::report::{Run, names, paired};
use souk::store::{Ledger, SqlLedger, Version, newest_offer};

use crate::audit::audit;
use crate::broker::{client, topic};
use crate::daemon::{Daemon, ask};
use crate::disk::Disk;
use crate::scene::Scene;
use crate::shopper::Shopper;
use souk_testing::databases::{on_postgres, runtime, server_url};

const PATIENCE: Duration = Duration::from_secs(240);
const SERVERS: [&str; 4] = ["redis", "kafka", "postgres", "milvus"];
/// Searches with a click, at the least, and the time between two; the calm run is sent as many in less time.
const MIN_EVENTS: usize = 600;
const PAUSE: Duration = Duration::from_millis(40);
const CALM_PAUSE: Duration = Duration::from_millis(8);
/// From so many kills on everything is restarted five times, in a market instead of a small shop.
const LONG: u64 = 30;
/// For so long the disk is full at the least.
const FULL: Duration = Duration::from_secs(6);

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
        let named = |variable| server_url(variable, "the loop under attack", |url| !url.is_empty());
        Some(Self {
            brokers: named("KAFKA_BROKERS")?,
            redis: named("REDIS_URL")?,
            milvus: named("MILVUS_URL")?,
            folder: named("SOUK_SERVICES")?,
        })
    }

    fn restart(&self, name: &str) {
        let script = souk_testing::repository().join("scripts/services.sh");
        let done = Command::new(script).args(["restart", name, &self.folder]).stdout(Stdio::null()).status().unwrap();
        assert!(done.success(), "{name} did not come back");
    }
}

/// Sends searches with their clicks, whatever becomes of the broker: so many, and more until it is told to stop. How many.
fn produce(
    (brokers, topic): (&str, &str),
    scene: &Scene,
    (least, pause): (usize, Duration),
    stop: &AtomicBool,
) -> usize {
    let mut client = client(brokers);
    client.set("enable.idempotence", "true").set("message.timeout.ms", "180000");
    let producer: BaseProducer = client.create().unwrap();
    let mut num = 0;
    while num < least || !stop.load(Ordering::Relaxed) {
        for (key, line) in scene.messages(num) {
            producer.send(BaseRecord::to(topic).key(&key).payload(&line)).map_err(|(error, _)| error).unwrap();
        }
        producer.poll(pause);
        num += 1;
    }
    producer.flush(Duration::from_secs(180)).unwrap();
    num
}

/// What the daemons of one run are told.
struct Loop<'a> {
    home: &'a Path,
    /// Where the shop, its examples and everybody's state are.
    place: PathBuf,
    disk: Option<Disk>,
    servers: &'a Servers,
    scene: Arc<Scene>,
    topic: String,
    database: String,
}

impl<'a> Loop<'a> {
    /// In the shop's own folder, and on a disk of its own where it is attacked.
    fn new(home: &'a Path, (servers, scene): (&'a Servers, Arc<Scene>), kills: u64, database: String) -> Self {
        let topic = topic(&servers.brokers, &format!("chaos-{kills}"), 2);
        let small = home.join("small");
        let disk = if kills > 0 { Disk::mount(&small) } else { None };
        let place = if disk.is_some() { small } else { home.to_owned() };
        if disk.is_some() {
            let copied = Command::new("cp").arg("-r").arg(home.join("data")).arg(&place).status();
            assert!(copied.unwrap().success());
        }
        Self { home, place, disk, servers, scene, topic, database }
    }

    fn trainer(&self) -> Vec<String> {
        let adamw = "\"train.optimizer.learning_rate=2e-3\", \"train.checkpoint_steps=4\", \"train.batch=24\", \"train.pairs=examples\"";
        let sft = format!("{{name=\"sft\", set=[\"objective.type=info_nce\", \"train.epochs=3\", {adamw}]}}");
        let rgrpo = format!(
            "{{name=\"rgrpo\", set=[\"objective.type=r_grpo\", \"objective.group=6\", \"train.max_steps=8\", {adamw}]}}"
        );
        vec![
            format!("model.path={}", self.scene.model.display()),
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
            format!("judge.model={}", self.scene.judge.name),
            format!("judge.url={}", self.scene.judge.url()),
            "judge.limits={retries=1, timeout_seconds=2, deadline_seconds=4, breaker_failures=3, breaker_seconds=0.5}"
                .into(),
            "reward.max_missing=0".into(),
            "reward.pause_seconds=0.1".into(),
            format!("trainer.data={}", self.data().display()),
            format!("trainer.state={}", self.state().display()),
            "trainer.listen=127.0.0.1:0".into(),
            format!("trainer.stage=[{sft}, {rgrpo}]"),
            "trainer.pace={examples=150, seconds=0}".into(),
            // one that is no worse is served, so that there is always another to change to
            "trainer.gate={watched=[\"ndcg@10\"], depth=101, gain=\"none\"}".into(),
            "trainer.alarms.free_bytes=0".into(),
        ]
    }

    /// Two processes on one ledger, each with a folder and with collections of its own.
    fn search(&self, number: usize) -> Vec<String> {
        let prefix = format!("{}_{number}_", self.topic.replace('-', "_"));
        vec![
            format!("model.path={}", self.scene.model.display()),
            "search.version=first".into(),
            format!("store.database={}", self.database),
            format!("store.cache={}", self.servers.redis),
            format!("search.data={}", self.data().display()),
            format!("search.state={}", self.place.join(format!("search-{number}")).display()),
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

    fn data(&self) -> PathBuf {
        self.place.join("data")
    }

    fn state(&self) -> PathBuf {
        self.place.join("trainer")
    }

    fn start_trainer(&self) -> Daemon {
        Daemon::start("trainer", &self.trainer(), &self.home.join("trainer.log"))
    }

    fn start_search(&self, number: usize) -> Daemon {
        Daemon::start("serve", &self.search(number), &self.home.join(format!("search-{number}.log")))
    }

    fn examples(&self) -> Examples {
        let data = DataFolder::open(&self.data()).unwrap();
        Examples::open(&data.path().join("examples"), &Catalogue::open(&data).unwrap(), None).unwrap()
    }

    fn ledger<T>(&self, ask: impl AsyncFnOnce(SqlLedger) -> T) -> T {
        runtime().block_on(async { ask(SqlLedger::open(&Address::new(&self.database)).await.unwrap()).await })
    }

    /// What is served, and what is offered.
    fn served(&self) -> (Version, Option<Version>) {
        self.ledger(async |ledger| {
            let served = ledger.served().await.unwrap().unwrap();
            (ledger.version(&served.version).await.unwrap().unwrap(), newest_offer(&ledger).await.unwrap())
        })
    }

    fn until(&self, trainer: &Daemon, what: &str, is: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        loop {
            let status = trainer.get("/status").unwrap();
            if is(&status) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {status:#}");
            sleep(Duration::from_millis(100));
        }
    }

    /// Waits until all events are read, no round is due and both processes serve the last offer; returns that version.
    fn settle(&self, trainer: &Daemon, searches: &[Daemon; 2], num: usize) -> Version {
        self.until(trainer, "not all events are read", |_| self.examples().len() == num as u64);
        // the trainer counts examples twice a second: only then does its status include the last ones
        sleep(Duration::from_secs(2));
        self.until(trainer, "the trainer does not come to rest", |status| {
            let idle = status["doing"] == "waiting" && status["round"].is_null();
            let stages = status["stages"].as_array().unwrap();
            let due = stages.iter().any(|stage| stage["fresh"].as_u64() >= Some(150));
            idle && !stages.is_empty() && !due
        });
        let began = Instant::now();
        loop {
            let (served, offer) = self.served();
            let found = searches.each_ref().map(|search| {
                let (_, body) = ask(&search.address, "POST /search", "{\"query\": \"lamp\"}").unwrap();
                serde_json::from_str::<Value>(&body).unwrap()["model"] == *served.version
            });
            if offer.is_none() && found == [true; 2] {
                return served;
            }
            assert!(began.elapsed() < PATIENCE, "{} is not served by both: {found:?}", served.version);
            sleep(Duration::from_millis(200));
        }
    }

    /// What was measured of a model when it was held against another.
    fn measured(&self, version: &Version) -> Run {
        Run::load(&self.state().join(format!("measured/{}-test", version.fingerprint))).unwrap()
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

/// What is done to a run while its client searches and its log grows.
struct Attack<'a> {
    running: &'a Loop<'a>,
    trainer: Daemon,
    searches: [Daemon; 2],
    shopper: &'a Shopper,
    kills: u64,
    restarts: u64,
}

impl Attack<'_> {
    fn run(&mut self) {
        let mut dice = Dice(self.kills + 7);
        for kill in 0..self.kills {
            sleep(Duration::from_millis(200 + dice.below(3000)));
            self.kill_trainer();
            self.running.scene.judge.cut(kill % 3 == 1);
            if kill == 1 {
                self.running.scene.judge.cut_until_felt(PATIENCE);
            }
            if kill == self.kills / 2 {
                self.running.scene.judge.cut(false);
                self.fill_disk();
            }
            self.restart(kill as usize);
        }
        self.running.scene.judge.cut(false);
    }

    fn kill_trainer(&mut self) {
        self.trainer.kill();
        self.trainer = self.running.start_trainer();
    }

    /// One of the servers or of the search service's processes, in turn, while the trainer lives.
    fn restart(&mut self, turn: usize) {
        if turn as u64 >= self.restarts * (SERVERS.len() + self.searches.len()) as u64 {
            return;
        }
        let turn = turn % (SERVERS.len() + self.searches.len());
        match SERVERS.get(turn) {
            Some(name) => self.running.servers.restart(name),
            None => {
                let number = turn - SERVERS.len();
                self.searches[number].kill();
                self.searches[number] = self.running.start_search(number);
                *self.shopper.addresses[number].lock().unwrap() = self.searches[number].address.clone();
            }
        }
    }

    /// Not a byte can be written while a round trains and examples come; the trainer is killed then, and started.
    fn fill_disk(&mut self) {
        let Some(disk) = &self.running.disk else { return };
        let training = |status: &Value| status["doing"] == "training";
        let full = |status: &Value| {
            let says = |alarm: &str| {
                status["alarms"][alarm]["problem"].as_str().is_some_and(|text| text.contains("os error 28"))
            };
            says("log") && says("round")
        };
        self.running.until(&self.trainer, "no round trains", training);
        let began = Instant::now();
        let filled = disk.fill();
        self.running.until(&self.trainer, "neither the log nor the round has met the full disk", full);
        self.kill_trainer();
        self.running.until(&self.trainer, "a start on a full disk does not say so", full);
        sleep(FULL.saturating_sub(began.elapsed()));
        drop(filled);
        println!("the disk was full for {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// A run to its end, with so many kills of the trainer, restarts of everything else, and events at the least: how many
/// events there were, and what was measured of the model that is served.
fn run(running: &Loop, (kills, restarts): (u64, u64), least: usize) -> (usize, Run) {
    let searches = [running.start_search(0), running.start_search(1)];
    let shopper = Arc::new(Shopper::default());
    for (address, search) in shopper.addresses.iter().zip(&searches) {
        address.lock().unwrap().clone_from(&search.address);
    }
    let over = Arc::new(AtomicBool::new(kills == 0));
    let (searching, sent) = (shopper.clone(), over.clone());
    let client = thread::spawn(move || searching.run());
    let (brokers, topic, scene) = (running.servers.brokers.clone(), running.topic.clone(), running.scene.clone());
    let pause = if kills == 0 { CALM_PAUSE } else { PAUSE };
    let producer = thread::spawn(move || produce((&brokers, &topic), &scene, (least, pause), &sent));
    let trainer = running.start_trainer();
    let mut attack = Attack { running, trainer, searches, shopper: &shopper, kills, restarts };
    attack.run();
    over.store(true, Ordering::Relaxed);
    let num = producer.join().unwrap();
    let served = running.settle(&attack.trainer, &attack.searches, num);
    shopper.stop.store(true, Ordering::Relaxed);
    client.join().unwrap();
    let measured = running.measured(&served);
    audit(running, num, &shopper);
    println!("{kills} kills, {restarts} restarts of each service: {num} events counted once; {}", shopper.told());
    (num, measured)
}

#[test]
fn the_loop_outlives_what_is_done_to_it() {
    let Some(servers) = Servers::named() else { return };
    let kills: u64 = std::env::var("SOUK_CHAOS_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let restarts = if kills >= LONG { 5 } else { 1 };
    let scene = Arc::new(if kills >= LONG { Scene::market() } else { Scene::small() });
    let runs = std::sync::Mutex::new(Vec::<(usize, Run)>::new());
    for (kills, restarts) in [(kills, restarts), (0, 0)] {
        on_postgres("the loop under attack", async |url: String| {
            SqlLedger::migrate(&Address::new(&url)).await.unwrap();
            let (servers, scene) = (servers.clone(), scene.clone());
            // the second run is sent what the first was
            let least = runs.lock().unwrap().last().map_or(MIN_EVENTS, |(num, _)| *num);
            let attacked = move || {
                let home = scene.home();
                let running = Loop::new(home.path(), (&servers, scene), kills, url);
                run(&running, (kills, restarts), least)
            };
            // it waits for processes, and asks the ledger from threads of its own
            let ended = thread::spawn(attacked).join();
            runs.lock().unwrap().push(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        });
    }
    println!("{} requests to the judge were lost on the way", scene.judge.num_lost());
    let runs = runs.into_inner().unwrap();
    compare(&runs[1].1, &runs[0].1);
}

/// Whether what an attacked run serves is as good as what a calm one does, by the queries that both were asked. They do not
/// serve one model: rounds begin at other moments, with other examples. So the bound is what so many queries cannot tell from
/// chance; of 60, seven that are worse and none that is better are beyond it.
fn compare(calm: &Run, wild: &Run) {
    let metric = names(calm.metrics.asked.depth).iter().position(|name| name == "ndcg@10").unwrap();
    let column = |run: &Run| run.queries.iter().map(|query| query.values[metric]).collect::<Vec<_>>();
    let found = paired(&column(calm), &column(wild), 1).unwrap();
    let [before, after] = [calm, wild].map(|run| run.metrics.overall["ndcg@10"].unwrap());
    println!(
        "nDCG@10 over {} queries: {after:.2} after what was done, {before:.2} undisturbed (p = {:.2})",
        found.num_queries, found.p_randomised
    );
    assert!(found.difference >= 0.0 || found.p_randomised > 0.02, "it is worse, and not by chance: {found:?}");
}
