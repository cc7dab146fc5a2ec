//! Three replicas behind one stream of catalogue changes, killed, replaced from backups and written to all the time, while the broker or
//! the database is restarted. Every acknowledged change is in every replica in the end, and searches never fail.
//! SOUK_KILLS and SOUK_CHANGES set the size; `make soak` runs the long form.

#![expect(clippy::print_stdout, reason = "the proofs are printed")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::{Process, SERVERS, config, shop, try_ask};
use serde_json::{Value, json};
use souk::backup::back_up;
use souk::backups::Backups;
use souk_testing::databases::{ledger, on_postgres, runtime, server_url, unique};
use tokio::time::sleep;

const REPLICAS: usize = 3;
const WRITERS: usize = 4;
/// Ids of each writer.
const IDS: usize = 40;
/// Fewest changes after the last kill.
const QUIET_CHANGES: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn replicas_on_postgresql_lose_nothing() {
    on_postgres("replicas::replicas_on_postgresql_lose_nothing", async |url| {
        ledger(&url).await;
        run(vec![format!("store.database={url}")], "postgres").await;
    });
}

#[test]
fn replicas_on_kafka_lose_nothing() {
    let Some(brokers) = server_url("KAFKA_BROKERS", "replicas::replicas_on_kafka_lose_nothing", |_| true) else {
        return;
    };
    let sets = vec![format!("log.brokers={brokers}"), format!("catalogue.topic={}", unique("souk-catalogue"))];
    runtime().block_on(run(sets, "kafka"));
}

/// The shop, its running replicas, and what was acknowledged.
struct Scene {
    home: PathBuf,
    sets: Vec<String>,
    replicas: Vec<Mutex<Option<Process>>>,
    /// Each id's acknowledged item, or None if it was deleted; ids with a write in flight are missing.
    acknowledged: Mutex<BTreeMap<String, Option<Value>>>,
    last: Mutex<u64>,
    num_changes: AtomicUsize,
    num_searches: AtomicUsize,
    /// Times from an answered write at one replica until another one sees it, while nothing is killed.
    delays: Mutex<Vec<Duration>>,
    is_quiet: AtomicBool,
    is_over: AtomicBool,
}

async fn run(sets: Vec<String>, service: &str) {
    let home = shop();
    let [kills, changes] = [("SOUK_KILLS", 6), ("SOUK_CHANGES", 600)]
        .map(|(name, default)| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default));
    let scene = Arc::new(Scene {
        home: home.path().into(),
        sets,
        replicas: (0..REPLICAS).map(|_| Mutex::default()).collect(),
        acknowledged: Mutex::default(),
        last: Mutex::default(),
        num_changes: AtomicUsize::new(0),
        num_searches: AtomicUsize::new(0),
        delays: Mutex::default(),
        is_quiet: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    });
    (0..REPLICAS).for_each(|replica| scene.start(replica));
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(scene.clone(), writer))).collect();
    let searcher = tokio::spawn(search(scene.clone()));
    for kill in 0..kills {
        sleep(Duration::from_millis(300 + (kill as u64 * 7919) % 700)).await;
        let scene = scene.clone();
        let restart = (kill == kills / 2).then(|| service.to_owned());
        tokio::task::spawn_blocking(move || scene.disturb(kill, restart.as_deref())).await.unwrap();
    }
    // the one that was restarted last reads what it missed
    let last = *scene.last.lock().unwrap();
    for replica in 0..REPLICAS {
        list(&scene, replica, last).await;
    }
    scene.is_quiet.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let changes = changes.max(scene.num_changes.load(Ordering::Relaxed) + QUIET_CHANGES);
    while scene.num_changes.load(Ordering::Relaxed) < changes {
        assert!(began.elapsed() < 10 * PATIENCE, "too few changes were acknowledged");
        sleep(Duration::from_millis(100)).await;
    }
    scene.is_over.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    searcher.await.unwrap();
    check(&scene).await;
    let [changes, searches] = [&scene.num_changes, &scene.num_searches].map(|count| count.load(Ordering::Relaxed));
    let mut delays = scene.delays.lock().unwrap().clone();
    delays.sort_unstable();
    let [half, most] = [50, 99].map(|percent| delays[(delays.len() - 1) * percent / 100]);
    println!(
        "{service}: {kills} kills, {changes} acknowledged changes, {searches} searches, all answered; {} reads from another \
         replica saw a write after {half:?} (p50), {most:?} (p99)",
        delays.len()
    );
}

