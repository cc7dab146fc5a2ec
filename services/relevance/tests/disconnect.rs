//! A client that disconnects while its pairs are being judged. In a process of its own, because it reads global counters.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]
#![allow(dead_code, reason = "uses a part of the client")]

#[path = "integration/client.rs"]
mod client;

use std::time::{Duration, Instant};

use crate::client::{Running, TIMEOUT};
use serde_json::{Value, json};
use souk::cross_encoder::ServeSettings;
use souk::telemetry::RELEVANCE;
use souk::worker::Limits;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

const PAIRS: u64 = 1000;

async fn until(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "it did not come to pass");
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn callers_that_leave_cost_nothing_more() {
    let worker = Limits { batch_tokens: Some(32), queue_texts: PAIRS as usize };
    let running = Running::of_model(ServeSettings { worker, ..ServeSettings::default() }).await;
    let item = |at: u64| json!({"id": at.to_string(), "text": "oak lamp ".repeat(20)});
    let items: Vec<Value> = (0..PAIRS).map(item).collect();
    let body = serde_json::to_vec(&json!({"query": "lamp", "items": items})).unwrap();
    let mut leaving = TcpStream::connect(running.address).await.unwrap();
    let head = format!("POST /score HTTP/1.1\r\nHost: souk\r\nContent-Length: {}\r\n\r\n", body.len());
    leaving.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
    until(|| RELEVANCE.batches.get() > 0).await;
    drop(leaving);
    until(|| RELEVANCE.queued.get() == 0).await;
    assert!(RELEVANCE.texts.get() < PAIRS, "all {PAIRS} were judged for nobody");
    assert_eq!(RELEVANCE.texts.get() + RELEVANCE.cancelled.get(), PAIRS);
    assert_eq!(running.post("/score", &body).await.status, 200, "their places are free again");
    running.stop().await;
}
