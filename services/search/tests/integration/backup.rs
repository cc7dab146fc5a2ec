//! Backups under load, restored on an empty machine: the same items and the same answers, and writes go on.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souk::backup::{BackupContent, back_up, restore};
use souk::backups::Backups;
use souk::config::Config;
use souk_testing::databases::{ledger, on_postgres, on_sqlite, runtime, server_url, unique};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::client::{COLOURS, HttpResponse, NUM, Running, SERVERS, TIMEOUT, config, shop};

const IDS: usize = 50;
/// Changes before the backup, and after it.
const CHANGES: usize = 100;
const SEARCHES: usize = 1000;

#[test]
fn a_shop_on_sqlite_is_restored() {
    on_sqlite(async |url| {
        let sets = vec![format!("store.database={url}")];
        run(&sets, &[]).await;
    });
}

/// A copy of PostgreSQL goes to SQLite here; the other way is tested with the ledger.
#[test]
fn a_shop_on_postgresql_is_restored() {
    on_postgres("backup::a_shop_on_postgresql_is_restored", async |url| {
        ledger(&url).await;
        run(&[format!("store.database={url}")], &[]).await;
    });
}

#[test]
fn a_shop_with_a_kafka_topic_is_restored() {
    let Some(brokers) = server_url("KAFKA_BROKERS", "backup::a_shop_with_a_kafka_topic_is_restored", |_| true) else {
        return;
    };
    let topic = || format!("catalogue.topic={}", unique("souk-catalogue"));
    let brokers = format!("log.brokers={brokers}");
    let (lost, new) = (topic(), topic());
    runtime().block_on(async {
        // the topic is lost with the machine, or outlives it
        run(&[brokers.clone(), lost.clone()], &[brokers.clone(), new]).await;
        let kept = [brokers.clone(), topic()];
        run(&kept, &kept).await;
    });
}

/// Each acknowledged change of a writer: its position, the id, and the item, unless it was deleted.
type History = Vec<(u64, String, Option<Value>)>;

async fn run(sets: &[String], sets_after: &[String]) {
    let _up = SERVERS.read().await;
    let (home, new_home) = (shop(), tempfile::tempdir().unwrap());
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let service = Arc::new(Running::start(home.path(), &sets).await);
    let changes_left = Arc::new(AtomicUsize::new(usize::MAX));
    let writer = tokio::spawn(write(service.clone(), changes_left.clone()));
    let address = home.path().join("backups").to_string_lossy().into_owned();
    while usize::MAX - changes_left.load(Ordering::Relaxed) < CHANGES {
        sleep(Duration::from_millis(10)).await;
    }
    let under_load = backed_up(config(home.path(), &sets), &address).await;
    changes_left.store(CHANGES, Ordering::Relaxed);
    let history = writer.await.unwrap();
    let before = history.iter().filter(|(position, ..)| *position <= under_load.last_change()).count();
    assert!((1..history.len()).contains(&before), "{before} of {} changes before the backup", history.len());
    // restored from the backup under load
    let mut new_sets: Vec<&str> = sets_after.iter().map(String::as_str).collect();
    let (nowhere, no_model) = (new_home.path().join("no data"), new_home.path().join("no model"));
    let missing = [format!("search.data={}", nowhere.display()), format!("model.path={}", no_model.display())];
    new_sets.extend(missing.iter().map(String::as_str));
    let new_config = config(new_home.path(), &new_sets);
    restored(&new_config, &address).await.unwrap();
    let restored_service = Running::of(&new_config, "").await.unwrap();
    while restored_service.get("/readyz").await.status != 200 {
        sleep(Duration::from_millis(10)).await;
    }
    let is_kept = sets_after == sets;
    let last = if is_kept { history.len() } else { before };
    assert_eq!(items(&restored_service).await, expected(&history[..last]));
    assert_eq!(restored_service.service.serving.served().record().version, "first");
    if !is_kept {
        // the same shop in both, at the same state
        for (_, id, item) in &history[before..] {
            change(&restored_service, id, item.as_ref()).await;
        }
    }
    answers_alike(&service, &restored_service).await;
    let again = restored(&new_config, &address).await.unwrap_err().to_string();
    assert!(again.contains("another process serves from"), "{again}");
    restored_service.stop().await;
    let again = restored(&new_config, &address).await.unwrap_err().to_string();
    assert!(again.contains("has an index: give a new folder"), "{again}");
    begins_from_backup(home.path(), &sets, &address, &service).await;
    if !is_kept {
        refuses_a_used_topic(&new_sets, &address).await;
        let state = format!("search.state={}", home.path().join("second").display());
        new_sets.push(&state);
        refuses_another_stream(&config(new_home.path(), &new_sets)).await;
    }
}

/// Both have the same hits for the same queries.
async fn answers_alike(service: &Running, restored: &Running) {
    for at in 0..SEARCHES {
        let query = format!("{} lamp number {}", COLOURS[at % COLOURS.len()], at % NUM);
        let body = json!({"query": query, "k": 10, "hybrid": at % 2 == 0});
        let [old, new] = [service, restored].map(|running| running.ask("POST /search", body.clone()));
        let [old, new] = [scored(&old.await), scored(&new.await)];
        assert!(old.len() == 10 && old.len() == new.len(), "{query}");
        for ((old, old_score), (new, new_score)) in old.into_iter().zip(new) {
            // a text is encoded among others here and there
            assert!(
                old == new && (old_score - new_score).abs() < 1e-5,
                "{query}: {old} {old_score}, {new} {new_score}"
            );
        }
    }
}

