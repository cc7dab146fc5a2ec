//! Reranking of the first hits by the version's own relevance model, over a real socket.

use std::path::Path;

use crate::client::{Running, config, golden, ids, shop};
use serde_json::{Value, json};
use souk::backbone::Precision;
use souk::cross_encoder::{PairScorer, RerankFit, RerankQuality};
use souk::encoder::Placement;
use souk::item_text::ItemText;
use souk::lexical::{Fusion, Weights};
use souk_testing::copy_folder;
use tch::Device;
use tempfile::TempDir;

/// The reranker of `reranker` in the model's folder, with weight 2.
fn reranked_shop() -> (TempDir, String) {
    let home = shop();
    let model = home.path().join("model");
    copy_folder(&golden("st_mean_dense"), &model);
    let fit = RerankFit::new(20, 2.0, 100, RerankQuality { fused: 0.4, reranked: 0.5 });
    fit.install(&golden("rel_bert"), &model).unwrap();
    let set = format!("model.path={}", model.display());
    (home, set)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_hits_are_reranked_by_the_versions_reranker() {
    let (home, model) = reranked_shop();
    measured_as_it_is_served(home.path(), &model);
    let running = Running::start(home.path(), &[&model]).await;
    let body = json!({"query": "oak lamp number 7", "k": 30, "explain": true, "hybrid": true});
    let with = |name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        body
    };
    let fused = running.ask("POST /search", with("rerank", false.into())).await.json();
    let reranked = running.ask("POST /search", body.clone()).await.json();
    assert_eq!((fused["reranked"].as_u64(), reranked["reranked"].as_u64()), (None, Some(20)));
    let hits = |found: &Value| found["hits"].as_array().unwrap().clone();
    let score_of = |id: &Value| hits(&fused).iter().find(|hit| hit["id"] == *id).unwrap()["score"].as_f64().unwrap();
    // the outputs are those of the relevance model alone
    let place = Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    let scorer = PairScorer::open(&golden("rel_bert"), place, &ItemText::default()).unwrap();
    for hit in &hits(&reranked)[..20] {
        let text = format!("{} {}", hit["title"].as_str().unwrap(), hit["text"].as_str().unwrap());
        let output = scorer.outputs("oak lamp number 7", &[&text]).unwrap()[0];
        let value = hit["explain"]["reranker"]["value"].as_f64().unwrap();
        assert!((value - f64::from(output)).abs() < 0.1, "{value} and {output}: int8 differs little");
        let sum = score_of(&hit["id"]) + 2.0 * value;
        assert!((hit["score"].as_f64().unwrap() - sum).abs() < 1e-4, "{hit}");
    }
    let ids_of = |found: &Value| ids(found);
    assert_ne!(ids_of(&reranked)[..20], ids_of(&fused)[..20]);
    assert_eq!(ids_of(&reranked)[20..], ids_of(&fused)[20..], "the others stay");
    let scores: Vec<f64> = hits(&reranked).iter().map(|hit| hit["score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    assert!(hits(&reranked)[20]["explain"]["reranker"].is_null());
    // pages are parts of one list
    let mut page = with("offset", 5.into());
    page["k"] = 5.into();
    assert_eq!(running.ids(page).await, ids_of(&reranked)[5..10]);
    let three = running.ask("POST /search", with("rerank", json!({"depth": 3.0}))).await.json();
    assert_eq!((three["reranked"].as_u64(), &ids_of(&three)[3..]), (Some(3), &ids_of(&fused)[3..]));
    // its weight belongs to scores of the version's own hybrid search
    let other = running.ask("POST /search", with("hybrid", json!({"dense": 2, "lexical": 1}))).await.json();
    assert!(other["reranked"].is_null());
    for (name, value) in [("rerank", json!({"depth": 0})), ("rerank", json!({"depth": 9999}))] {
        assert_eq!(running.ask("POST /search", with(name, value)).await.status, 422);
    }
    let mut without = with("hybrid", false.into());
    without["rerank"] = true.into();
    let refused = running.ask("POST /search", without).await;
    assert!(refused.status == 422 && refused.body.contains("souk fit-fusion --reranker"), "{}", refused.body);
    running.stop().await;
}

/// The gate reranks what `/search` reranks.
fn measured_as_it_is_served(home: &Path, model: &str) {
    let depth = |fusion: Option<Fusion>, sets: &[&str]| {
        let dir = home.join("model");
        let opened =
            config(home, &[&[model], sets].concat()).open_served_reranker(&dir, fusion.as_ref(), &ItemText::default());
        opened.unwrap().map(|(by, depth)| {
            let pipeline = by.pipeline("hybrid", depth);
            assert!(pipeline.starts_with("hybrid, first") && pipeline.ends_with("with weight 2"), "{pipeline}");
            depth
        })
    };
    let own = Some(Fusion::default());
    assert_eq!(depth(own.clone(), &[]), Some(20));
    assert_eq!(depth(own.clone(), &["search.rerank={depth=5}"]), Some(5));
    assert_eq!(depth(own, &["search.rerank=false"]), None);
    assert_eq!(depth(None, &[]), None);
    assert_eq!(depth(Some(Fusion::Weights(Weights { dense: 2.0, ..Weights::default() })), &[]), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_or_busy_reranker_leaves_the_fused_order() {
    let (home, model) = reranked_shop();
    // room in the queue for the 16 texts of a start, not for 20 pairs
    let running = Running::start(home.path(), &[&model, "worker.queue_texts=19"]).await;
    let body = json!({"query": "oak lamp number 7", "k": 5, "hybrid": true});
    let mut fused = body.clone();
    fused["rerank"] = false.into();
    let answer = running.ask("POST /search", body).await.json();
    assert_eq!((answer["reranked"].as_u64(), ids(&answer)), (Some(0), running.ids(fused).await));
    running.stop().await;
}
