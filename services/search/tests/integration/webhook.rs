//! Promotion webhook: another engine hears of a version before it is served, and the swap waits until that engine is ready.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::client::{Running, TIMEOUT, golden, shop};

/// An engine that answers as it is told, and remembers the events.
#[derive(Clone, Default)]
struct Engine {
    answer: Arc<Mutex<(u16, Value)>>,
    events: Arc<Mutex<Vec<Value>>>,
}

impl Engine {
    /// Starts the engine. Returns it and its URL.
    async fn start(status: u16, answer: Value) -> (Self, String) {
        let engine = Self::default();
        engine.answer(status, answer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let router = Router::new().route("/hook", post(receive)).with_state(engine.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (engine, url)
    }

    fn answer(&self, status: u16, answer: Value) {
        *self.answer.lock().unwrap() = (status, answer);
    }

    /// Waits for an event of this name.
    async fn event(&self, name: &str) -> Value {
        let began = Instant::now();
        loop {
            let found = self.events.lock().unwrap().iter().find(|event| event["event"] == name).cloned();
            if let Some(event) = found {
                return event;
            }
            assert!(began.elapsed() < TIMEOUT, "no {name}: {:?}", self.events.lock().unwrap());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn receive(State(engine): State<Engine>, event: Bytes) -> (StatusCode, String) {
    engine.events.lock().unwrap().push(serde_json::from_slice(&event).unwrap());
    let (status, answer) = engine.answer.lock().unwrap().clone();
    (StatusCode::from_u16(status).unwrap(), answer.to_string())
}

async fn running_with(home: &std::path::Path, url: &str, timeout_seconds: u64) -> Running {
    let webhook =
        format!("search.promotion_webhook={{url=\"{url}\", retry_seconds=1, timeout_seconds={timeout_seconds}}}");
    let running = Running::start(home, &[&webhook]).await;
    let report = json!({"split": "test", "overall": {"ndcg@10": 50.0}});
    let body = json!({"version": "second", "path": golden("st_cls"), "report": report});
    assert_eq!(running.ask("POST /models", body).await.status, 200);
    running
}

fn served(running: &Running) -> String {
    running.service.serving.served().record().version.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn swap_waits_until_the_other_engine_is_ready() {
    let home = shop();
    let (engine, url) = Engine::start(200, json!({"ready": false})).await;
    let running = running_with(home.path(), &url, 60).await;
    let answer = running.ask("POST /models/second/promote", json!({})).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let promoting = engine.event("promoting").await;
    let fingerprint = running.service.serving.fingerprint(&golden("st_cls").to_string_lossy()).unwrap();
    assert_eq!((&promoting["version"], &promoting["replaces"]), (&json!("second"), &json!("first")));
    assert_eq!((&promoting["model"], &promoting["dimensions"]), (&json!(fingerprint), &json!(32)), "{promoting}");
    // the engine embeds its items with the version that is not served yet
    let vectors = running.ask("POST /embed", json!({"inputs": "oak lamp", "model": "second"})).await;
    let versions = (vectors.header("souk-version"), vectors.header("souk-served-version"));
    assert_eq!((vectors.status, versions), (200, (Some("second"), Some("first"))), "{}", vectors.body);
    assert_eq!(served(&running), "first");
    engine.answer(200, json!({"ready": true}));
    engine.event("promoted").await;
    assert_eq!(served(&running), "second");
    let rolled = running.ask("POST /models/rollback", json!({})).await;
    assert_eq!(rolled.status, 200, "a rollback does not wait: {}", rolled.body);
    assert_eq!(engine.event("rolled_back").await["version"], "first");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn version_is_not_served_if_the_engine_refuses_it_or_is_late() {
    let home = shop();
    let (_engine, url) = Engine::start(409, json!({"error": "no room"})).await;
    let running = running_with(home.path(), &url, 60).await;
    let answer = running.ask("POST /models/second/promote", json!({})).await;
    assert!(answer.status == 409 && answer.body.contains("no room"), "{} {}", answer.status, answer.body);
    let failure = running.get("/models").await.json()["versions"][0]["failure"].to_string();
    assert!(failure.contains("no room"), "{failure}");
    assert_eq!(served(&running), "first");
    running.stop().await;

    let home = shop();
    // nobody listens there
    let running = running_with(home.path(), "http://127.0.0.1:9/hook", 1).await;
    let answer = running.ask("POST /models/second/promote", json!({})).await;
    let began = Instant::now();
    while running.get("/models").await.json()["versions"][0]["failure"].is_null() {
        assert!(began.elapsed() < TIMEOUT, "{}", answer.body);
        sleep(Duration::from_millis(50)).await;
    }
    let failure = running.get("/models").await.json()["versions"][0]["failure"].to_string();
    assert!(failure.contains("not ready for `second` within 1 s"), "{failure}");
    assert_eq!(served(&running), "first");
    running.stop().await;
}
