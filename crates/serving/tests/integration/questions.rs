//! Conformance checks that every index must pass.

use serde_json::json;
use souk_io::domain::Item;
use souk_serving::index::{Filter, Index, IndexHit, ItemChange, VectorQuery};

pub const MODEL: &str = "m1";
/// Number of items in a checked index.
pub const NUM: usize = 2500;

pub fn item(i: usize) -> Item {
    let json = json!({"_id": format!("i{i}"), "title": format!("thing {i} {}", ["oak", "pine", "steel"][i % 3]),
                      "text": "", "price": i as f64 / 10.0, "brand": format!("b{}", i % 100),
                      "tags": [format!("t{}", i % 7), "all"], "stock": {"here": i.is_multiple_of(2)}});
    serde_json::from_value(json).unwrap()
}

/// Point on the unit circle; consecutive numbers are near each other.
pub fn vector(i: usize) -> Vec<f32> {
    let (sin, cos) = (i as f32 / 500.0).sin_cos();
    vec![sin, cos]
}

pub fn put(i: usize, to: usize) -> ItemChange {
    ItemChange::Put(item(i), vector(to))
}

pub fn filter(must: serde_json::Value) -> Filter {
    Filter { must: serde_json::from_value(must).unwrap() }
}

pub fn ids(found: &[IndexHit]) -> Vec<String> {
    found.iter().map(|found| found.item.load().unwrap().id.clone()).collect()
}

pub async fn nearest(index: &dyn Index, to: usize, k: usize, filter: Option<&Filter>) -> Vec<IndexHit> {
    index.nearest(VectorQuery::new(&vector(to), k), filter).await.unwrap()
}

/// Checks an index of the items 0 to `NUM` with their own vectors.
pub async fn conforms(index: &dyn Index) {
    assert_eq!(index.num_items().await.unwrap(), NUM);
    finds_and_filters(index).await;
    changes(index).await;
    refuses(index).await;
}

async fn finds_and_filters(index: &dyn Index) {
    let found = nearest(index, 1000, 3, None).await;
    assert_eq!(ids(&found)[0], "i1000");
    assert!((found[0].score - 1.0).abs() < 1e-3 && found[0].score >= found[2].score);
    assert_eq!(*found[0].item.load().unwrap(), item(1000), "items are returned unchanged");
    assert!(nearest(index, 1000, 0, None).await.is_empty());
    // filters that match few and many items
    for (must, every) in [
        (json!([{"field": "brand", "eq": "b7"}]), 100),
        (json!([{"field": "stock.here", "eq": true}]), 2),
        (json!([{"field": "tags", "in": ["t3", "none"]}]), 7),
    ] {
        let filter = filter(must);
        let found = nearest(index, 1207, 4, Some(&filter)).await;
        let mut kept: Vec<usize> = (0..NUM)
            .filter(|i| match every {
                100 => i % 100 == 7,
                2 => i.is_multiple_of(2),
                _ => i % 7 == 3,
            })
            .collect();
        kept.sort_by_key(|i| (i.abs_diff(1207), *i));
        let far = |id: String| id[1..].parse::<usize>().unwrap().abs_diff(1207);
        let distances: Vec<usize> = ids(&found).into_iter().map(far).collect();
        let expected: Vec<usize> = kept[..4].iter().map(|i| i.abs_diff(1207)).collect();
        assert_eq!(distances, expected, "{filter:?}");
    }
    let range = filter(json!([{"field": "price", "gte": 10.0, "lte": 10.2}]));
    let mut found = ids(&nearest(index, 101, 10, Some(&range)).await);
    found.sort();
    assert_eq!(found, ["i100", "i101", "i102"]);
}

async fn changes(index: &dyn Index) {
    // one item moves, one is deleted, one is added
    let there = index.apply(&[put(1000, 50), ItemChange::Delete("i7".into()), put(9000, 1000)]).await.unwrap();
    assert_eq!(there, 2);
    assert_eq!(index.num_items().await.unwrap(), NUM);
    assert_eq!(ids(&nearest(index, 1000, 1, None).await), ["i9000"]);
    let near = nearest(index, 50, 3, None).await;
    assert!(["i1000", "i50"].iter().all(|id| ids(&near).contains(&(*id).into())), "{near:?}");
    assert!(!ids(&nearest(index, 7, 5, None).await).contains(&"i7".into()));
    let got = index.get(&["i7".into(), "i9000".into(), "i1".into()]).await.unwrap();
    assert_eq!(got, [None, Some(item(9000)), Some(item(1))]);
    // filters see added items
    let brand = filter(json!([{"field": "brand", "eq": "b0"}]));
    assert_eq!(ids(&nearest(index, 1000, 1, Some(&brand)).await), ["i9000"]);
    // applying again, as after a restart, changes nothing
    assert_eq!(index.apply(&[ItemChange::Delete("i7".into())]).await.unwrap(), 0);
    assert_eq!(index.apply(&[put(9000, 1000)]).await.unwrap(), 1);
    assert_eq!(index.num_items().await.unwrap(), NUM);
    // of several changes to one id, the last counts
    index.apply(&[put(9000, 1), ItemChange::Delete("i9000".into()), put(7, 7), put(1000, 1000)]).await.unwrap();
    assert_eq!(ids(&nearest(index, 1000, 1, None).await), ["i1000"]);
    assert_eq!(index.num_items().await.unwrap(), NUM);
    assert_eq!(index.get(&["i9000".into()]).await.unwrap(), [None]);
}

async fn refuses(index: &dyn Index) {
    let short = index.nearest(VectorQuery::new(&[1.0], 1), None).await;
    assert!(short.unwrap_err().to_string().contains("1 entries"));
    assert!(index.nearest(VectorQuery::new(&[1.0, f32::NAN], 1), None).await.is_err());
    assert!(index.apply(&[ItemChange::Put(item(1), vec![1.0])]).await.is_err());
    let empty = filter(json!([{"field": "price"}]));
    assert!(index.nearest(VectorQuery::new(&[0.0, 1.0], 1), Some(&empty)).await.is_err());
}
