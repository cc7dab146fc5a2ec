//! The catalogue on several replicas: each follows one stream of changes from its own durable place.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use souk::catalogue_stream::Mutation;
use souk::telemetry::render;
use tokio::time::{Duration, sleep};

use crate::client::{NUM, Running, TIMEOUT, ledger_is_closed, shop};

/// Set in the process of a test that runs alone.
const ALONE: &str = "SOUK_TEST_ALONE";

/// Starts a replica with a state folder of its own; all of one home share the ledger.
async fn replica(home: &Path, name: &str, sets: &[&str]) -> Running {
    let state = format!("search.state={}", home.join(name).display());
    Running::start(home, &[&[state.as_str()], sets].concat()).await
}

async fn write(replica: &Running, method_and_path: &str, body: Value) -> u64 {
    let answer = replica.ask(method_and_path, body).await;
    assert_eq!(answer.status, 200, "{method_and_path}: {}", answer.body);
    answer.json()["catalogue"].as_u64().unwrap()
}

/// Texts that were encoded so far: those that were not in the cache.
fn num_encoded() -> f64 {
    let metrics = render();
    let line = metrics.lines().find(|line| line.starts_with("souk_search_cache_total{outcome=\"miss\"}"));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_replica_follows_the_changes_of_all() {
    let home = shop();
    let (first, second) = (replica(home.path(), "a", &[]).await, replica(home.path(), "b", &[]).await);
    write(&first, "PUT /items", json!({"items": [{"id": "n1", "title": "purple chandelier", "price": 9}]})).await;
    write(&second, "DELETE /items/i7", json!(null)).await;
    // read your own write from another replica
    let at = write(&first, "PATCH /items/n1", json!({"price": 8, "stock": 2})).await;
    let found = second.get(&format!("/items/n1?at_least={at}")).await.json();
    assert_eq!(
        (&found["title"], &found["price"], &found["stock"]),
        (&json!("purple chandelier"), &json!(8), &json!(2))
    );
    // the small model knows no English: terms decide
    let body = json!({"query": "purple chandelier", "k": 1, "hybrid": {"dense": 0.0, "lexical": 1.0}});
    let answer = second.ask(&format!("POST /search?at_least={at}"), body.clone()).await.json();
    assert_eq!((&answer["hits"][0]["id"], answer["catalogue"].as_u64()), (&json!("n1"), Some(at)));
    assert_eq!(first.get(&format!("/items/i7?at_least={at}")).await.status, 404);
    let early = second.ask(&format!("POST /search?at_least={}", at + 1), body.clone()).await;
    assert!(
        early.status == 409 && early.body.contains(&format!("at catalogue change {at}, not yet")),
        "{}",
        early.body
    );
    assert_eq!(second.ask("POST /search?at_leats=1", body.clone()).await.status, 400);

    // a replica that was away continues where it was, a new one begins with the data folder
    second.stop().await;
    let at = write(&first, "PATCH /items/i8", json!({"title": "green canoe", "price": null})).await;
    for name in ["b", "c"] {
        let other = replica(home.path(), name, &[]).await;
        let found = other.get(&format!("/items/i8?at_least={at}")).await.json();
        assert_eq!((&found["title"], found.get("price")), (&json!("green canoe"), None), "{found}");
        assert_eq!(other.ids(body.clone()).await, ["n1"]);
        let fields = other.get("/fields").await.json();
        assert_eq!(fields["num_items"].as_u64(), Some(NUM as u64));
        let ready = other.get("/readyz").await;
        assert_eq!((ready.status, &ready.json()["catalogue"]), (200, &json!(at)), "{}", ready.body);
        other.stop().await;
    }
    first.stop().await;
}

/// In a process of its own, because the counter is that of the process, and other tests encode, too.
#[test]
fn a_change_of_price_encodes_nothing() {
    let name = "catalogue::a_change_of_price_encodes_nothing";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let home = shop();
        let replica = replica(home.path(), "a", &[]).await;
        write(&replica, "PUT /items", json!({"items": [{"id": "new", "title": "green canoe"}]})).await;
        let before = num_encoded();
        for price in 0..5 {
            write(&replica, "PATCH /items/new", json!({"price": price})).await;
            write(&replica, "PATCH /items/i3", json!({"price": price})).await;
            let same_text = json!({"id": "i4", "title": "oak lamp number 4", "text": "for a desk", "price": price});
            write(&replica, "PUT /items", json!({"items": [same_text]})).await;
        }
        assert_eq!(num_encoded(), before);
        write(&replica, "PATCH /items/new", json!({"title": "red canoe"})).await;
        assert!(num_encoded() > before);
        replica.stop().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_are_checked() {
    let home = shop();
    let replica = replica(home.path(), "a", &[]).await;
    for (path, body, status, says) in [
        ("PATCH /items/none", json!({"price": 1}), 404, "no item `none`"),
        ("PATCH /items/i1", json!({"_id": "i2"}), 422, "`_id` cannot be updated"),
        ("PATCH /items/i1", json!({"title": 3}), 400, "expected a string"),
        ("PATCH /items/i1", json!({"_deleted": true}), 422, "`_deleted` cannot be a field"),
        ("PUT /items", json!({"items": [{"id": "i1", "_update": {}}]}), 422, "POST /items/bulk"),
        ("PATCH /items/i1", json!([1]), 400, ""),
    ] {
        let answer = replica.ask(path, body).await;
        assert!(answer.status == status && answer.body.contains(says), "{path}: {} {}", answer.status, answer.body);
    }
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_changes_are_written_and_listed() {
    let home = shop();
    // more lines than one write takes
    let replica = replica(home.path(), "a", &["search.bounds.max_items=3"]).await;
    let lines = [
        json!({"id": "n1", "title": "green canoe"}),
        json!({"id": "i10", "_deleted": true}),
        json!({"_id": "i11", "_update": {"price": 1.5}}),
        json!({"id": "i12", "title": "a boat"}),
    ];
    let body = lines.map(|line| line.to_string()).join("\n");
    let answer = replica.ask_with("POST /items/bulk", "", body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let counts = ["put", "updated", "deleted"].map(|name| answer.json()[name].as_u64().unwrap());
    assert_eq!(counts, [2, 1, 1]);
    let at = answer.json()["catalogue"].as_u64().unwrap();
    let (mut listed, mut after) = (Vec::new(), String::new());
    loop {
        let page = replica.get(&format!("/items?limit=7&at_least={at}&after={after}")).await.json();
        let items = page["items"].as_array().unwrap().clone();
        let Some(last) = items.last() else { break };
        after = last["id"].as_str().unwrap().to_owned();
        listed.extend(items);
    }
    let ids: Vec<&str> = listed.iter().map(|item| item["id"].as_str().unwrap()).collect();
    let mut expected: Vec<String> = (0..NUM).filter(|i| *i != 10).map(|i| format!("i{i}")).collect();
    expected.push("n1".into());
    expected.sort_unstable();
    assert_eq!(ids, expected);
    let item = |id: &str| listed.iter().find(|item| item["id"] == id).unwrap();
    assert_eq!((&item("i11")["price"], &item("i12")["title"]), (&json!(1.5), &json!("a boat")));
    for (body, status, says) in [
        ("{\"id\": \"a\"}\n{", 400, "line 2"),
        ("{\"title\": \"a\"}", 400, "line 1"),
        ("{\"id\": \"a\", \"_update\": {\"id\": \"b\"}}", 422, "cannot be updated"),
    ] {
        let answer = replica.ask_with("POST /items/bulk", "", body.as_bytes()).await;
        assert!(answer.status == status && answer.body.contains(says), "{body}: {}", answer.body);
    }
    assert_eq!(replica.get("/items?limit=0").await.status, 422);
    replica.stop().await;
}

/// A change that this model or index cannot take does not stop the ones after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_the_index_rejects_is_skipped() {
    let home = shop();
    let replica = replica(home.path(), "a", &[]).await;
    let ledger = replica.service.registry.ledger().await.unwrap();
    let put = |line: &str| Mutation::parse(line.as_bytes(), Path::new("test"), 1).unwrap();
    // another process wrote this without checks: no tokenizer takes more text at once
    let changes = [put(r#"{"_id":"n1","title":"green canoe"}"#), put(r#"{"_id":"none","_update":{"price":3}}"#)];
    let at = ledger.append_changes(&changes).await.unwrap();
    assert_eq!(replica.get(&format!("/items/n1?at_least={at}")).await.json()["title"], "green canoe");
    assert_eq!(replica.get("/items/none").await.status, 404, "there was nothing to update");
    replica.stop().await;
}

/// A stream that cannot continue this replica's catalogue is named, and the replica is not ready. Searches go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stream_is_named() {
    let home = shop();
    let sets = ["search.max_behind_seconds=1"];
    let running = replica(home.path(), "a", &sets).await;
    write(&running, "PUT /items", json!({"items": [{"id": "n0", "title": "red canoe"}]})).await;
    running.stop().await;
    ledger_is_closed(home.path()).await;
    // an administrator's copy of the database, put back after a write
    let copy = home.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    let put_back = |from: &Path, to: &Path| {
        for file in ["souk.db", "souk.db-wal", "souk.db-shm"] {
            drop(std::fs::remove_file(to.join(file)));
            drop(std::fs::copy(from.join(file), to.join(file)));
        }
    };
    put_back(home.path(), &copy);
    let running = replica(home.path(), "a", &sets).await;
    write(&running, "PUT /items", json!({"items": [{"id": "n1", "title": "green canoe"}]})).await;
    running.stop().await;
    ledger_is_closed(home.path()).await;
    put_back(&copy, home.path());
    let running = replica(home.path(), "a", &sets).await;
    let began = Instant::now();
    let ready = loop {
        let ready = running.get("/readyz").await;
        if ready.body.contains("ends at") {
            break ready;
        }
        assert!(began.elapsed() < TIMEOUT, "{}", ready.body);
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(ready.status, 503);
    // the new stream grows beyond this replica's position, with other changes
    let ledger = running.service.registry.ledger().await.unwrap();
    let other = [Mutation::Delete("i1".into()), Mutation::Delete("i2".into()), Mutation::Delete("i3".into())];
    assert_eq!(ledger.append_changes(&other).await.unwrap(), 4);
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(running.get("/readyz").await.status, 503, "its items are not those of the stream");
    assert!(
        ready.body.contains("the catalogue stream ends at change 1, but this catalogue is at change 2"),
        "{}",
        ready.body
    );
    assert!(running.ids(json!({"query": "green canoe", "k": NUM + 2})).await.contains(&"n1".to_owned()));
    running.stop().await;
}

/// Items are encoded in slices, between which queries have their turn: a write never fills the encoder's queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_write_takes_little_of_the_queue() {
    let home = shop();
    let running = replica(home.path(), "a", &["worker.queue_texts=40"]).await;
    let items: Vec<Value> = (0..500).map(|n| json!({"id": format!("n{n}"), "title": format!("canoe {n}")})).collect();
    let (written, found) = tokio::join!(running.ask("PUT /items", json!({"items": items})), async {
        let mut found = Vec::new();
        for n in 0..20 {
            found.push(running.ask("POST /search", json!({"query": format!("lamp {n}"), "k": 1})).await.status);
        }
        found
    });
    assert_eq!(written.status, 200, "{}", written.body);
    assert_eq!(found, [200; 20]);
    running.stop().await;
}

/// Two writers read an item at the same state: the second one is told that it has changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_conditional_write_needs_an_unchanged_item() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let seen =
        running.ask("PUT /items", json!({"items": [{"id": "a", "title": "lamp"}, {"id": "b", "title": "desk"}]})).await;
    let at = seen.json()["catalogue"].as_u64().unwrap();
    let price = |price: u64| json!({"price": price});
    let first = running.ask(&format!("PATCH /items/a?if_position={at}"), price(1)).await;
    assert_eq!(first.status, 200, "{}", first.body);
    for (route, body) in [
        (format!("PATCH /items/a?if_position={at}"), price(2)),
        (
            format!("PUT /items?if_position={at}"),
            json!({"items": [{"id": "b", "title": "x"}, {"id": "a", "title": "x"}]}),
        ),
        (format!("DELETE /items/a?if_position={at}"), json!(null)),
    ] {
        let refused = running.ask(&route, body).await;
        assert!(refused.status == 409 && refused.body.contains("read it again"), "{route}: {}", refused.body);
    }
    assert_eq!(running.get("/items/a").await.json()["price"], 1);
    assert_eq!(running.get("/items/b").await.json()["title"], "desk");
    // an item of the data folder has no change
    assert_eq!(running.ask("PATCH /items/i5?if_position=0", price(3)).await.status, 200);
    assert_eq!(running.ask("DELETE /items/b?if_position=2", json!(null)).await.status, 200);
    running.stop().await;
}

/// A repeated write with a key is answered as the first time, and not made again.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_writes_with_a_key_are_answered_again() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let send = async |route: &str, key: &str, body: Value| {
        running.ask_with(route, &format!("Idempotency-Key: {key}\r\n"), body.to_string().as_bytes()).await
    };
    let at = running.get("/items?limit=1").await.json()["catalogue"].as_u64().unwrap();
    let route = format!("PATCH /items/i3?if_position={at}");
    let first = send(&route, "order-1", json!({"price": 7})).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (200, None), "{}", first.body);
    let again = send(&route, "order-1", json!({"price": 7})).await;
    assert_eq!((again.status, &again.body), (200, &first.body), "without the key it would be a conflict");
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(running.ask(&route, json!({"price": 7})).await.status, 409);
    for (route, body) in [(route.as_str(), json!({"price": 8})), ("DELETE /items/i3", json!(null))] {
        let other = send(route, "order-1", body).await;
        assert!(other.status == 422 && other.body.contains("another write"), "{}", other.body);
    }
    // what failed is tried again
    assert_eq!(send("PATCH /items/late", "order-2", json!({"price": 1})).await.status, 404);
    let item = json!({"items": [{"id": "late", "title": "late"}]});
    assert_eq!(running.ask("PUT /items", item).await.status, 200);
    assert_eq!(send("PATCH /items/late", "order-2", json!({"price": 1})).await.status, 200);
    assert_eq!(send("PATCH /items/late", &"k".repeat(201), json!({"price": 1})).await.status, 422);
    running.stop().await;
}
