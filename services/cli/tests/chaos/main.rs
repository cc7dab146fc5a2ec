//! Chaos test of the continuous training loop, on real Kafka, Redis, PostgreSQL and Milvus. Kills the trainer at random
//! moments, restarts every server and both search processes, cuts the connection to the judge and fills the disk, while
//! a client searches continuously. At the end, every event counts once, no partial file was used, and the served model
//! is as good as in an undisturbed run. SOUK_CHAOS_KILLS sets the number of kills; `make chaos` runs the long form.
#![cfg(feature = "milvus")]
#![expect(clippy::print_stdout, reason = "the long form reports its findings")]
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod audit;
#[path = "../broker/mod.rs"]
mod broker;
mod daemon;
mod disk;
mod judge;
mod scene;
mod shopper;

use std::collections::BTreeSet;
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
use souk::report::{EvaluationRun, names, paired};
use souk::store::{Ledger, SqlLedger, Version, newest_offer};

use crate::audit::audit;
use crate::broker::{client, topic};
use crate::daemon::{Daemon, ask};
use crate::disk::Disk;
use crate::scene::Scene;
use crate::shopper::Shopper;
use souk_testing::databases::{on_postgres, runtime, server_url};

const DEADLINE: Duration = Duration::from_secs(240);
const SERVERS: [&str; 4] = ["redis", "kafka", "postgres", "milvus"];
/// Minimum number of searches with a click, and the time between them. The calm run gets as many in less time.
const MIN_EVENTS: usize = 600;
const PAUSE: Duration = Duration::from_millis(40);
const CALM_PAUSE: Duration = Duration::from_millis(8);
/// Number of kills from which the long form runs: five restarts of everything, on a simulated shop instead of a small
/// one.
const LONG_FORM: u64 = 30;
/// Time that a kill of a search process waits for a promotion to be killed in.
const BUILD_TIME: Duration = Duration::from_secs(10);
/// Minimum time with a full disk.
const FULL_DISK_TIME: Duration = Duration::from_secs(6);

/// Addresses of the real servers.
#[derive(Clone)]
struct Servers {
    brokers: String,
    redis: String,
    milvus: String,
    /// Folder of scripts/services.sh, for restarts.
    folder: String,
}

impl Servers {
    fn from_env() -> Option<Self> {
        let url_of = |variable| server_url(variable, "chaos test", |url| !url.is_empty());
        Some(Self {
            brokers: url_of("KAFKA_BROKERS")?,
            redis: url_of("REDIS_URL")?,
            milvus: url_of("MILVUS_URL")?,
            folder: url_of("SOUK_SERVICES")?,
        })
    }

    fn restart(&self, name: &str) {
        let script = souk_testing::repository().join("scripts/services.sh");
        let done = Command::new(script).args(["restart", name, &self.folder]).stdout(Stdio::null()).status().unwrap();
        assert!(done.success(), "{name} did not restart");
    }
}

/// Minimum number of events to send, and the time between them.
#[derive(Clone, Copy)]
struct EventRate {
    min_events: usize,
    pause: Duration,
}

/// Sends searches with their clicks, also while the broker is down: the minimum of `rate`, and more until stopped.
/// Returns their number.
fn produce(brokers: &str, topic: &str, scene: &Scene, rate: EventRate, stop: &AtomicBool) -> usize {
    let mut client = client(brokers);
    client.set("enable.idempotence", "true").set("message.timeout.ms", "180000");
    let producer: BaseProducer = client.create().unwrap();
    let mut num = 0;
    while num < rate.min_events || !stop.load(Ordering::Relaxed) {
        for (key, line) in scene.messages(num) {
            producer.send(BaseRecord::to(topic).key(&key).payload(&line)).map_err(|(error, _)| error).unwrap();
        }
        producer.poll(rate.pause);
        num += 1;
    }
    producer.flush(Duration::from_secs(180)).unwrap();
    num
}

