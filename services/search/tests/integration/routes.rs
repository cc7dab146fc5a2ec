//! Routes over a real socket: responses, keys and roles, and rejected requests.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{NUM, Running, TIMEOUT, golden, ids, item, shop};
use serde_json::{Value, json};
use souk::backbone::Precision;
use souk::dataset::{Ingest, IngestSettings, JoinCounts};
use souk::domain::TextKind;
use souk::encoder::{Encoder, Overrides, Placement};
use souk::lexical::{FeatureWeights, FittedFusion, FittedOn, TRANSLATIONS, Translations};
use souk::log::file::{FileSettings, FileSource};
use souk::log::{LogSource, OnGap, Resume};
use souk_testing::copy_folder;
use tch::Device;

#[tokio::test(flavor = "multi_thread")]
async fn search_explains_and_pages() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let query = "oak lamp number 7";
    let answer = running.ask("POST /search", json!({"query": query, "k": 5, "explain": true, "hybrid": true})).await;
    let found = answer.json();
    assert_eq!(
        (answer.status, found["model"].as_str(), found["index"].as_str()),
        (200, Some("first"), Some("first-1"))
    );
    assert!(answer.header("x-request-id").is_some() && answer.header("x-total-time").is_some());
    let first = &found["hits"][0];
    assert_eq!((first["id"].as_str(), first["rank"].as_u64()), (Some("i7"), Some(1)), "{found}");
    assert_eq!((first["price"].as_u64(), first["text"].as_str()), (Some(7), Some("for a desk")));
    assert!((parts(first).iter().sum::<f64>() - first["score"].as_f64().unwrap()).abs() < 1e-6, "{first}");
    assert_eq!(first["explain"]["overlap"].as_f64(), Some(1.0));
    // two pages equal one page of twice the size
    let whole = running.ids(json!({"query": query, "k": 8})).await;
    let mut pages = running.ids(json!({"query": query, "k": 4})).await;
    pages.extend(running.ids(json!({"query": query, "k": 4, "offset": 4})).await);
    assert_eq!(pages, whole);
    let all = running.ids(json!({"query": query, "k": 1000})).await;
    assert_eq!(all.len(), NUM);
    running.stop().await;
}

