//! What every index of items must do, whatever it is made of: items come, go and change, filters hold, ties and bad input
//! are treated alike. Each implementation goes through the same questions.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

use std::path::Path;

use serde_json::json;
use souk::domain::Item;
use souk::index::{Ask, Change, Filter, Found, Index, IndexSettings, Kind, Live, Snapshot};
use souk::lexical::LexicalOptions;

const MODEL: &str = "m1";
const NUM: usize = 2500;

fn item(i: usize) -> Item {
    let json = json!({"_id": format!("i{i}"), "title": format!("thing {i} {}", ["oak", "pine", "steel"][i % 3]),
                      "text": "", "price": i as f64 / 10.0, "brand": format!("b{}", i % 100),
                      "tags": [format!("t{}", i % 7), "all"], "stock": {"here": i.is_multiple_of(2)}});
    serde_json::from_value(json).unwrap()
}

/// On the unit circle; neighbours in number are neighbours in direction.
fn vector(i: usize) -> Vec<f32> {
    let (sin, cos) = (i as f32 / 500.0).sin_cos();
    vec![sin, cos]
}

fn put(i: usize, to: usize) -> Change {
    Change::Put(item(i), vector(to))
}

fn live(dir: &Path, kind: Kind) -> Live {
    let settings = IndexSettings { kind, ..IndexSettings::default() };
    let mut builder = Snapshot::builder(dir, (MODEL.into(), 2), settings).unwrap();
    for i in 0..NUM {
        builder.add(item(i), &vector(i)).unwrap();
    }
    builder.write(&mut |_| ()).unwrap();
    Live::add_lexical(dir, &Snapshot::open(dir, MODEL, 2).unwrap(), LexicalOptions::default()).unwrap();
    Live::open(dir, MODEL, 2).unwrap()
}

fn filter(must: serde_json::Value) -> Filter {
    Filter { must: serde_json::from_value(must).unwrap() }
}

fn ids(found: &[Found]) -> Vec<&str> {
    found.iter().map(|found| found.item.id.as_str()).collect()
}

async fn nearest(index: &dyn Index, to: usize, k: usize, filter: Option<&Filter>) -> Vec<Found> {
    index.nearest(Ask::new(&vector(to), k), filter).await.unwrap()
}

/// An index of the items 0 to `NUM`, at their own directions.
async fn conforms(index: &dyn Index) {
    assert_eq!(index.num_items().await.unwrap(), NUM);
    finds_and_filters(index).await;
    changes(index).await;
    refuses(index).await;
}

async fn finds_and_filters(index: &dyn Index) {
    let found = nearest(index, 1000, 3, None).await;
    assert_eq!(ids(&found)[0], "i1000");
    assert!((found[0].score - 1.0).abs() < 1e-3 && found[0].score >= found[2].score);
    assert_eq!(found[0].item, item(1000), "an item comes back as it was");
    assert!(nearest(index, 1000, 0, None).await.is_empty());
    // few and many are kept; the nearest that are
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
        let far = |id: &str| id[1..].parse::<usize>().unwrap().abs_diff(1207);
        let distances: Vec<usize> = ids(&found).into_iter().map(far).collect();
        let expected: Vec<usize> = kept[..4].iter().map(|i| i.abs_diff(1207)).collect();
        assert_eq!(distances, expected, "{filter:?}");
    }
    let range = filter(json!([{"field": "price", "gte": 10.0, "lte": 10.2}]));
    let mut found =
        ids(&nearest(index, 101, 10, Some(&range)).await).into_iter().map(str::to_owned).collect::<Vec<_>>();
    found.sort();
    assert_eq!(found, ["i100", "i101", "i102"]);
}

async fn changes(index: &dyn Index) {
    // an item moves, one goes, one comes
    let there = index.apply(&[put(1000, 50), Change::Delete("i7".into()), put(9000, 1000)]).await.unwrap();
    assert_eq!(there, 2);
    assert_eq!(index.num_items().await.unwrap(), NUM);
    assert_eq!(ids(&nearest(index, 1000, 1, None).await), ["i9000"]);
    let near = nearest(index, 50, 3, None).await;
    assert!(ids(&near).contains(&"i1000") && ids(&near).contains(&"i50"), "{near:?}");
    assert!(!ids(&nearest(index, 7, 5, None).await).contains(&"i7"));
    let got = index.get(&["i7".into(), "i9000".into(), "i1".into()]).await.unwrap();
    assert_eq!(got, [None, Some(item(9000)), Some(item(1))]);
    // what came is filtered as well
    let brand = filter(json!([{"field": "brand", "eq": "b0"}]));
    assert_eq!(ids(&nearest(index, 1000, 1, Some(&brand)).await), ["i9000"]);
    // again, as after a restart: nothing changes
    assert_eq!(index.apply(&[Change::Delete("i7".into())]).await.unwrap(), 0);
    assert_eq!(index.apply(&[put(9000, 1000)]).await.unwrap(), 1);
    assert_eq!(index.num_items().await.unwrap(), NUM);
    // of one id, the last change counts
    index.apply(&[put(9000, 1), Change::Delete("i9000".into()), put(7, 7), put(1000, 1000)]).await.unwrap();
    assert_eq!(ids(&nearest(index, 1000, 1, None).await), ["i1000"]);
    assert_eq!(index.num_items().await.unwrap(), NUM);
    assert_eq!(index.get(&["i9000".into()]).await.unwrap(), [None]);
}

