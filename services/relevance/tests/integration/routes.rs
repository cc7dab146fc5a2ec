//! The service on a real socket: request and response formats, keys, readiness, the oracle, and graceful shutdown.

use crate::client::{Running, answer, model};
use serde_json::{Value, json};
use souk::cross_encoder::{CrossEncoderJudge as Alone, ServeSettings};
use souk::item_text::ItemText;
use souk::market::{self, MarketSpec, Oracle};
use souk::reward::{Question, RewardSource};
use souk_http::Keys;
use souk_relevance::{JudgeBackend, OracleJudge};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

#[tokio::test]
async fn scores_are_those_of_the_model_in_the_order_of_the_items() {
    let running = Running::of_model(ServeSettings::default()).await;
    let texts = ["oak bookshelf", "red lamp", "", "waterproof rain jacket"];
    let items: Vec<Value> =
        texts.iter().enumerate().map(|(at, text)| json!({"id": at.to_string(), "text": text})).collect();
    let found = running.post("/score", &bytes(&json!({"query": "lamp", "items": items}))).await;
    assert_eq!(found.status, 200, "{}", found.body);
    let alone = Alone::new(model(), 1);
    let ask = |item| Question { query_id: "", query: "lamp", item_id: "", item };
    let asked: Vec<Question> = texts.iter().map(|item| ask(item)).collect();
    let expected = alone.judge(&asked).unwrap();
    let found = found.json();
    assert_eq!(found["model"], alone.id());
    for (at, verdict) in expected.into_iter().enumerate() {
        let verdict = verdict.unwrap();
        let score = found["scores"][at].as_f64().unwrap();
        assert!((score - f64::from(verdict.score)).abs() < 1e-5, "{found}");
        assert_eq!(found["levels"][at], verdict.level.number());
    }
    let empty = running.post("/score", br#"{"query": "lamp", "items": []}"#).await;
    assert_eq!((empty.status, empty.json()["scores"].clone()), (200, json!([])));
    running.stop().await;
}

#[tokio::test]
async fn rerank_has_the_shapes_of_tei_and_of_cohere() {
    let running = Running::of_model(ServeSettings::default()).await;
    let texts = json!(["oak bookshelf", "red lamp", "yoga mat"]);
    let tei = running.post("/rerank", &bytes(&json!({"query": "lamp", "texts": texts}))).await.json();
    let scores: Vec<f64> = tei.as_array().unwrap().iter().map(|ranked| ranked["score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.len() == 3, "{tei}");
    assert!(tei[0].get("text").is_none());
    let full = json!({"query": "lamp", "texts": texts, "raw_scores": true, "return_text": true, "truncate": false});
    let raw = running.post("/rerank", &bytes(&full)).await.json();
    for (raw, plain) in raw.as_array().unwrap().iter().zip(tei.as_array().unwrap()) {
        assert_eq!((&raw["index"], &raw["text"]), (&plain["index"], &texts[plain["index"].as_u64().unwrap() as usize]));
        let sigmoid = 1.0 / (1.0 + (-raw["score"].as_f64().unwrap()).exp());
        assert!((sigmoid - plain["score"].as_f64().unwrap()).abs() < 1e-5);
    }
    let documents = json!({"model": "any", "query": "lamp", "top_n": 2, "return_documents": true,
        "documents": ["oak bookshelf", {"text": "red lamp"}, "yoga mat"]});
    let cohere = running.post("/v1/rerank", &bytes(&documents)).await.json();
    assert_eq!(cohere["results"].as_array().unwrap().len(), 2);
    assert_eq!(cohere["results"][0]["index"], tei[0]["index"]);
    assert_eq!(cohere["results"][0]["relevance_score"], tei[0]["score"]);
    assert_eq!(cohere["results"][0]["document"]["text"], texts[tei[0]["index"].as_u64().unwrap() as usize]);

    let long = json!({"query": "lamp", "texts": ["lamp", "lamp ".repeat(100)], "truncate": false});
    let refused = running.post("/rerank", &bytes(&long)).await;
    assert_eq!((refused.status, &refused.error()["param"]), (422, &json!("texts[1]")));
    let left = json!({"query": "lamp", "texts": ["lamp"], "truncation_direction": "Left"});
    assert_eq!(running.post("/rerank", &bytes(&left)).await.status, 422);
    running.stop().await;
}

#[tokio::test]
async fn every_answer_has_a_name_and_a_time_and_is_counted() {
    let running = Running::of_model(ServeSettings::default()).await;
    let healthy = running.get("/healthz").await;
    assert_eq!((healthy.status, healthy.body.as_str()), (200, "ok\n"));
    assert!(healthy.header("x-total-time").unwrap().parse::<f64>().unwrap() >= 0.0);
    assert!(!healthy.header("x-request-id").unwrap().is_empty());
    let named = running.post_with("/score", "X-Request-Id: mine-7\r\n", br#"{"query": "a", "items": []}"#).await;
    assert_eq!(named.header("x-request-id"), Some("mine-7"));
    let hostile = running.post_with("/score", "X-Request-Id: a b<script>\r\n", b"{}").await;
    assert_ne!(hostile.header("x-request-id"), Some("a b<script>"));
    let ready = running.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (200, &json!(true)));
    let metrics = running.get("/metrics").await.body;
    for name in ["souk_relevance_requests_total{route=\"/healthz\",status=\"200\"}", "souk_relevance_pairs_total"] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
    assert_eq!(running.get("/nowhere").await.error()["code"], "no_route");
    assert_eq!((running.get("/score").await.status, running.post("/healthz", b"").await.status), (405, 405));
    running.stop().await;
}

#[tokio::test]
async fn only_known_keys_may_ask() {
    let settings = ServeSettings::default();
    let judge = JudgeBackend::of_model(model(), settings.worker).unwrap();
    let running = Running::start(judge, Keys::parse("first,second").unwrap(), settings).await;
    let body = br#"{"query": "lamp", "items": [{"id": "1", "text": "red lamp"}]}"#;
    for headers in ["", "Authorization: Bearer wrong\r\n", "Authorization: first\r\n", "Authorization: Basic first\r\n"]
    {
        let refused = running.post_with("/score", headers, body).await;
        assert_eq!((refused.status, &refused.error()["code"]), (401, &json!("invalid_api_key")), "{headers}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    }
    for key in ["first", "second"] {
        let headers = format!("Authorization: Bearer {key}\r\n");
        assert_eq!(running.post_with("/score", &headers, body).await.status, 200);
    }
    for open in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(running.get(open).await.status, 200, "{open}");
    }
    running.stop().await;
}

#[tokio::test]
async fn the_oracle_answers_on_the_same_routes_and_does_not_guess() {
    let home = tempfile::tempdir().unwrap();
    let shop = home.path().join("shop");
    let plan = MarketSpec { seed: 3, items: 400, queries: 12, events: 0 };
    market::write(&plan, &shop, &|_, _| {}).unwrap();
    let oracle = Oracle::build(&plan).unwrap();
    let data = souk::beir::DataFolder::open(&shop).unwrap();
    let query = data.queries().unwrap().next().unwrap().unwrap();
    let passages: Vec<String> =
        data.items().unwrap().map(|item| ItemText::default().render(&item.unwrap().1)).collect();
    let judge = JudgeBackend::Oracle(Box::new(OracleJudge::load(&shop, &ItemText::default()).unwrap()));
    let running = Running::start(judge, Keys::default(), ServeSettings::default()).await;

    let items = json!([{"id": "i0"}, {"id": "nothing"}, {"id": "i7", "text": "whatever"}]);
    let found = running.post("/score", &bytes(&json!({"query": query.text, "items": items}))).await.json();
    let level = |row| oracle.judge(0, row).unwrap().number();
    assert_eq!((found["model"].clone(), found["levels"].clone()), (json!("oracle"), json!([level(0), null, level(7)])));
    assert_eq!(found["scores"][1], Value::Null);
    let stranger = running.post("/score", &bytes(&json!({"query": "who knows", "items": items}))).await.json();
    assert_eq!(stranger["scores"], json!([null, null, null]));
    let by_id = json!({"query": "who knows", "query_id": query.id, "items": items});
    assert_eq!(running.post("/score", &bytes(&by_id)).await.json()["levels"], found["levels"]);

    let texts = json!({"query": query.text, "texts": &passages[..20]});
    let ranked = running.post("/rerank", &bytes(&texts)).await.json();
    for one in ranked.as_array().unwrap() {
        let row = one["index"].as_u64().unwrap() as u32;
        let expected = f64::from(level(row) - 1) / 3.0;
        assert!((one["score"].as_f64().unwrap() - expected).abs() < 1e-6, "{ranked}");
    }
    let unknown = running.post("/rerank", &bytes(&json!({"query": query.text, "texts": ["no such item"]}))).await;
    assert_eq!((unknown.status, &unknown.error()["param"]), (422, &json!("texts[0]")));
    assert_eq!(running.get("/readyz").await.status, 200);
    running.stop().await;
}

#[tokio::test]
async fn what_was_begun_is_finished_after_the_end_was_asked_for() {
    let running = Running::of_model(ServeSettings::default()).await;
    let body = br#"{"query": "lamp", "items": [{"id": "1", "text": "red lamp"}]}"#;
    let mut begun = TcpStream::connect(running.address).await.unwrap();
    let head = format!("POST /score HTTP/1.1\r\nHost: souk\r\nContent-Length: {}\r\n\r\n", body.len());
    begun.write_all(head.as_bytes()).await.unwrap();
    begun.write_all(&body[..10]).await.unwrap();
    // once another request is answered, this one has been accepted
    assert_eq!(running.get("/healthz").await.status, 200);
    let address = running.address;
    let ending = tokio::spawn(running.stop());
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    begun.write_all(&body[10..]).await.unwrap();
    assert_eq!(answer(&mut begun).await.status, 200);
    ending.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}