/// Settings of the services of one run.
struct Loop<'a> {
    home: &'a Path,
    /// Folder of the shop, its examples and the state of all services.
    folder: PathBuf,
    disk: Option<Disk>,
    servers: &'a Servers,
    scene: Arc<Scene>,
    topic: String,
    database: String,
}

impl<'a> Loop<'a> {
    /// A run in the folder `home`; with kills, on a separate small disk.
    fn new(home: &'a Path, servers: &'a Servers, scene: Arc<Scene>, kills: u64, database: String) -> Self {
        let topic = topic(&servers.brokers, &format!("chaos-{kills}"), 2);
        let small = home.join("small");
        let disk = if kills > 0 { Disk::mount(&small) } else { None };
        let folder = if disk.is_some() { small } else { home.to_owned() };
        if disk.is_some() {
            let copied = Command::new("cp").arg("-r").arg(home.join("data")).arg(&folder).status();
            assert!(copied.unwrap().success());
        }
        Self { home, folder, disk, servers, scene, topic, database }
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
            // gate without a required gain, so that models keep changing
            "trainer.gate={watched=[\"ndcg@10\"], depth=101, gain=\"none\"}".into(),
            "trainer.alarms.free_bytes=0".into(),
        ]
    }

    /// Settings of a search process, with the limits of a real one. Both use one ledger; each has its own folder, and an index of its own:
    /// the first on a server, the second embedded.
    fn search(&self, number: usize) -> Vec<String> {
        let mut all = vec![
            format!("model.path={}", self.scene.model.display()),
            "search.version=first".into(),
            format!("store.database={}", self.database),
            format!("store.cache={}", self.servers.redis),
            format!("search.data={}", self.data().display()),
            format!("search.state={}", self.folder.join(format!("search-{number}")).display()),
            "search.listen=127.0.0.1:0".into(),
            "search.registry_seconds=1".into(),
            // the full disk is a small one
            "search.free_bytes=0".into(),
        ];
        if number == 0 {
            all.push("search.index.type=milvus".into());
            all.push(format!("search.index.address={}", self.servers.milvus));
            all.push(format!("search.index.collection_prefix={}_", self.topic.replace('-', "_")));
        }
        all
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn state(&self) -> PathBuf {
        self.folder.join("trainer")
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

    /// Live version and newest offer.
    fn served(&self) -> (Version, Option<Version>) {
        self.ledger(async |ledger| {
            let served = ledger.served().await.unwrap().unwrap();
            (ledger.version(&served.version).await.unwrap().unwrap(), newest_offer(&ledger).await.unwrap())
        })
    }

    fn wait_until(&self, trainer: &Daemon, problem: &str, is_reached: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        loop {
            let status = trainer.get("/status").unwrap();
            if is_reached(&status) {
                return;
            }
            assert!(began.elapsed() < DEADLINE, "{problem}: {status:#}");
            sleep(Duration::from_millis(100));
        }
    }

    /// Waits until all events are read, no round is due and both processes serve the last offer; returns that version.
    fn settle(&self, trainer: &Daemon, searches: &[Daemon; 2], num: usize) -> Version {
        self.wait_until(trainer, "not all events are read", |_| self.examples().len() == num as u64);
        // the trainer counts examples twice a second: only then does its status include the last ones
        sleep(Duration::from_secs(2));
        self.wait_until(trainer, "the trainer does not become idle", |status| {
            let is_idle = status["doing"] == "waiting" && status["round"].is_null();
            let stages = status["stages"].as_array().unwrap();
            let is_due = stages.iter().any(|stage| stage["fresh"].as_u64() >= Some(150));
            is_idle && !stages.is_empty() && !is_due
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
            assert!(began.elapsed() < DEADLINE, "{} is not served by both: {found:?}", served.version);
            sleep(Duration::from_millis(200));
        }
    }

    /// Evaluation of a model in its comparison with the served one.
    fn evaluation(&self, version: &Version) -> EvaluationRun {
        EvaluationRun::load(&self.state().join(format!("measured/{}-test", version.fingerprint))).unwrap()
    }
}

/// Seeded random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Faults injected into a run while its client searches and its log grows.
struct Attack<'a> {
    running: &'a Loop<'a>,
    trainer: Daemon,
    searches: [Daemon; 2],
    shopper: &'a Shopper,
    kills: u64,
    restarts: u64,
    /// Search processes killed while they built an index for a new version.
    num_killed_builds: usize,
}

impl Attack<'_> {
    fn run(&mut self) {
        let mut dice = Dice(self.kills + 7);
        for kill in 0..self.kills {
            sleep(Duration::from_millis(200 + dice.below(3000)));
            self.kill_trainer();
            self.running.scene.judge.cut(kill % 3 == 1);
            if kill == 1 {
                self.running.scene.judge.cut_until_timeout(DEADLINE);
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

    /// Restarts one of the servers or search processes, in turn, while the trainer runs.
    fn restart(&mut self, turn: usize) {
        if turn as u64 >= self.restarts * (SERVERS.len() + self.searches.len()) as u64 {
            return;
        }
        let turn = turn % (SERVERS.len() + self.searches.len());
        match SERVERS.get(turn) {
            Some(name) => self.running.servers.restart(name),
            None => {
                let number = turn - SERVERS.len();
                self.num_killed_builds += usize::from(self.searches[number].wait_for_build(BUILD_TIME));
                self.searches[number].kill();
                self.searches[number] = self.running.start_search(number);
                *self.shopper.addresses[number].lock().unwrap() = self.searches[number].address.clone();
            }
        }
    }

    /// Fills the disk during training and ingestion, and restarts the trainer on the full disk.
    fn fill_disk(&mut self) {
        let Some(disk) = &self.running.disk else { return };
        let training = |status: &Value| status["doing"] == "training";
        let full = |status: &Value| {
            let reports = |alarm: &str| {
                status["alarms"][alarm]["problem"].as_str().is_some_and(|text| text.contains("os error 28"))
            };
            reports("log") && reports("round")
        };
        self.running.wait_until(&self.trainer, "no round trains", training);
        let began = Instant::now();
        let full_disk = disk.fill();
        self.running.wait_until(&self.trainer, "log and round do not report the full disk", full);
        self.kill_trainer();
        self.running.wait_until(&self.trainer, "a restart does not report the full disk", full);
        sleep(FULL_DISK_TIME.saturating_sub(began.elapsed()));
        drop(full_disk);
        println!("the disk was full for {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// Executes a run with kills of the trainer and restarts of everything else. Returns the number of events and the
/// evaluation of the served model.
fn run(running: &Loop, kills: u64, restarts: u64, min_events: usize) -> (usize, EvaluationRun) {
    let searches = [running.start_search(0), running.start_search(1)];
    let shopper = Arc::new(Shopper::default());
    for (address, search) in shopper.addresses.iter().zip(&searches) {
        address.lock().unwrap().clone_from(&search.address);
    }
    let is_over = Arc::new(AtomicBool::new(kills == 0));
    let (client, stop_producer) = (shopper.clone(), is_over.clone());
    let client = thread::spawn(move || client.run());
    let (brokers, topic, scene) = (running.servers.brokers.clone(), running.topic.clone(), running.scene.clone());
    let rate = EventRate { min_events, pause: if kills == 0 { CALM_PAUSE } else { PAUSE } };
    let producer = thread::spawn(move || produce(&brokers, &topic, &scene, rate, &stop_producer));
    let trainer = running.start_trainer();
    let mut attack = Attack { running, trainer, searches, shopper: &shopper, kills, restarts, num_killed_builds: 0 };
    attack.run();
    is_over.store(true, Ordering::Relaxed);
    let num = producer.join().unwrap();
    let served = running.settle(&attack.trainer, &attack.searches, num);
    shopper.stop.store(true, Ordering::Relaxed);
    client.join().unwrap();
    let evaluation = running.evaluation(&served);
    audit(running, num, &shopper);
    check_items(running, &attack.searches, &shopper);
    println!("{kills} kills, {restarts} restarts of each service: {num} events counted once; {}", shopper.summary());
    println!("{} search processes were killed during a promotion", attack.num_killed_builds);
    (num, evaluation)
}

/// Both search processes have every acknowledged item, and the newest round had all that were there when it began.
fn check_items(running: &Loop, searches: &[Daemon; 2], shopper: &Shopper) {
    let items = shopper.items.lock().unwrap();
    let last = *items.keys().next_back().expect("a new item was acknowledged");
    for (search, id) in searches.iter().flat_map(|search| items.values().map(move |id| (search, id))) {
        let began = Instant::now();
        let route = format!("GET /items/{id}?at_least={last}");
        let answer = loop {
            match ask(&search.address, &route, "") {
                Some((409 | 503, _)) if began.elapsed() < DEADLINE => sleep(Duration::from_millis(100)),
                answer => break answer,
            }
        };
        assert!(matches!(answer, Some((200, _))), "{id}: {answer:?}");
    }
    let rounds = std::fs::read_dir(running.state().join("rounds")).unwrap();
    let shops = rounds.map(|round| round.unwrap().path().join("shop")).filter(|shop| shop.exists());
    let round = DataFolder::open(&shops.max().unwrap()).unwrap();
    let known: BTreeSet<String> = round.items().unwrap().map(|item| item.unwrap().1.id).collect();
    let in_round: Vec<bool> = items.values().map(|id| known.contains(id)).collect();
    let num = in_round.iter().filter(|known| **known).count();
    assert!(num > 0 && in_round[..num].iter().all(|known| *known), "the round misses items: {in_round:?}");
    println!("{} new items are in both search processes, {num} were in the last round", items.len());
}

#[test]
fn the_training_loop_survives_faults() {
    let Some(servers) = Servers::from_env() else { return };
    let kills: u64 = std::env::var("SOUK_CHAOS_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let restarts = if kills >= LONG_FORM { 5 } else { 1 };
    let scene = Arc::new(if kills >= LONG_FORM { Scene::market() } else { Scene::small() });
    let runs = std::sync::Mutex::new(Vec::<(usize, EvaluationRun)>::new());
    for (kills, restarts) in [(kills, restarts), (0, 0)] {
        on_postgres("chaos test", async |url: String| {
            SqlLedger::migrate(&Address::new(&url)).await.unwrap();
            let (servers, scene) = (servers.clone(), scene.clone());
            // the calm run gets as many events as the attacked one
            let min_events = runs.lock().unwrap().last().map_or(MIN_EVENTS, |(num, _)| *num);
            let execute = move || {
                let home = scene.home();
                let running = Loop::new(home.path(), &servers, scene, kills, url);
                run(&running, kills, restarts, min_events)
            };
            // own thread: the run blocks on processes and starts its own runtimes
            let outcome = thread::spawn(execute).join();
            runs.lock().unwrap().push(outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        });
    }
    println!("{} requests to the judge were lost", scene.judge.num_lost());
    let runs = runs.into_inner().unwrap();
    compare(&runs[1].1, &runs[0].1);
}

/// Checks that the model served by the attacked run is as good as that of the calm run, on the same queries. The models
/// differ, because rounds begin at other moments with other examples, so the bound is a significance test. With 60
/// queries, seven worse and none better would exceed it.
fn compare(calm: &EvaluationRun, attacked: &EvaluationRun) {
    let metric = names(calm.metrics.asked.depth).iter().position(|name| name == "ndcg_linear@10").unwrap();
    let column = |run: &EvaluationRun| run.queries.iter().map(|query| query.values[metric]).collect::<Vec<_>>();
    let found = paired(&column(calm), &column(attacked), 1).unwrap();
    let [before, after] = [calm, attacked].map(|run| run.metrics.overall["ndcg_linear@10"].unwrap());
    println!(
        "nDCG@10 over {} queries: {after:.2} attacked, {before:.2} undisturbed (p = {:.2})",
        found.num_queries, found.p_randomised
    );
    assert!(found.difference >= 0.0 || found.p_randomised > 0.02, "significantly worse: {found:?}");
}