async fn refuses(index: &dyn Index) {
    let short = index.nearest(Ask::new(&[1.0], 1), None).await;
    assert!(short.unwrap_err().to_string().contains("1 entries"));
    assert!(index.nearest(Ask::new(&[1.0, f32::NAN], 1), None).await.is_err());
    assert!(index.apply(&[Change::Put(item(1), vec![1.0])]).await.is_err());
    let empty = filter(json!([{"field": "price"}]));
    assert!(index.nearest(Ask::new(&[0.0, 1.0], 1), Some(&empty)).await.is_err());
}

#[tokio::test]
async fn an_exact_index_conforms() {
    let home = tempfile::tempdir().unwrap();
    let index = live(&home.path().join("index"), Kind::Exact);
    conforms(&index).await;
    names_fields_and_terms(&index).await;
}

#[tokio::test]
async fn a_graph_conforms() {
    let home = tempfile::tempdir().unwrap();
    let index = live(&home.path().join("index"), Kind::Hnsw);
    conforms(&index).await;
    assert!(index.recall(&(0..NUM).step_by(50).map(vector).collect::<Vec<_>>(), 10).await.unwrap() > 0.95);
    names_fields_and_terms(&index).await;
    takes_up_what_changed(&index, home.path()).await;
}

/// What the embedded index has beside.
async fn names_fields_and_terms(index: &Live) {
    let fields = index.fields().await.unwrap();
    let price = fields.iter().find(|field| field.name == "price").unwrap();
    assert_eq!((price.min, price.max), (Some(0.0), Some(249.9)));
    let unknown = filter(json!([{"field": "colour", "eq": "red"}]));
    let error = index.nearest(Ask::new(&[0.0, 1.0], 1), Some(&unknown)).await.unwrap_err().to_string();
    assert!(error.contains("`colour`") && error.contains("brand"), "{error}");

    let found = index.lexical("thing 1234", 1, None).await.unwrap().unwrap();
    assert_eq!(ids(&found), ["i1234"]);
    let zebra = Item { title: "zebra oak".into(), ..item(1234) };
    index.apply(&[Change::Put(zebra, vector(1234))]).await.unwrap();
    assert_eq!(ids(&index.lexical("zebra", 5, None).await.unwrap().unwrap()), ["i1234"]);
    let found = index.lexical("1234", 5, None).await.unwrap().unwrap();
    assert!(found.is_empty(), "what was replaced is not found: {found:?}");
    let brand = filter(json!([{"field": "brand", "eq": "b5"}]));
    let found = index.lexical("oak", 3, Some(&brand)).await.unwrap().unwrap();
    assert!(found.len() == 3 && found.iter().all(|found| found.item.fields["brand"] == "b5"));
    index.apply(&[put(1234, 1234)]).await.unwrap();
}

/// A new snapshot of what an index holds answers as that index.
async fn takes_up_what_changed(index: &Live, home: &Path) {
    index.apply(&[put(1000, 50), Change::Delete("i7".into()), put(9000, 1000)]).await.unwrap();
    assert!(index.num_changed() > 0);
    let dir = home.join("again");
    let mut builder = Snapshot::builder(&dir, (MODEL.into(), 2), IndexSettings::default()).unwrap();
    let (mut after, mut num) = (None, 0);
    loop {
        let page = index.page(after.as_deref(), 300).await.unwrap();
        num += page.items.len();
        for (item, vector) in page.items {
            builder.add(item, &vector).unwrap();
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(num, NUM);
    builder.write(&mut |_| ()).unwrap();
    let again = Live::open(&dir, MODEL, 2).unwrap();
    assert_eq!(again.num_changed(), 0);
    for to in [7, 50, 1000, 2000] {
        let (a, b) = (nearest(index, to, 5, None).await, nearest(&again, to, 5, None).await);
        let scores = |found: &[Found]| found.iter().map(|found| found.score).collect::<Vec<_>>();
        assert!(scores(&a).iter().zip(scores(&b)).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} {b:?}");
        assert_eq!(a[0].item, b[0].item);
    }
    assert!(again.lexical("oak", 1, None).await.unwrap().is_none());
}
