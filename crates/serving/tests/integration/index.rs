//! Conformance of the embedded indexes: changes, filters, ties and invalid input. Milvus runs the same checks in
//! `crates/serving/tests/integration/milvus.rs`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use souk_io::domain::Item;
use souk_io::error::Error;
use souk_io::item_text::ItemText;
use souk_lexical::{Fusion, LexicalOptions, Weights};
use souk_serving::index::{
    HitItem, HitKey, Index, IndexHit, IndexKind, IndexSettings, ItemChange, Live, Snapshot, VectorQuery,
};
use souk_serving::search::{Channel, SearchParams, find};

use crate::questions::{MODEL, NUM, conforms, filter, ids, item, nearest, put, vector};

fn live(dir: &Path, kind: IndexKind) -> Live {
    let settings = IndexSettings { kind, ..IndexSettings::default() };
    let mut builder = Snapshot::builder(dir, MODEL.into(), 2, settings).unwrap();
    for i in 0..NUM {
        builder.add(&item(i), &vector(i)).unwrap();
    }
    builder.write(&mut |_| ()).unwrap();
    Live::add_lexical(dir, &Snapshot::open(dir, MODEL, 2).unwrap(), LexicalOptions::default(), &ItemText::default())
        .unwrap();
    Live::open(dir, MODEL, 2, &ItemText::default()).unwrap()
}

#[tokio::test]
async fn exact_index_conforms() {
    let home = tempfile::tempdir().unwrap();
    let index = live(&home.path().join("index"), IndexKind::Exact);
    conforms(&index).await;
    has_fields_and_lexical_search(&index).await;
}

#[tokio::test]
async fn hnsw_index_conforms() {
    let home = tempfile::tempdir().unwrap();
    let index = live(&home.path().join("index"), IndexKind::Hnsw);
    conforms(&index).await;
    assert!(index.recall(&(0..NUM).step_by(50).map(vector).collect::<Vec<_>>(), 10).await.unwrap() > 0.95);
    has_fields_and_lexical_search(&index).await;
    rebuilt_snapshot_matches(&index, home.path()).await;
}

/// Adds as many items as the snapshot has, changes some and deletes some. Searches match brute force before and after
/// the new items join the graph, with filters and lexically.
#[tokio::test]
async fn finds_added_items_like_brute_force() {
    let home = tempfile::tempdir().unwrap();
    let index = live(&home.path().join("index"), IndexKind::Hnsw);
    let all = live(&home.path().join("exact"), IndexKind::Exact);
    let place = |i: usize| put(10_000 + i, (i * 7) % (2 * NUM));
    let mut changes: Vec<ItemChange> = (0..2 * NUM).map(place).collect();
    // a price change adds no vector
    changes.extend((0..2 * NUM).step_by(3).map(place));
    changes.extend((0..2 * NUM).step_by(10).map(|i| ItemChange::Delete(format!("i{}", 10_000 + i))));
    changes.extend((0..NUM).step_by(5).map(|i| ItemChange::Delete(format!("i{i}"))));
    for index in [&index, &all] {
        index.apply(&changes).await.unwrap();
    }
    let cheap = filter(json!([{"field": "price", "lte": 1200}]));
    let brand = filter(json!([{"field": "brand", "eq": "b5"}]));
    for joined in [false, true] {
        if joined {
            index.grow_graph();
        }
        let (mut found, mut there) = (0, 0);
        for at in (0..2 * NUM).step_by(97) {
            for (filter, k) in [(None, 1), (None, 20), (Some(&cheap), 10), (Some(&brand), 10)] {
                let vector = vector(at);
                let near = |index| nearest_of(index, &vector, k, filter);
                let (near, exact) = (near(&index).await, near(&all).await);
                assert_eq!(near.len(), exact.len());
                there += exact.len();
                found += exact.iter().filter(|found| near.contains(found)).count();
            }
        }
        assert!(found as f64 >= 0.98 * there as f64, "{found} of {there}, joined: {joined}");
    }
    for query in ["thing 10007", "oak 10010", "thing 12"] {
        for filter in [None, Some(&brand)] {
            let (found, exact) = (index.lexical(query, 10, filter).await, all.lexical(query, 10, filter).await);
            let (found, exact) = (found.unwrap().unwrap(), exact.unwrap().unwrap());
            // the order of equal scores is free
            let scores = |found: &[IndexHit]| found.iter().map(|found| found.score).collect::<Vec<_>>();
            assert_eq!(scores(&found), scores(&exact));
        }
    }
    assert_eq!(ids(&index.lexical("10010", 10, None).await.unwrap().unwrap()), Vec::<String>::new(), "it was deleted");
}

async fn nearest_of(
    index: &Live,
    vector: &[f32],
    k: usize,
    filter: Option<&souk_serving::index::Filter>,
) -> Vec<String> {
    ids(&index.nearest(VectorQuery::new(vector, k), filter).await.unwrap())
}

