//! The template of an item's text (`encoder.item_text`): vectors, the lexical index and overlap read the same text. The latter two also
//! read the other fields.

use std::fs;

use serde_json::{Value, json};

use crate::client::{Running, item, shop};

/// Hits of brand Zenith: the id, whether the lexical channel found it, and the overlap with the query.
async fn found(running: &Running) -> Vec<(String, bool, f64)> {
    let body = json!({"query": "zenith", "k": 70, "hybrid": true, "explain": true});
    let answer = running.ask("POST /search", body).await.json();
    let hits = answer["hits"].as_array().unwrap().iter();
    let mut found: Vec<_> = hits
        .filter(|hit| hit["brand"] == "Zenith")
        .map(|hit| {
            let explained = &hit["explain"];
            let id = hit["id"].as_str().unwrap().to_owned();
            (id, explained["channels"]["lexical"].is_object(), explained["overlap"].as_f64().unwrap())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Similarity of the items of brand Zenith to a text, by id.
async fn similarities(running: &Running, text: &str) -> Vec<f64> {
    let embedded = running.ask("POST /embed", json!({"inputs": text, "prompt_name": "item"})).await.json();
    let filter = json!({"must": [{"field": "brand", "eq": "Zenith"}]});
    let body = json!({"vector": embedded[0], "k": 10, "filter": filter});
    let answer = running.ask("POST /search", body).await.json();
    let mut hits: Vec<Value> = answer["hits"].as_array().unwrap().clone();
    hits.sort_by_key(|hit| hit["id"].as_str().unwrap().to_owned());
    hits.iter().map(|hit| hit["score"].as_f64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_brand_in_the_template_is_in_vectors_and_terms_and_any_brand_in_terms() {
    let template = "encoder.item_text={title} {brand}";
    for (set, has_brand, is_found) in [
        (template, true, true),
        ("search.lexical={details=0.2}", false, true),
        ("search.lexical={details=0}", false, false),
    ] {
        let sets = &[set];
        let home = shop();
        let old = json!({"_id": "a", "title": "steam mop", "brand": "Zenith"});
        let mut corpus: Vec<String> = (0..20).map(|i| item(i).to_string()).collect();
        corpus.push(old.to_string());
        fs::write(home.path().join("data/corpus.jsonl"), corpus.join("\n")).unwrap();
        let running = Running::start(home.path(), sets).await;
        let new = json!({"id": "b", "title": "steam mop", "brand": "Zenith"});
        assert_eq!(running.ask("PUT /items", json!({"items": [new]})).await.status, 200);
        let overlap = f64::from(u8::from(is_found));
        assert_eq!(found(&running).await, ["a", "b"].map(|id| (id.to_owned(), is_found, overlap)));
        let text = if has_brand { "steam mop Zenith" } else { "steam mop" };
        let similar = similarities(&running, text).await;
        assert!(similar.len() == 2 && similar.iter().all(|score| *score > 0.9999), "{similar:?}");
        running.stop().await;
        // what is stored is opened with the same template
        let running = Running::start(home.path(), sets).await;
        assert_eq!(found(&running).await, ["a", "b"].map(|id| (id.to_owned(), is_found, overlap)));
        running.stop().await;
    }
}

/// The setting reaches the index that the service builds, and the items that come later.
#[tokio::test(flavor = "multi_thread")]
async fn terms_are_those_of_the_language() {
    for (language, found) in [("german", vec!["new", "old"]), ("english", vec![])] {
        let home = shop();
        let corpus = home.path().join("data/corpus.jsonl");
        let items = fs::read_to_string(&corpus).unwrap();
        fs::write(&corpus, items + &json!({"_id": "old", "title": "Stühle für die Küche"}).to_string() + "\n").unwrap();
        let running =
            Running::start(home.path(), &[&format!("search.lexical={{language=\"{language}\", typos=false}}")]).await;
        running.ask("PUT /items", json!({"items": [{"id": "new", "title": "Stühle aus Eiche"}]})).await;
        let body = json!({"query": "stuhl", "k": 9, "hybrid": {"dense": 0.0, "lexical": 1.0, "terms": 0.0}});
        let answer = running.ask("POST /search", body).await.json();
        let hits = answer["hits"].as_array().unwrap().iter();
        let mut ids: Vec<&str> =
            hits.filter(|hit| hit["score"].as_f64() > Some(0.0)).map(|hit| hit["id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, found, "{language}: {answer}");
        running.stop().await;
    }
}