impl Scene {
    fn state(&self, replica: usize) -> PathBuf {
        self.home.join(format!("replica-{replica}"))
    }

    /// Settings of a replica. With an empty state folder it begins with the newest backup.
    fn settings(&self, replica: usize) -> Vec<String> {
        let state = format!("search.state={}", self.state(replica).display());
        let backups = format!("search.backups={}", self.home.join("backups").display());
        self.sets.iter().cloned().chain([state, backups]).collect()
    }

    fn start(&self, replica: usize) {
        let settings = self.settings(replica);
        let sets: Vec<&str> = settings.iter().map(String::as_str).collect();
        let started = Process::start(&self.home, &sets, "");
        *self.replicas[replica].lock().unwrap() = Some(started);
    }

    /// Makes a backup beside a running replica.
    fn back_up(&self, replica: usize) {
        let settings = self.settings(replica);
        let config = config(&self.home, &settings.iter().map(String::as_str).collect::<Vec<_>>());
        let backups = Backups::new(config.search.backups.as_deref().unwrap());
        back_up(&config, &backups, &runtime()).unwrap();
    }

    /// Kills a replica, sometimes loses its disk, sometimes restarts the service that has the stream, and starts it again.
    fn disturb(&self, kill: usize, service: Option<&str>) {
        let replica = kill % REPLICAS;
        if kill % 5 == 3 {
            self.back_up((kill + 1) % REPLICAS);
        }
        let killed = self.replicas[replica].lock().unwrap().take();
        killed.unwrap().kill();
        if kill % 5 == 4 {
            std::fs::remove_dir_all(self.state(replica)).unwrap();
        }
        if let Some((service, services)) = service.and_then(|service| Some((service, started_by_tests(service)?))) {
            let _down = SERVERS.blocking_write();
            let script = souk_testing::repository().join("scripts/services.sh");
            let done = Command::new(script).args(["restart", service]).arg(services).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        self.start(replica);
    }

    /// Asks a running replica; None if it is killed before it answers.
    async fn ask(&self, replica: usize, route: &str, body: &Value) -> Option<crate::client::HttpResponse> {
        let address = self.replicas[replica % REPLICAS].lock().unwrap().as_ref()?.address;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        tokio::net::TcpStream::connect(address).await.ok()?;
        try_ask(address, route, body.as_bytes()).await
    }
}

/// Folder of the services, if this test run started this one.
fn started_by_tests(service: &str) -> Option<PathBuf> {
    let services = PathBuf::from(std::env::var_os("SOUK_SERVICES")?);
    services.join(service).exists().then_some(services)
}

/// Puts, updates and deletes its own ids through any replica.
async fn write(scene: Arc<Scene>, writer: usize) {
    let mut at = writer;
    for number in 0.. {
        if scene.is_over.load(Ordering::Relaxed) {
            return;
        }
        at += 1;
        let id = format!("w{writer}-{}", number % IDS);
        let before = scene.acknowledged.lock().unwrap().remove(&id);
        let title = format!("title {number} of {id}");
        let (route, body, after) = match (number / IDS % 4, before) {
            // the id's state is not known: only a whole item makes it so
            (1, Some(Some(mut item))) => {
                item["price"] = json!(number);
                (format!("PATCH /items/{id}"), json!({"price": number}), Some(item))
            }
            (2, Some(Some(_))) => (format!("DELETE /items/{id}"), Value::Null, None),
            _ => {
                let item = json!({"id": id, "title": title, "text": ""});
                ("PUT /items".into(), json!({"items": [item]}), Some(item))
            }
        };
        let Some(answer) = scene.ask(at, &route, &body).await else {
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        // the stream is away, or another replica has not seen the id yet
        if matches!(answer.status, 404 | 503 | 504) {
            sleep(Duration::from_millis(20)).await;
            continue;
        }
        assert_eq!(answer.status, 200, "{route}: {}", answer.body);
        let position = answer.json()["catalogue"].as_u64().unwrap();
        {
            let mut last = scene.last.lock().unwrap();
            *last = position.max(*last);
        }
        scene.acknowledged.lock().unwrap().insert(id.clone(), after.clone());
        scene.num_changes.fetch_add(1, Ordering::Relaxed);
        // read your own write from another replica
        let (asked, is_quiet) = (Instant::now(), scene.is_quiet.load(Ordering::Relaxed));
        if number % 8 == 0
            && let Some(read) = scene.ask(at + 1, &format!("GET /items/{id}?at_least={position}"), &Value::Null).await
        {
            if is_quiet && read.status != 409 {
                scene.delays.lock().unwrap().push(asked.elapsed());
            }
            match after {
                _ if read.status == 409 => assert!(!is_quiet, "{}", read.body),
                Some(item) => assert_eq!(read.json()["title"], item["title"], "{}", read.body),
                None => assert_eq!(read.status, 404, "{}", read.body),
            }
        }
    }
}

/// Every search is answered, by whichever replica runs.
async fn search(scene: Arc<Scene>) {
    let body = json!({"query": "red lamp", "k": 5});
    for at in 0.. {
        if scene.is_over.load(Ordering::Relaxed) {
            return;
        }
        if let Some(answer) = scene.ask(at, "POST /search", &body).await {
            assert!(answer.status == 200 || answer.status == 429, "{}: {}", answer.status, answer.body);
            scene.num_searches.fetch_add(1, Ordering::Relaxed);
        }
        sleep(Duration::from_millis(15)).await;
    }
}

/// All replicas, and a new one, have the same items, and these are the acknowledged ones.
async fn check(scene: &Arc<Scene>) {
    let (last, acknowledged) = (*scene.last.lock().unwrap(), scene.acknowledged.lock().unwrap().clone());
    let restarted = scene.clone();
    tokio::task::spawn_blocking(move || {
        drop(restarted.replicas[0].lock().unwrap().take());
        drop(std::fs::remove_dir_all(restarted.state(0)));
        restarted.start(0);
    })
    .await
    .unwrap();
    let mut catalogues = Vec::new();
    for replica in 0..REPLICAS {
        catalogues.push(list(scene, replica, last).await);
    }
    assert!(catalogues.windows(2).all(|pair| pair[0] == pair[1]), "the replicas differ");
    for (id, expected) in &acknowledged {
        assert_eq!(catalogues[0].get(id), expected.as_ref(), "{id}");
    }
    assert!(!acknowledged.is_empty());
}

/// All items of a replica that has this change.
async fn list(scene: &Scene, replica: usize, position: u64) -> BTreeMap<String, Value> {
    let (mut items, mut after, began) = (BTreeMap::new(), String::new(), Instant::now());
    loop {
        let route = format!("GET /items?at_least={position}&after={after}");
        let page = scene.ask(replica, &route, &Value::Null).await.unwrap();
        if page.status == 409 && began.elapsed() < PATIENCE {
            continue;
        }
        assert_eq!(page.status, 200, "{}", page.body);
        let page = page.json()["items"].as_array().unwrap().clone();
        let Some(last) = page.last() else { return items };
        after = last["id"].as_str().unwrap().to_owned();
        items.extend(page.into_iter().map(|item| (item["id"].as_str().unwrap().to_owned(), item)));
    }
}