/// A hybrid search that nobody waits for ends after its next part.
#[tokio::test]
async fn a_search_that_nobody_waits_for_ends() {
    let home = tempfile::tempdir().unwrap();
    let index = live(&home.path().join("index"), IndexKind::Exact);
    let vector = vector(3);
    let channel = Channel::Hybrid(Fusion::Weights(Weights::default()));
    for num_parts in 1..=3 {
        let num_asked = AtomicUsize::new(0);
        let is_wanted = || num_asked.fetch_add(1, Ordering::Relaxed) + 1 < num_parts;
        let (item_text, text) = (ItemText::default(), Some("lamp"));
        let params = SearchParams {
            text,
            vector: Some(&vector),
            k: 5,
            ef: None,
            filter: None,
            channel: &channel,
            item_text: &item_text,
            is_wanted: &is_wanted,
        };
        let found = find(&index, &params).await;
        assert!(matches!(found, Err(Error::Input { .. })), "{num_parts}");
        assert_eq!(num_asked.load(Ordering::Relaxed), num_parts);
    }
}

/// Hits of the snapshot are not read before they are loaded; a changed item has the key of the row that it replaced.
#[tokio::test]
async fn hits_are_read_when_they_are_loaded() {
    let home = tempfile::tempdir().unwrap();
    let index = live(&home.path().join("index"), IndexKind::Exact);
    let before = index.nearest(VectorQuery::new(&vector(7), 2), None).await.unwrap();
    assert!(before.iter().all(|hit| matches!(hit.item, HitItem::Stored { .. })), "{before:?}");
    let changed = Item { title: "zebra".into(), ..item(7) };
    let new = Item { id: "new".into(), ..item(8) };
    index.apply(&[ItemChange::Put(changed.clone(), vector(7)), ItemChange::Put(new, vector(7))]).await.unwrap();
    let after = index.nearest(VectorQuery::new(&vector(7), 2), None).await.unwrap();
    assert_eq!((after[0].item.key(), after[1].item.key()), (before[0].item.key(), HitKey::Id("new")));
    assert_eq!(*after[0].item.load().unwrap(), changed);
    let mut old = before[0].item.clone();
    old.fetch().unwrap();
    assert_eq!((&*old.load().unwrap(), old.key()), (&item(7), before[0].item.key()), "hits outlive a change");
}

/// Checks of features that only the embedded index has.
async fn has_fields_and_lexical_search(index: &Live) {
    let fields = index.fields().await.unwrap();
    let price = fields.iter().find(|field| field.name == "price").unwrap();
    assert_eq!((price.min, price.max), (Some(0.0), Some(249.9)));
    let unknown = filter(json!([{"field": "colour", "eq": "red"}]));
    let error = index.nearest(VectorQuery::new(&[0.0, 1.0], 1), Some(&unknown)).await.unwrap_err().to_string();
    assert!(error.contains("`colour`") && error.contains("brand"), "{error}");

    let found = index.lexical("thing 1234", 1, None).await.unwrap().unwrap();
    assert_eq!(ids(&found), ["i1234"]);
    let zebra = Item { title: "zebra oak".into(), ..item(1234) };
    index.apply(&[ItemChange::Put(zebra, vector(1234))]).await.unwrap();
    assert_eq!(ids(&index.lexical("zebra", 5, None).await.unwrap().unwrap()), ["i1234"]);
    let found = index.lexical("1234", 5, None).await.unwrap().unwrap();
    assert!(found.is_empty(), "replaced texts do not match: {found:?}");
    let brand = filter(json!([{"field": "brand", "eq": "b5"}]));
    let found = index.lexical("oak", 3, Some(&brand)).await.unwrap().unwrap();
    assert!(found.len() == 3 && found.iter().all(|found| found.item.load().unwrap().fields["brand"] == "b5"));
    index.apply(&[put(1234, 1234)]).await.unwrap();
}

/// A new snapshot of an index gives the same answers.
async fn rebuilt_snapshot_matches(index: &Live, home: &Path) {
    index.apply(&[put(1000, 50), ItemChange::Delete("i7".into()), put(9000, 1000)]).await.unwrap();
    assert!(index.num_changed() > 0);
    let dir = home.join("again");
    let mut builder = Snapshot::builder(&dir, MODEL.into(), 2, IndexSettings::default()).unwrap();
    let (mut after, mut num) = (None, 0);
    loop {
        let page = index.page(after.as_deref(), 300).await.unwrap();
        num += page.items.len();
        for (item, vector) in page.items {
            builder.add(&item, &vector).unwrap();
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(num, NUM);
    let sample = index.sample(500).await.unwrap();
    let ids: HashSet<&str> = sample.iter().map(|(item, _)| item.id.as_str()).collect();
    assert!(ids.len() == sample.len() && (300..=500).contains(&ids.len()) && !ids.contains("i7"), "{}", ids.len());
    builder.write(&mut |_| ()).unwrap();
    let again = Live::open(&dir, MODEL, 2, &ItemText::default()).unwrap();
    assert_eq!(again.num_changed(), 0);
    for to in [7, 50, 1000, 2000] {
        let (a, b) = (nearest(index, to, 5, None).await, nearest(&again, to, 5, None).await);
        let scores = |found: &[IndexHit]| found.iter().map(|found| found.score).collect::<Vec<_>>();
        assert!(scores(&a).iter().zip(scores(&b)).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} {b:?}");
        assert_eq!(a[0].item.load().unwrap(), b[0].item.load().unwrap());
    }
    assert!(again.lexical("oak", 1, None).await.unwrap().is_none());
}