/// Parts of a hit's score: of both channels and of its terms.
fn parts(hit: &Value) -> Vec<f64> {
    let of = |name: &str| hit["explain"][name].as_object().unwrap().values();
    of("channels").chain(of("terms")).map(|part| part["part"].as_f64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hybrid_search_uses_the_weights_that_were_fitted_to_the_model() {
    let home = shop();
    let model = home.path().join("model");
    copy_folder(&golden("st_mean_dense"), &model);
    let weights = FeatureWeights::from_array([1.0, 0.1, 2.0, 1.0, -3.0, 0.5]);
    FittedFusion::new(Some(weights), FittedOn::default()).save(&Translations::default(), &model).unwrap();
    std::fs::write(model.join(TRANSLATIONS), "query\titem\tprobability\ntimber\toak\t0.5\n").unwrap();
    let running = Running::start(home.path(), &[&format!("model.path={}", model.display())]).await;
    let mut body = json!({"query": "oak lamp number 7", "k": 5, "explain": true, "hybrid": true});
    let found = running.ask("POST /search", body.clone()).await.json();
    let first = &found["hits"][0];
    let parts = parts(first);
    assert_eq!((first["id"].as_str(), parts.len()), (Some("i7"), 6), "{first}");
    assert!((parts.iter().sum::<f64>() - first["score"].as_f64().unwrap()).abs() < 1e-5, "{first}");
    let second = &found["hits"][1]["explain"]["terms"]["missing_numbers"];
    assert_eq!((second["value"].as_f64(), second["part"].as_f64()), (Some(1.0), Some(-3.0)), "{found}");
    assert!(first["explain"]["terms"]["translation"]["value"].as_f64().unwrap() > 0.0, "{found}");
    let translated =
        running.ask("POST /search", json!({"query": "timber", "k": 300, "explain": true, "hybrid": true})).await;
    let hits = translated.json()["hits"].as_array().unwrap().clone();
    let is_oak = |hit: &Value| hit["title"].as_str().unwrap().contains("oak");
    let num_oak = hits.iter().filter(|hit| is_oak(hit)).count();
    assert!((1..hits.len()).contains(&num_oak), "{num_oak} of {} are of oak", hits.len());
    for hit in hits {
        let value = hit["explain"]["terms"]["translation"]["value"].as_f64().unwrap();
        assert_eq!(value > 0.0, is_oak(&hit), "oak is timber: {hit}");
    }
    // weights in the request take precedence
    body["hybrid"] = json!({"dense": 1, "lexical": 1});
    let weighted = running.ask("POST /search", body.clone()).await.json();
    assert!(weighted["hits"][0]["explain"]["terms"].is_null(), "{weighted}");
    body["hybrid"] = json!({"terms": 2});
    let weighted = running.ask("POST /search", body).await.json();
    let letters = &weighted["hits"][0]["explain"]["terms"]["trigrams"];
    assert!((letters["weight"].as_f64().unwrap() - 1.4).abs() < 1e-6, "{weighted}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_facets_and_vectors_work() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let filter = json!({"must": [{"field": "brand", "eq": "B"}, {"field": "price", "lte": 5}]});
    let body = json!({"query": "lamp", "k": 50, "filter": filter, "facets": ["brand"]});
    let found = running.ask("POST /search", body).await.json();
    let mut found_ids = ids(&found);
    found_ids.sort();
    assert_eq!(found_ids, ["i1", "i3", "i5"]);
    assert_eq!(found["facets"], json!([{"field": "brand", "values": [{"value": "B", "count": 3}]}]));
    // a vector from /embed finds the same hits as its text
    let text = "blue lamp number 11";
    let vector = running.ask("POST /embed", json!({"inputs": text, "prompt_name": "query"})).await.json()[0].clone();
    let by_vector = running.ids(json!({"vector": vector, "k": 5})).await;
    assert_eq!(by_vector, running.ids(json!({"query": text, "k": 5})).await);
    let fields = running.get("/fields").await.json();
    assert_eq!(fields["num_items"].as_u64(), Some(NUM as u64));
    assert_eq!(fields["fields"][1]["name"], "price");
    running.stop().await;
}

/// A text has the model's vector in every API.
#[tokio::test(flavor = "multi_thread")]
async fn embeddings_match_the_model_in_every_api() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let placement =
        || Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    let alone = Encoder::open(&golden("st_mean_dense"), placement(), Overrides::default()).unwrap();
    let alone = alone.for_search().unwrap();
    let texts = ["oak lamp", "a", "lamp lamp lamp number 5 for a desk"];
    for (prompt, kind) in [(None, None), (Some("query"), Some(TextKind::Query)), (Some("item"), Some(TextKind::Item))] {
        let mut body = json!({"inputs": texts});
        if let Some(prompt) = prompt {
            body["prompt_name"] = prompt.into();
        }
        let together = running.ask("POST /embed", body).await.json();
        let read: Vec<_> = texts.iter().map(|text| alone.reader().read(text, kind).unwrap()).collect();
        let expected = alone.vectors(&read.iter().collect::<Vec<_>>()).unwrap();
        for (at, expected) in expected.iter().enumerate() {
            near(&together[at], expected);
        }
    }
    let body = json!({"input": texts, "model": "first"});
    let openai = running.ask("POST /v1/embeddings", body).await.json();
    let plain = running.ask("POST /embed", json!({"inputs": texts})).await.json();
    for at in 0..texts.len() {
        assert_eq!(openai["data"][at]["embedding"], plain[at]);
    }
    assert!(openai["usage"]["prompt_tokens"].as_u64().unwrap() > 6);
    let alias = running.ask("POST /v1/embeddings", json!({"input": texts, "model": "served"})).await;
    assert_eq!((&alias.json()["model"], alias.header("souk-version")), (&json!("first"), Some("first")));
    assert_eq!(alias.json()["data"], openai["data"]);
    let named = running.ask("POST /embed", json!({"inputs": texts, "model": "first"})).await;
    assert_eq!((named.json(), named.header("souk-version")), (plain.clone(), Some("first")));
    let ids: Vec<Vec<u32>> = texts.iter().map(|text| alone.reader().encode_raw(text).unwrap()).collect();
    assert_eq!(running.ask("POST /embed", json!({"inputs": ids})).await.json(), plain);
    assert_eq!(running.ask("POST /embed", json!({"inputs": ids[0]})).await.json()[0], plain[0]);
    let unscaled = Overrides { normalize: Some(false), ..Overrides::default() };
    let unscaled = Encoder::open(&golden("st_mean_dense"), placement(), unscaled).unwrap();
    let read: Vec<_> = texts.iter().map(|text| unscaled.reader().read(text, None).unwrap()).collect();
    let lengths = running.ask("POST /embed", json!({"inputs": texts, "normalize": false})).await.json();
    for (at, expected) in unscaled.vectors(&read.iter().collect::<Vec<_>>()).unwrap().iter().enumerate() {
        near(&lengths[at], expected);
        assert_ne!(lengths[at], plain[at]);
    }
    let short = running.ask("POST /embed", json!({"inputs": "oak lamp", "dimensions": 4})).await.json();
    let length: f64 = short[0].as_array().unwrap().iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5 && short[0].as_array().unwrap().len() == 4);
    running.stop().await;
}

/// Other programs ask which models there are, and what they take.
#[tokio::test(flavor = "multi_thread")]
async fn models_are_described_in_the_formats_of_openai_and_tei() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let models = running.get("/v1/models").await.json();
    let names: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((&models["object"], names), (&json!("list"), vec!["served", "first"]));
    let info = running.get("/info").await.json();
    let vector = running.ask("POST /embed", json!({"inputs": "a"})).await.json()[0].clone();
    assert_eq!(info["dimensions"].as_u64().unwrap() as usize, vector.as_array().unwrap().len());
    assert_eq!((&info["model_id"], &info["auto_truncate"]), (&json!("first"), &json!(true)));
    // as in the model's sentence_bert_config.json; two of them are the model's own
    assert_eq!(info["max_input_length"].as_u64(), Some(32));
    let letters = |num: usize| json!({"inputs": "a ".repeat(num), "truncate": false});
    assert_eq!(running.ask("POST /embed", letters(30)).await.status, 200);
    assert_eq!(running.ask("POST /embed", letters(31)).await.status, 422);
    // ready when the catalogue's stream was looked at
    while running.get("/readyz").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(running.get("/health").await.status, 200);
    running.stop().await;
}

