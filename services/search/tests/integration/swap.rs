//! Swaps: promoting a version builds its index while requests and changes continue; versions that must not be served
//! are rejected; a rollback is one call.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::client::{HttpResponse, NUM, Running, TIMEOUT, config, golden, shop};
use serde_json::{Value, json};
use souk::beir::DataFolder;
use souk::index::{IndexSettings, Snapshot};
use souk::store::VersionState;
use souk_testing::copy_folder;
use tokio::time::{Instant, sleep};

fn report() -> Value {
    json!({"split": "test", "overall": {"ndcg@10": 50.0}})
}

impl Running {
    async fn register(&self, version: &str, model: &str, with_report: bool) {
        let mut body = json!({"version": version, "path": golden(model)});
        if with_report {
            body["report"] = report();
        }
        let answer = self.ask("POST /models", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// Promotes a version and waits until it is served.
    async fn promote(&self, version: &str) {
        let answer = self.ask(&format!("POST /models/{version}/promote"), json!({})).await;
        assert!(matches!(answer.status, 200 | 202), "{}", answer.body);
        self.until_served(version).await;
    }

    async fn until_served(&self, version: &str) {
        let began = Instant::now();
        while self.service.serving.served().record().version != version {
            assert!(began.elapsed() < TIMEOUT, "{version} is not served: {}", self.get("/models").await.body);
            sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promotes_under_load_and_rolls_back() {
    let home = shop();
    let running = Arc::new(Running::start(home.path(), &[]).await);
    running.register("second", "st_cls", true).await;
    let (stop, num) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..3)
        .map(|at| {
            let (running, stop, num) = (running.clone(), stop.clone(), num.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let answer = running.ask("POST /search", json!({"query": format!("lamp {at}"), "k": 3})).await;
                    if answer.status == 429 {
                        // a small machine that builds at the same time may answer 429
                        sleep(Duration::from_millis(5)).await;
                        continue;
                    }
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    let found = answer.json();
                    // model and index always belong together
                    let (model, index) = (found["model"].as_str().unwrap(), found["index"].as_str().unwrap());
                    assert!(index.starts_with(model), "{model} {index}");
                    assert_eq!(found["hits"].as_array().unwrap().len(), 3);
                    num.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let writing = {
        let running = running.clone();
        tokio::spawn(async move {
            for number in 0..20 {
                let item = json!({"id": format!("w{number}"), "title": format!("written {number}")});
                assert_eq!(running.ask("PUT /items", json!({"items": [item]})).await.status, 200);
            }
        })
    };
    running.promote("second").await;
    writing.await.unwrap();
    let rolled = running.ask("POST /models/rollback", json!({"version": "second"})).await;
    assert!(matches!(rolled.status, 200 | 202), "{}", rolled.body);
    running.until_served("first").await;
    let again = running.ask("POST /models/rollback", json!({"version": "second"})).await;
    assert!(again.status == 409 && again.body.contains("`second` is not live"), "{}", again.body);
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
    assert!(num.load(Ordering::Relaxed) > 10);
    // changes written while the other version was served are present
    assert_eq!(running.get("/fields").await.json()["num_items"].as_u64(), Some(NUM as u64 + 20));
    assert_eq!(running.ids(json!({"query": "written 7", "k": 1, "hybrid": {"dense": 0}})).await, ["w7"]);
    let beside = running
        .ask("POST /search", json!({"query": "written 7", "k": 1, "hybrid": {"dense": 0}, "model": "second"}))
        .await
        .json();
    assert_eq!(beside["hits"][0]["id"], "w7");
    let again = running.ask("POST /models/second/promote", json!({})).await;
    assert_eq!(again.status, 409, "a version that was rolled back cannot be promoted again: {}", again.body);
    let models = running.get("/models").await.json();
    assert_eq!(
        (models["served"]["version"].as_str(), models["versions"][0]["state"].as_str()),
        (Some("first"), Some("rolled_back"))
    );
}

/// Offers a version as a trainer does.
async fn offer(running: &Running, version: &str, model: &Path, passed: bool) {
    offer_at(running, version, model, model, passed).await;
}

/// Offers a model as if it were in another folder.
async fn offer_at(running: &Running, version: &str, model: &Path, folder: &Path, passed: bool) {
    let ledger = running.service.registry.ledger().await.unwrap();
    let fingerprint = running.service.serving.fingerprint(&model.to_string_lossy()).unwrap();
    let (path, metrics) = (folder.display().to_string(), json!({"gate": {"passed": passed}}));
    let (version, parent) = (version.to_owned(), None);
    let new = souk::store::NewVersion { version: version.clone(), path, fingerprint, parent, metrics };
    ledger.add_version(&new).await.unwrap();
    ledger.add_report(&version, "test", &report()).await.unwrap();
}

async fn state_of(running: &Running, version: &str) -> VersionState {
    let ledger = running.service.registry.ledger().await.unwrap();
    ledger.version(version).await.unwrap().unwrap().state
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_offered_versions_but_not_rolled_back_ones() {
    let home = shop();
    let running = Running::start(home.path(), &["search.registry_seconds=1"]).await;
    offer(&running, "refused", &golden("st_max"), false).await;
    offer(&running, "passed", &golden("st_cls"), true).await;
    running.until_served("passed").await;
    let rolled = running.ask("POST /models/rollback", json!({})).await;
    assert!(matches!(rolled.status, 200 | 202), "{}", rolled.body);
    running.until_served("first").await;
    // weights that differ from the offered ones are rejected permanently
    let folder = home.path().join("shuffled");
    copy_folder(&golden("st_cls"), &folder);
    offer(&running, "shuffled", &folder, true).await;
    fs::remove_dir_all(&folder).unwrap();
    copy_folder(&golden("st_max"), &folder);
    let began = Instant::now();
    while state_of(&running, "shuffled").await != VersionState::Rejected {
        assert!(began.elapsed() < TIMEOUT, "{}", running.get("/models").await.body);
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(running.service.serving.served().record().version, "first");
    assert_eq!(state_of(&running, "passed").await, VersionState::RolledBack);
    assert_eq!(state_of(&running, "refused").await, VersionState::Candidate);
    // a folder that this replica cannot see for a while
    let unseen = home.path().join("unseen");
    offer_at(&running, "unseen", &golden("st_last"), &unseen, true).await;
    let began = Instant::now();
    while !running.get("/metrics").await.body.contains("souk_version_failing 1") {
        assert!(began.elapsed() < TIMEOUT, "{}", running.get("/models").await.body);
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(state_of(&running, "unseen").await, VersionState::Candidate, "the others may see it");
    copy_folder(&golden("st_last"), &unseen);
    running.until_served("unseen").await;
    offer(&running, "next", &golden("st_last"), true).await;
    running.until_served("next").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_unmeasured_and_changed_models() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    running.register("unmeasured", "st_cls", false).await;
    let refused = running.ask("POST /models/unmeasured/promote", json!({})).await;
    assert_eq!(refused.status, 409);
    assert!(refused.error()["message"].as_str().unwrap().contains("no report"));
    // following the advice in the error works, if there is a new report
    let again = json!({"version": "unmeasured", "path": golden("st_cls")});
    assert_eq!(running.ask("POST /models", again.clone()).await.status, 409, "no report to add");
    let mut other = json!({"version": "unmeasured", "path": golden("st_max"), "report": report()});
    assert_eq!(running.ask("POST /models", other.clone()).await.status, 409, "another model under the same name");
    other["path"] = again["path"].clone();
    let given = running.ask("POST /models", other).await;
    assert_eq!((given.status, &given.json()["report"]["metrics"]), (200, &report()), "{}", given.body);
    // a folder whose weights differ from the registered ones
    let folder = home.path().join("copied");
    copy_folder(&golden("st_cls"), &folder);
    let body = json!({"version": "changed", "path": folder, "report": report()});
    assert_eq!(running.ask("POST /models", body).await.status, 200);
    fs::remove_dir_all(&folder).unwrap();
    copy_folder(&golden("st_max"), &folder);
    let refused = running.ask("POST /models/changed/promote", json!({})).await;
    let message = refused.error()["message"].as_str().unwrap().to_owned();
    assert!(refused.status == 409 && message.contains("was registered as model"), "{message}");
    assert_eq!(running.service.serving.served().record().version, "first");
    running.stop().await;
}

/// A model whose folder is not read to the end before `release`: one of its files is a pipe.
struct SlowModel {
    folder: PathBuf,
    pipe: PathBuf,
    aside: PathBuf,
}

impl SlowModel {
    fn new(home: &Path, model: &str) -> Self {
        let folder = home.join("slow-model");
        copy_folder(&golden(model), &folder);
        Self { folder, pipe: home.join("pipe"), aside: home.join("aside") }
    }

    /// Registers it as a version and begins to promote it. An assertion that fails before `release` would hang.
    async fn promote(&self, running: &Running, version: &str) -> HttpResponse {
        let body = json!({"version": version, "path": self.folder, "report": report()});
        assert_eq!(running.ask("POST /models", body).await.status, 200);
        fs::rename(self.file(), &self.aside).unwrap();
        assert!(Command::new("mkfifo").arg(&self.pipe).status().unwrap().success());
        fs::hard_link(&self.pipe, self.file()).unwrap();
        running.ask(&format!("POST /models/{version}/promote"), json!({})).await
    }

    fn release(&self) {
        let text = fs::read(&self.aside).unwrap();
        fs::rename(&self.aside, self.file()).unwrap();
        fs::write(&self.pipe, text).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.join("config.json")
    }
}

/// A rollback does not wait for a build, and reverts the version that was served when it was requested.
#[tokio::test(flavor = "multi_thread")]
async fn rollback_does_not_wait_for_a_build() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    running.register("second", "st_cls", true).await;
    running.promote("second").await;
    let slow = SlowModel::new(home.path(), "st_max");
    let building = slow.promote(&running, "third").await;
    let refused = running.ask("POST /models/third/promote", json!({})).await;
    let rolled = running.ask("POST /models/rollback", json!({})).await;
    let served = running.service.serving.served();
    slow.release();
    assert_eq!((building.status, building.json()["building"]["version"].as_str()), (202, Some("third")));
    assert!(refused.status == 409 && refused.body.contains("is being promoted"), "{}", refused.body);
    assert_eq!((rolled.status, rolled.json()["served"]["version"].as_str()), (200, Some("first")), "{}", rolled.body);
    assert_eq!(served.record().version, "first");
    running.until_served("third").await;
    let states = running.get("/models").await.json()["versions"].clone();
    assert_eq!((&states[0]["state"], &states[1]["state"]), (&json!("promoted"), &json!("rolled_back")));
    running.stop().await;
}

/// New snapshots and the gauges do not wait for a build, which still finds all it needs.
#[tokio::test(flavor = "multi_thread")]
async fn maintenance_does_not_wait_for_a_build() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let slow = SlowModel::new(home.path(), "st_max");
    let building = slow.promote(&running, "second").await.status;
    let put = async |prefix: &str| {
        let items = (0..1000).map(|i| json!({"id": format!("{prefix}{i}"), "title": format!("{prefix} {i}")}));
        running.ask("PUT /items", json!({"items": items.collect::<Vec<_>>()})).await.status
    };
    let began = Instant::now();
    let (serving, mut statuses) = (&running.service.serving, Vec::new());
    let snapshots = || serving.served().record().snapshot.clone();
    for prefix in ["sofa", "rug"] {
        let before = snapshots();
        statuses.push(put(prefix).await);
        while snapshots() == before && began.elapsed() < TIMEOUT {
            sleep(Duration::from_millis(20)).await;
        }
    }
    let (changed, is_building) = (serving.num_changed(), serving.build_progress().is_some());
    let total = format!("souk_index_items {}\n", NUM + 2000);
    // other services of this process set the gauge, too
    let mut is_counted = false;
    while !is_counted && began.elapsed() < TIMEOUT {
        is_counted = running.get("/metrics").await.body.contains(&total);
    }
    slow.release();
    assert_eq!((building, statuses, changed, is_building, is_counted), (202, vec![200, 200], 0, true, true));
    running.until_served("second").await;
    assert_eq!(running.get("/fields").await.json()["num_items"].as_u64(), Some(NUM as u64 + 2000));
    assert_eq!(running.ids(json!({"query": "rug 7", "k": 1, "hybrid": {"dense": 0}})).await, ["rug7"]);
    running.stop().await;
}

/// A rollback changes nothing unless this replica can serve the version to go back to.
#[tokio::test(flavor = "multi_thread")]
async fn rollback_to_a_missing_model_changes_nothing() {
    let home = shop();
    let (folder, aside) = (home.path().join("first-model"), home.path().join("aside"));
    copy_folder(&golden("st_mean_dense"), &folder);
    let model = format!("model.path={}", folder.display());
    let running = Running::start(home.path(), &[&model]).await;
    running.register("second", "st_cls", true).await;
    running.promote("second").await;
    running.stop().await;
    // a replica that has no index of the first version, and cannot see its model for a while
    fs::remove_dir_all(home.path().join("state/generations/first-1")).unwrap();
    fs::rename(&folder, &aside).unwrap();
    let running = Running::start(home.path(), &[&model]).await;
    let refused = running.ask("POST /models/rollback", json!({})).await;
    assert!(refused.status == 409 && refused.body.contains("first-model"), "{} {}", refused.status, refused.body);
    assert_eq!(state_of(&running, "second").await, VersionState::Promoted);
    assert_eq!(running.get("/models").await.json()["served"]["version"], "second");
    fs::rename(&aside, &folder).unwrap();
    let rolled = running.ask("POST /models/rollback", json!({})).await;
    assert!(matches!(rolled.status, 200 | 202), "{}", rolled.body);
    running.until_served("first").await;
    running.stop().await;
}

/// After a restart, the version served last is served, whatever the configuration says; an index of another model is an
/// error that names both.
#[tokio::test(flavor = "multi_thread")]
async fn restart_serves_the_last_version_and_checks_its_model() {
    let home = shop();
    let folder = home.path().join("second-model");
    copy_folder(&golden("st_cls"), &folder);
    {
        let running = Running::start(home.path(), &[]).await;
        let body = json!({"version": "second", "path": folder, "report": report()});
        assert_eq!(running.ask("POST /models", body).await.status, 200);
        running.promote("second").await;
        let item = json!({"id": "w", "title": "written"});
        assert_eq!(running.ask("PUT /items", json!({"items": [item]})).await.status, 200);
        let busy = Running::of(&config(home.path(), &[]), "").await.err().unwrap();
        assert!(format!("{busy:#}").contains("another process serves from"), "{busy:#}");
        running.stop().await;
    }
    let running = Running::start(home.path(), &[]).await;
    assert_eq!(running.service.serving.served().record().version, "second");
    assert_eq!(running.ids(json!({"query": "written", "k": 1, "hybrid": {"dense": 0}})).await, ["w"]);
    running.stop().await;
    fs::remove_dir_all(&folder).unwrap();
    copy_folder(&golden("st_max"), &folder);
    let refused = Running::of(&config(home.path(), &[]), "").await.err().unwrap();
    let message = format!("{refused:#}");
    assert!(message.contains("was built by model") && message.contains("holds model"), "{message}");
}

/// A changed encoder is detected even if its files are the same.
#[tokio::test(flavor = "multi_thread")]
async fn canaries_detect_a_changed_encoder() {
    let home = shop();
    Running::start(home.path(), &[]).await.stop().await;
    let record = home.path().join("state/generations/first-1/generation.json");
    let mut text: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let vector = text["canaries"][0]["vector"].as_array_mut().unwrap();
    vector.rotate_left(1);
    fs::write(&record, text.to_string()).unwrap();
    let refused = Running::of(&config(home.path(), &[]), "").await.err().unwrap();
    assert!(format!("{refused:#}").contains("gives another vector"), "{refused:#}");
}

/// Enough changes trigger a new snapshot with the same answers, and the journal is trimmed.
#[tokio::test(flavor = "multi_thread")]
async fn changed_snapshot_is_rebuilt_while_served() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    for from in (0..1200).step_by(400) {
        let items: Vec<Value> =
            (from..from + 400).map(|i| json!({"id": format!("n{i}"), "title": format!("new thing {i}")})).collect();
        assert_eq!(running.ask("PUT /items", json!({"items": items})).await.status, 200);
    }
    let before = running.ids(json!({"query": "new thing 777", "k": 5})).await;
    let began = Instant::now();
    while running.service.serving.num_changed() > 0 {
        assert!(began.elapsed() < TIMEOUT, "no new snapshot was made");
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(running.ids(json!({"query": "new thing 777", "k": 5})).await, before);
    assert_eq!(running.service.serving.served().record().catalogue, 1200);
    running.stop().await;
    // cleanup after the rebuild may still hold the folder's lock
    let running = loop {
        match Running::of(&config(home.path(), &[]), "").await {
            Ok(running) => break running,
            Err(error) => {
                assert!(format!("{error:#}").contains("another process") && began.elapsed() < TIMEOUT, "{error:#}")
            }
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(running.get("/fields").await.json()["num_items"].as_u64(), Some(NUM as u64 + 1200));
    running.stop().await;
}

/// Promotes a model with a prebuilt index in which every item has the first axis as its vector; returns the items that
/// got it.
async fn promoted_with_prebuilt_index(same_model: bool) -> Vec<String> {
    let home = shop();
    let model = home.path().join("ahead");
    assert!(Command::new("cp").arg("-r").arg(golden("st_cls")).arg(&model).status().unwrap().success());
    let set = format!("model.path={}", model.display());
    let encoder = config(home.path(), &[&set]).open_encoder().unwrap().for_search().unwrap().freeze().unwrap();
    let (mut made_by, dimensions) = (encoder.fingerprint().unwrap(), encoder.dimensions());
    let mut axis = vec![0.0; dimensions as usize];
    axis[0] = 1.0;
    if !same_model {
        made_by = "another".into();
    }
    let mut builder = Snapshot::builder(&model.join("index"), made_by, dimensions, IndexSettings::default()).unwrap();
    for item in DataFolder::open(&home.path().join("data")).unwrap().items().unwrap() {
        builder.add(&item.unwrap().1, &axis).unwrap();
    }
    builder.write(&mut |_| ()).unwrap();
    let running = Running::start(home.path(), &[]).await;
    let changed = json!({"id": "i7", "title": "a boat"});
    assert_eq!(running.ask("PUT /items", json!({"items": [changed]})).await.status, 200);
    let body = json!({"version": "second", "path": model, "report": report()});
    assert_eq!(running.ask("POST /models", body).await.status, 200);
    running.promote("second").await;
    let found = running.ask("POST /search", json!({"vector": axis, "k": NUM})).await.json();
    let hits = found["hits"].as_array().unwrap();
    assert_eq!(hits.len(), NUM);
    let at_axis = hits.iter().filter(|hit| hit["score"].as_f64() > Some(0.999));
    let at_axis = at_axis.map(|hit| hit["id"].as_str().unwrap().to_owned()).collect();
    running.stop().await;
    at_axis
}

#[tokio::test(flavor = "multi_thread")]
async fn prebuilt_vectors_are_used_for_unchanged_items() {
    let found = promoted_with_prebuilt_index(true).await;
    assert_eq!(found.len(), NUM - 1);
    assert!(!found.contains(&"i7".to_owned()), "its text has changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn prebuilt_vectors_of_another_model_are_ignored() {
    assert!(promoted_with_prebuilt_index(false).await.is_empty());
}
