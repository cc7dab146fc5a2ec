//! A shop on a real Milvus server: searches, filters, changes, a restart, versions.

#![cfg(feature = "milvus")]

use std::io::Write;

use crate::client::{NUM, Running, TIMEOUT, golden, shop};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

/// Settings for the server; None (logged as skipped) without one.
fn sets(test: &str) -> Option<Vec<String>> {
    let Some(url) = std::env::var("MILVUS_URL").ok().filter(|url| !url.is_empty()) else {
        let path = std::env::var("SOUK_SKIPPED").unwrap_or_else(|_| "/dev/stderr".into());
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(file, "{test}: no MILVUS_URL").unwrap();
        return None;
    };
    let prefix = format!("search_{test}_{}_", std::process::id());
    Some(vec![
        "search.index.type=milvus".into(),
        format!("search.index.address={url}"),
        format!("search.index.collection_prefix={prefix}"),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_changes_and_swaps_on_milvus() {
    let Some(sets) = sets("a_shop_on_milvus") else { return };
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let home = shop();
    let running = Running::start(home.path(), &sets).await;
    let filter = json!({"must": [{"field": "brand", "eq": "B"}, {"field": "price", "lte": 5}]});
    let mut found = running.ids(json!({"query": "lamp", "k": 50, "filter": filter})).await;
    found.sort();
    assert_eq!(found, ["i1", "i3", "i5"]);
    let numbered = running.ids(json!({"query": "oak lamp number 31", "k": 3, "hybrid": true})).await;
    assert_eq!(numbered[0], "i31", "found by its terms");
    let fields = running.get("/fields").await.json();
    assert!(fields["fields"].as_array().unwrap().iter().any(|field| field["name"] == "brand"), "{fields}");
    let item = json!({"id": "new", "title": "purple chandelier"});
    assert_eq!(running.ask("PUT /items", json!({"items": [item]})).await.json()["new"].as_u64(), Some(1));
    assert_eq!(running.ask("DELETE /items/i7", json!(null)).await.status, 200);
    running.stop().await;
    // the data on the server and the journal agree
    let running = Running::start(home.path(), &sets).await;
    assert_eq!(running.get("/items/new").await.json()["title"], "purple chandelier");
    assert_eq!(running.get("/items/i7").await.status, 404);
    assert_eq!(running.get("/fields").await.json()["num_items"].as_u64(), Some(NUM as u64));
    let second = json!({"version": "second.1", "path": golden("st_cls"), "report": {"overall": {}}});
    assert_eq!(running.ask("POST /models", second).await.status, 200);
    let answer = running.ask("POST /models/second.1/promote", json!({})).await;
    assert!(matches!(answer.status, 200 | 202), "{}", answer.body);
    let began = Instant::now();
    while running.service.serving.served().record().version != "second.1" {
        assert!(began.elapsed() < TIMEOUT, "{}", running.get("/models").await.body);
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(running.ids(json!({"query": "lamp", "k": 1000})).await.len(), NUM);
    assert!(matches!(running.ask("POST /models/rollback", json!({})).await.status, 200 | 202));
    running.stop().await;
}