fn near(found: &Value, expected: &[f32]) {
    let found: Vec<f64> = found.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(a, b)| (a - f64::from(*b)).abs() < 1e-5), "{found:?} {expected:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_invalid_requests() {
    let home = shop();
    let sets = ["search.bounds.max_text=100", "search.bounds.max_texts=2", "search.bounds.max_bytes=20000"];
    let running = Running::start(home.path(), &sets).await;
    let long = "lamp ".repeat(30);
    let refusals = [
        ("POST /search", json!({}), 400, "query"),
        ("POST /search", json!({"query": "a", "kk": 1}), 400, "kk"),
        ("POST /search", json!({"query": 3}), 400, "query"),
        ("POST /search", json!({"query": ""}), 422, "query"),
        ("POST /search", json!({"query": long}), 422, "query"),
        ("POST /search", json!({"query": "a", "k": 0}), 422, "k"),
        ("POST /search", json!({"query": "a", "k": 1001}), 422, "k"),
        ("POST /search", json!({"query": "a", "offset": 10_001}), 422, "offset"),
        ("POST /search", json!({"query": "a", "offset": 4_991, "hybrid": true}), 422, "offset"),
        ("POST /search", json!({"query": "a", "hybrid": {"dense": -1}}), 422, "hybrid"),
        ("POST /search", json!({"query": "a", "hybrid": {"terms": 1, "constant": 60}}), 422, "hybrid"),
        ("POST /search", json!({"query": "a", "filter": {"must": [{"field": "price"}]}}), 422, "filter"),
        ("POST /search", json!({"query": "a", "model": "none"}), 404, ""),
        ("POST /search", json!({"vector": [1.0]}), 422, ""),
        ("POST /search", json!({"vector": [0.0]}), 422, "vector"),
        ("POST /embed", json!({"inputs": []}), 422, "inputs"),
        ("POST /embed", json!({"inputs": ["a", "b", "c"]}), 422, "inputs"),
        ("POST /embed", json!({"inputs": ["a", ""]}), 422, "inputs[1]"),
        ("POST /embed", json!({"inputs": [[5], [4_000_000]]}), 422, "inputs[1]"),
        ("POST /embed", json!({"inputs": "a", "dimensions": 100_000}), 422, "dimensions"),
        ("POST /v1/embeddings", json!({"input": [[101, 2023]], "model": "first"}), 400, "input"),
        ("POST /embed", json!({"inputs": "lamp ".repeat(19), "truncate": false}), 422, "inputs[0]"),
        ("POST /v1/embeddings", json!({"input": "a", "model": "gpt"}), 404, ""),
        ("POST /embed", json!({"inputs": "a", "model": "gpt"}), 404, ""),
        ("POST /models", json!({"version": "served", "path": "/tmp"}), 422, "version"),
        ("PUT /items", json!({"items": [{"title": "no id"}]}), 400, "items[0]"),
        ("PUT /items", json!({"items": [{"id": "a"}, {"id": ""}]}), 422, "items[1]"),
        ("PUT /items", json!({"items": [{"id": "a", "text": "x".repeat(30_000)}]}), 413, ""),
        ("DELETE /items/none", json!(null), 404, ""),
        ("POST /models/none/promote", json!({}), 404, ""),
        ("POST /models", json!({"version": "a b", "path": "x"}), 422, "version"),
        ("POST /models", json!({"version": "v", "path": "/nowhere"}), 404, ""),
        ("POST /search", json!({"query": "a", "filter": {"must": [{"field": "nope", "eq": 1}]}}), 422, "filter"),
        ("POST /search", json!({"vector": vec![1.0; 24], "hybrid": true}), 422, "hybrid"),
        ("POST /votes", json!({"id": "", "query": "q", "left": "a", "right": "b", "verdict": "good"}), 422, "id"),
        (
            "POST /votes",
            json!({"id": "v", "comparison": "made up", "query": "q", "left": "a", "right": "b", "verdict": "good"}),
            404,
            "",
        ),
        ("GET /items/%ff", json!(null), 400, ""),
        ("POST /events", json!({"events": []}), 409, ""),
        ("POST /nowhere", json!({}), 404, ""),
        ("PATCH /items", json!({}), 405, ""),
    ];
    for (route, body, status, param) in refusals {
        let answer = running.ask(route, body.clone()).await;
        let error = answer.error();
        assert_eq!(answer.status, status, "{route} {body}: {error}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{route} {body}: {error}");
    }
    // rejected requests changed nothing
    assert_eq!(running.get("/items/a").await.status, 404);
    assert_eq!(running.get("/fields").await.json()["num_items"].as_u64(), Some(NUM as u64));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compares_blind_and_counts_votes() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let (mut dense, mut lexical) = (0, 0);
    for number in 0..16 {
        // a pair is the same in either order
        let (left, right) = if number % 2 == 0 { ("dense", "lexical") } else { ("first/lexical", "first") };
        let asked = json!({"query": "red lamp", "left": left, "right": right, "k": 3});
        let pages = running.ask("POST /compare", asked).await.json();
        assert_eq!(pages["left"]["hits"][0]["score"].as_f64(), Some(0.0), "a score reveals the channel");
        let vote = json!({"id": format!("v{number}"), "comparison": pages["comparison"], "query": "red lamp",
            "left": "what the", "right": "caller says", "verdict": "good", "voter": "me",
            "grades": [{"side": "left", "item": "i0", "good": true}, {"side": "right", "item": "i1", "good": false}]});
        let shown = running.ask("POST /votes", vote.clone()).await.json();
        assert_eq!(shown["counted"], true);
        let mut names = [shown["left"].as_str().unwrap(), shown["right"].as_str().unwrap()];
        match names[0] {
            "first/dense" => dense += 1,
            _ => lexical += 1,
        }
        let found = running.ids(json!({"query": "red lamp", "k": 3, "hybrid": {"dense": 0, "lexical": 1}})).await;
        let side = if names[0] == "first/lexical" { "left" } else { "right" };
        assert_eq!(ids(&pages[side]), found);
        names.sort_unstable();
        assert_eq!(names, ["first/dense", "first/lexical"], "the version is the one that made the page");
        assert_eq!(running.ask("POST /votes", vote).await.json()["counted"], false, "a vote counts once");
    }
    assert!(dense > 0 && lexical > 0);
    let pairs = running.get("/votes/summary").await.json()["pairs"].clone();
    let pair = &pairs[0];
    assert_eq!((pairs.as_array().unwrap().len(), pair["left"].as_str()), (1, Some("first/dense")));
    assert_eq!((pair["num_good"].as_i64(), pair["num_bad"].as_i64()), (Some(dense), Some(lexical)));
    assert_eq!((pair["left_items"].as_i64(), pair["right_items"].as_i64()), (Some(16), Some(16)));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_searches_and_clicks_for_the_trainer() {
    let home = shop();
    let log = home.path().join("events.ndjson");
    let set = format!("search.events.path={}", log.display());
    let experiment = r#"search.experiments=[{name="two", type="interleave", left="dense", right="lexical"}]"#;
    let running = Running::start(home.path(), &[&set, experiment]).await;
    let found = running.ask("POST /search", json!({"query": "red lamp", "k": 4, "client_id": "shopper"})).await.json();
    assert_eq!(found["experiment"], json!({"name": "two", "arm": "both"}));
    assert!(found["hits"].as_array().unwrap().iter().all(|hit| hit["side"].is_string()), "{found}");
    let again = running.ids(json!({"query": "red lamp", "k": 4, "client_id": "shopper"})).await;
    assert_eq!(again, ids(&found), "the same shopper sees the same hits");
    let query_id = &found["query_id"];
    let click =
        json!({"action_name": "click", "query_id": query_id, "client_id": "shopper", "item": "i0", "position": 1});
    let taken = running.ask("POST /events", json!({"events": [click]})).await;
    assert_eq!((taken.status, taken.json()["taken"].as_u64()), (200, Some(1)));
    let vote = json!({"id": "v", "query": "red lamp", "left": "a", "right": "b", "verdict": "good", "voter": "me",
        "grades": [{"side": "right", "item": "i1", "good": false}]});
    for counted in [true, false] {
        assert_eq!(running.ask("POST /votes", vote.clone()).await.json()["counted"], counted);
    }
    running.service.event_writer.close().await;
    let lines = std::fs::read_to_string(&log).unwrap();
    assert_eq!(lines.lines().count(), 5, "two searches, a click, a vote and its grade, each once: {lines}");
    let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records[0]["query_attributes"]["experiment"], "two");
    assert_eq!(records[0]["query_attributes"]["sides"].as_array().unwrap().len(), 4);
    assert_eq!(records[0]["query_response_hit_ids"].as_array().unwrap().len(), 4);
    for line in lines.lines() {
        souk::ubi::Record::parse(line.as_bytes()).unwrap();
    }
    assert_eq!(records[2]["query_id"], records[0]["query_id"]);
    let (verdict, grade) = (&records[3], &records[4]);
    assert_eq!((&verdict["action_name"], &verdict["event_attributes"]["verdict"]), (&json!("vote"), &json!("good")));
    assert_eq!(grade["event_attributes"]["object"]["object_id"], "i1");
    assert_eq!((&grade["event_attributes"]["channel"], &grade["user_query"]), (&json!("b"), &json!("red lamp")));
    let counts = ingested(&log, &home.path().join("examples"));
    assert_eq!((counts.queries, counts.examples, counts.passed_over, counts.dead), (2, 1, 2, 0));
    let refused = running.ask("POST /events", json!({"events": [click]})).await;
    assert_eq!(
        (refused.status, refused.error()["code"].as_str()),
        (409, Some("conflict")),
        "no events are accepted after close"
    );
    running.stop().await;
}

