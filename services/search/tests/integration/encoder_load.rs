//! Readiness and searches while a large write is encoded, which takes seconds.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use crate::client::{Running, TIMEOUT, shop};

/// The probe of readiness gives up after five seconds, so it must not wait until the write is encoded.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_write_delays_neither_readiness_nor_searches() {
    let home = shop();
    let model = format!("model.path={}", souk_testing::minilm().display());
    let running = Arc::new(Running::start(home.path(), &[&model]).await);
    let began = Instant::now();
    while running.get("/readyz").await.status != 200 {
        assert!(began.elapsed() < TIMEOUT);
    }
    let text = |i: usize| (0..250).map(|word| format!("{} ", (word * 31 + i) % 1000)).collect::<String>();
    let items: Vec<_> = (0..100).map(|i| json!({"id": format!("w{i}"), "title": text(i)})).collect();
    let writer = running.clone();
    let writing = tokio::spawn(async move { writer.ask("PUT /items", json!({"items": items})).await.status });
    let mut num_probes = 0;
    while !writing.is_finished() {
        let ready = running.get("/readyz").await;
        assert_eq!(ready.status, 200, "{}", ready.body);
        let found = running.ask("POST /search", json!({"query": format!("lamp {num_probes}"), "k": 3})).await;
        assert!([200, 429].contains(&found.status), "{}", found.body);
        num_probes += 1;
    }
    assert!(num_probes > 1, "the write was encoded at once");
    // at the deadline the answer is late, and the write goes on
    let status = writing.await.unwrap();
    assert!([200, 504].contains(&status), "{status}");
    let reader = running.clone();
    let read = async move { while reader.get("/items/w99").await.status != 200 {} };
    tokio::time::timeout(TIMEOUT, read).await.unwrap();
}