/// If the restored shop has a topic, it has the restored changes now, which another restored shop must not take for its own.
async fn refuses_a_used_topic(sets: &[&str], address: &str) {
    if sets.iter().any(|set| set.starts_with("catalogue.topic")) {
        let home = tempfile::tempdir().unwrap();
        let error = restored(&config(home.path(), sets), address).await.unwrap_err().to_string();
        assert!(error.contains("name the topic of the backup, or a new one"), "{error}");
    }
}

/// A replica of the lost shop does not follow the restored one, whose next changes are others.
async fn refuses_another_stream(config: &Config) {
    let lost = Running::of(config, "").await.unwrap();
    let began = Instant::now();
    loop {
        let ready = lost.get("/readyz").await;
        if ready.status == 503 && ready.body.contains("was replaced by another one") {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "{}", ready.body);
        sleep(Duration::from_millis(10)).await;
    }
    lost.stop().await;
}

/// A new replica begins with the newest backup, without the data folder, and follows the stream from there.
async fn begins_from_backup(home: &Path, sets: &[&str], address: &str, service: &Running) {
    let state = format!("search.state={}", home.join("second").display());
    let backups = format!("search.backups={address}");
    let mut sets = sets.to_vec();
    sets.extend([state.as_str(), backups.as_str(), "search.data=nowhere"]);
    let second = Running::start(home, &sets).await;
    assert!(second.service.serving.served().record().path.starts_with(home.join("second").to_str().unwrap()));
    let put = service.ask("PUT /items", json!({"items": [{"id": "late", "title": "late lamp"}]})).await.json();
    let route = format!("/items/late?at_least={}", put["catalogue"]);
    assert_eq!(second.get(&route).await.status, 200);
    assert_eq!(items(&second).await, items(service).await);
    second.stop().await;
}

async fn backed_up(config: Config, address: &str) -> BackupContent {
    let backups = Backups::new(address);
    spawn_blocking(move || back_up(&config, &backups, &runtime()).unwrap().content).await.unwrap()
}

async fn restored(config: &Config, address: &str) -> souk::Result<BackupContent> {
    let (config, backups) = (config.clone(), Backups::new(address));
    spawn_blocking(move || restore(&config, &backups.newest()?.unwrap(), &runtime())).await.unwrap()
}

/// Hits of a search without their scores, and these.
fn scored(answer: &HttpResponse) -> Vec<(Value, f64)> {
    let hits = answer.json()["hits"].as_array().unwrap().clone().into_iter();
    hits.map(|mut hit| {
        let score = hit["score"].take().as_f64().unwrap();
        (hit, score)
    })
    .collect()
}

/// Puts and deletes items until no change is left.
async fn write(service: Arc<Running>, changes_left: Arc<AtomicUsize>) -> History {
    let mut history = History::new();
    for number in 0.. {
        if changes_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            break;
        }
        let id = format!("w{}", number % IDS);
        let item = (number % 7 != 3).then(|| json!({"id": id, "title": format!("lamp {number}"), "price": number}));
        let position = change(&service, &id, item.as_ref()).await;
        history.extend(position.map(|position| (position, id, item)));
    }
    history
}

/// Makes a change; returns its position, or None if the item to delete was not there.
async fn change(service: &Running, id: &str, item: Option<&Value>) -> Option<u64> {
    let answer: HttpResponse = match item {
        Some(item) => service.ask("PUT /items", json!({"items": [item]})).await,
        None => service.ask_with(&format!("DELETE /items/{id}"), "", b"").await,
    };
    if item.is_none() && answer.status == 404 {
        return None;
    }
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["catalogue"].as_u64()
}

fn expected(history: &[(u64, String, Option<Value>)]) -> BTreeMap<String, Value> {
    let mut items = BTreeMap::new();
    for (_, id, item) in history {
        match item {
            Some(item) => drop(items.insert(id.clone(), item["title"].clone())),
            None => drop(items.remove(id)),
        }
    }
    items
}

/// Titles of the writer's items.
async fn items(service: &Running) -> BTreeMap<String, Value> {
    let page = service.get("/items?limit=1000").await.json();
    let items = page["items"].as_array().unwrap().iter();
    let of_writer = items.filter(|item| item["id"].as_str().unwrap().starts_with('w'));
    of_writer.map(|item| (item["id"].as_str().unwrap().to_owned(), item["title"].clone())).collect()
}

#[test]
fn damage_and_wrong_addresses_are_named() {
    runtime().block_on(async {
        let (home, new_home) = (shop(), tempfile::tempdir().unwrap());
        let service = Running::start(home.path(), &[]).await;
        let address = home.path().join("backups").to_string_lossy().into_owned();
        backed_up(config(home.path(), &[]), &address).await;
        service.stop().await;
        let backup = fs::read_dir(&address).unwrap().next().unwrap().unwrap().path();
        let ledger = backup.join("files/ledger/ledger.jsonl");
        let whole = fs::read(&ledger).unwrap();
        let mut damaged = whole.clone();
        damaged[20] ^= 1;
        fs::write(&ledger, &damaged).unwrap();
        let new = config(new_home.path(), &[]);
        let error = restored(&new, &address).await.unwrap_err().to_string();
        assert!(error.contains("ledger.jsonl") && error.contains("is damaged"), "{error}");
        fs::write(&ledger, &whole).unwrap();
        let topic = config(new_home.path(), &["log.brokers=127.0.0.1:9", "catalogue.topic=other"]);
        let error = restored(&topic, &address).await.unwrap_err().to_string();
        assert!(error.contains("the changes in the backup are in the ledger"), "{error}");
        restored(&new, &address).await.unwrap();
        let occupied = config(new_home.path(), &[&format!("search.state={}", new_home.path().join("other").display())]);
        let error = restored(&occupied, &address).await.unwrap_err().to_string();
        assert!(error.contains("restore into a new database"), "{error}");
        assert!(Running::of(&new, "").await.is_ok());
    });
}