/// Ingests a log as the trainer does.
fn ingested(log: &Path, out: &Path) -> JoinCounts {
    let files = FileSettings { paths: vec![log.into()], follow: false, on_gap: OnGap::Stop };
    let open = move |resume: Resume| -> souk::Result<Box<dyn LogSource>> {
        Ok(Box::new(FileSource::open(files.clone(), resume)?))
    };
    let mut ingest = Ingest::new(out, IngestSettings::default(), Box::new(open), Arc::default()).unwrap();
    ingest.run(|_| {}).unwrap().counts
}

/// The vector belongs to the served version and would be wrong for another.
#[tokio::test(flavor = "multi_thread")]
async fn vector_searches_are_not_in_experiments() {
    let home = shop();
    let experiment = r#"search.experiments=[{name="two", type="ab", left="lexical", right="lexical"}]"#;
    let running = Running::start(home.path(), &[experiment]).await;
    let vector = running.ask("POST /embed", json!({"inputs": "a", "prompt_name": "query"})).await.json()[0].clone();
    let mut asked = json!({"query": "red lamp", "vector": vector, "client_id": "shopper"});
    assert_eq!(running.ask("POST /search", asked.clone()).await.json()["experiment"], json!(null));
    drop(asked.as_object_mut().unwrap().remove("vector"));
    assert_eq!(running.ask("POST /search", asked).await.json()["experiment"]["name"], "two");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_or_explains_third_party_formats() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let cut = running.ask("POST /embed", json!({"inputs": "lamp ".repeat(19), "truncate": null})).await;
    assert_eq!(cut.status, 200, "TEI takes a truncate that is null: {}", cut.body);
    for (route, body, wanted) in [
        ("POST /v1/embeddings", json!({"input": [[101, 2023]], "model": "first"}), "check_embedding_ctx_length=False"),
        ("POST /search", json!({"query": "a", "hybrid": "yes"}), "true, false, or weights"),
    ] {
        let refused = running.ask(route, body).await;
        let message = refused.error()["message"].as_str().unwrap().to_owned();
        assert!(refused.status == 400 && message.contains(wanted), "{message}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_write_continues_in_the_background() {
    let home = shop();
    let running = Running::start(home.path(), &["search.bounds.deadline_ms=1", "search.bounds.max_requests=1"]).await;
    let items: Vec<Value> = (0..500).map(|number| json!({"id": format!("n{number}"), "title": "new"})).collect();
    let late = running.ask("PUT /items", json!({"items": items})).await;
    let message = late.error()["message"].as_str().unwrap().to_owned();
    assert!(late.status == 504 && message.contains("continues in the background"), "{message}");
    // it still counts as one of the writes in progress
    let next = running.ask("PUT /items", json!({"items": [{"id": "next", "title": "next"}]})).await;
    assert!(next.status == 429 && next.body.contains("writes in progress"), "{} {}", next.status, next.body);
    let began = Instant::now();
    while running.get("/items/n499").await.status != 200 {
        assert!(began.elapsed() < TIMEOUT, "the write did not finish");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.stop().await;
}

/// A ledger that accepts connections and never answers delays a request up to the deadline, not longer.
#[tokio::test(flavor = "multi_thread")]
async fn silent_ledger_does_not_block_requests() {
    let home = shop();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let set = format!("store.database=postgres://nobody@{}/nothing", silent.local_addr().unwrap());
    let running = Running::start(home.path(), &[&set, "search.bounds.deadline_ms=500"]).await;
    let vote = json!({"id": "v", "query": "q", "left": "a", "right": "b", "verdict": "good"});
    let routes = [
        ("GET /models", json!(null)),
        ("GET /votes/summary", json!(null)),
        ("POST /votes", vote),
        ("POST /models", json!({"version": "v", "path": golden("st_cls")})),
        ("POST /models/v/promote", json!({})),
        ("POST /models/rollback", json!({})),
    ];
    let began = Instant::now();
    for (route, body) in routes {
        let answer = running.ask(route, body).await;
        assert!(matches!(answer.status, 503 | 504), "{route}: {}", answer.body);
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(running.ids(json!({"query": "lamp", "k": 3})).await.len(), 3, "searches continue");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adds_changes_and_deletes_items() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    let new = json!({"id": "new", "title": "purple chandelier", "brand": "C", "stock": {"here": true}});
    let answer = running.ask("PUT /items", json!({"items": [new, item(3)]})).await.json();
    assert_eq!((answer["upserted"].as_u64(), answer["new"].as_u64()), (Some(2), Some(1)));
    assert_eq!(running.ids(json!({"query": "purple chandelier", "k": 1, "hybrid": true})).await, ["new"]);
    let filter = json!({"must": [{"field": "stock.here", "eq": true}]});
    assert_eq!(running.ids(json!({"query": "lamp", "filter": filter})).await, ["new"]);
    let got = running.get("/items/new").await.json();
    assert_eq!(
        got,
        json!({"id": "new", "title": "purple chandelier", "text": "", "brand": "C", "stock": {"here": true}})
    );
    // a response of GET can be put back
    assert_eq!(running.ask("PUT /items", json!({"items": [got]})).await.json()["new"].as_u64(), Some(0));
    assert_eq!(running.ask("DELETE /items/new", json!(null)).await.json()["deleted"], true);
    assert_eq!(running.get("/items/new").await.status, 404);
    assert!(!running.ids(json!({"query": "purple chandelier", "k": 100})).await.contains(&"new".to_owned()));
    running.stop().await;
}

/// Every route is in the document, and the document's limits are correct.
#[tokio::test(flavor = "multi_thread")]
async fn openapi_document_has_routes_and_limits() {
    let home = shop();
    let running = Running::start(home.path(), &["search.bounds.max_hits=77"]).await;
    let document = running.get("/openapi.json").await.json();
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["SearchRequest"]["properties"]["k"]["maximum"].as_u64(), Some(77));
    let vector = running.ask("POST /embed", json!({"inputs": "a"})).await.json()[0].as_array().unwrap().len();
    assert_eq!(schemas["SearchRequest"]["properties"]["vector"]["maxItems"].as_u64(), Some(vector as u64));
    // the catalogue's stream is looked at once before
    while running.get("/readyz").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let routes: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    assert_eq!(routes.len(), 24, "{routes:?}");
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let route = format!("{} {}", method.to_uppercase(), path.replace(['{', '}'], ""));
            let status = running.ask_with(&route, "", b"{").await.status;
            assert!(status != 405 && status < 500, "{route}: {status}");
        }
    }
    running.stop().await;
}
