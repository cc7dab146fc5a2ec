//! Milvus as an index on a real server: the conformance checks of every index, plus aliases, restarts, wrong addresses
//! and collections of other models.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use souk_io::address::Address;
use souk_io::domain::Item;
use souk_io::error::Error;
use souk_io::item_text::ItemText;
use souk_lexical::{Lexical, LexicalOptions};
use souk_serving::index::{
    CollectionContent, Index, IndexKind, IndexSettings, ItemChange, Milvus, MilvusSettings, VectorQuery,
};
use tokio::sync::{RwLock, RwLockReadGuard};

use crate::questions::{MODEL, NUM, conforms, filter, ids, item, nearest, put, vector};

/// Read-locked by tests that need the server, write-locked while it restarts.
static UP: RwLock<()> = RwLock::const_new(());

fn skip(test: &str, reason: &str) {
    if let Some(file) = std::env::var_os("SOUK_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

/// Unique names on the server for this test; None (logged as skipped) without a server.
fn settings(test: &str) -> Option<MilvusSettings> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let Some(url) = std::env::var("MILVUS_URL").ok().filter(|url| !url.is_empty()) else {
        skip(test, "no MILVUS_URL");
        return None;
    };
    let collection_prefix = format!("souk_{}_{}_", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    // a machine that compiles on every core is slow at everything else
    Some(MilvusSettings {
        address: Address::new(url),
        timeout_seconds: 60,
        collection_prefix,
        ..MilvusSettings::default()
    })
}

/// Settings, and a guard that keeps the server up.
async fn steady(test: &str) -> Option<(MilvusSettings, RwLockReadGuard<'static, ()>)> {
    let settings = settings(test)?;
    Some((settings, UP.read().await))
}

/// Vectors of two numbers, and texts searched by terms.
fn content() -> CollectionContent<'static> {
    static ITEM_TEXT: LazyLock<ItemText> = LazyLock::new(ItemText::default);
    let lexical = Some(LexicalOptions { typos: false, ..LexicalOptions::default() });
    CollectionContent { model: MODEL, dimensions: 2, item_text: &ITEM_TEXT, lexical }
}

async fn filled(settings: &MilvusSettings, name: &str, kind: IndexKind, num: usize) -> Milvus {
    let index = IndexSettings { kind, ..IndexSettings::default() };
    let milvus = Milvus::create(settings, name, content(), &index).await.unwrap();
    assert_eq!(milvus.num_items().await.unwrap(), 0);
    let puts: Vec<ItemChange> = (0..num).map(|i| put(i, i)).collect();
    assert_eq!(milvus.apply(&puts).await.unwrap(), 0);
    milvus
}

#[tokio::test]
async fn milvus_conforms() {
    let Some((settings, _up)) = steady("milvus_conforms").await else { return };
    let milvus = filled(&settings, "graph", IndexKind::Hnsw, NUM).await;
    conforms(&milvus).await;
    let vectors: Vec<Vec<f32>> = (0..NUM).step_by(500).map(vector).collect();
    assert!(milvus.recall(&vectors, 10).await.unwrap() > 0.9);
    let far = milvus.nearest(VectorQuery::new(&vector(0), 300), None).await.unwrap();
    assert_eq!(far.len(), 300);
    assert_eq!(
        *far[0].item.load().unwrap(),
        item(0),
        "items that do not fit into one answer for sure come as they were, too"
    );
    assert!(far.is_sorted_by(|a, b| a.score >= b.score));
    assert!(milvus.nearest(VectorQuery::new(&vector(0), 20_000), None).await.is_err());
    pages(&milvus, NUM).await;
    Milvus::remove(&settings, "graph").await.unwrap();
}

async fn pages(milvus: &Milvus, num: usize) {
    let (mut after, mut met) = (None, Vec::new());
    loop {
        let page = milvus.page(after.as_deref(), 300).await.unwrap();
        for (item, vector) in page.items {
            assert_eq!(vector.len(), 2);
            met.push(item.id);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(met.len(), num);
    assert!(met.is_sorted() && met.windows(2).all(|two| two[0] != two[1]), "each once, in the order of ids");
}

/// The server scores terms as the index in the process does.
#[tokio::test]
async fn finds_terms_as_the_embedded_index_does() {
    let Some((settings, _up)) = steady("finds_terms_as_the_embedded_index_does").await else { return };
    let milvus = Milvus::create(&settings, "terms", content(), &IndexSettings::default()).await.unwrap();
    let titles = ["oak desks 120 cm", "Oak Chair, for a desk", "steel lamp lamp 3/4 in.", "Lamps & chairs", ""];
    let titled = |i: usize, title: &str| Item { title: title.into(), ..item(i) };
    let puts: Vec<ItemChange> =
        titles.iter().enumerate().map(|(i, title)| ItemChange::Put(titled(i, title), vector(i))).collect();
    milvus.apply(&puts).await.unwrap();
    let options = content().lexical.unwrap();
    let own = Lexical::build_with(options, titles.iter().map(|title| Ok((*title).to_owned()))).unwrap();
    for query in ["desk", "oak chairs", "lamps 3/4 in.", "lamp lamp desk", "a purple one", "of the", ""] {
        let found = milvus.lexical(query, 10, None).await.unwrap().unwrap();
        let expected = own.search(query, 10).unwrap();
        assert_eq!(found.len(), expected.len(), "{query}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.item.load().unwrap().id, format!("i{}", expected.row), "{query}");
            assert!((found.score - expected.score).abs() < 1e-4, "{query}: {} {}", found.score, expected.score);
        }
    }
    let even = filter(json!([{"field": "stock.here", "eq": true}]));
    assert_eq!(ids(&milvus.lexical("chair", 10, Some(&even)).await.unwrap().unwrap()), Vec::<&str>::new());
    assert_eq!(ids(&milvus.lexical("lamp", 10, Some(&even)).await.unwrap().unwrap()), ["i2"]);
    assert_eq!(milvus.matcher("oak desk").unwrap().compare("an oak table", "").overlap, 0.5);
    milvus
        .apply(&[ItemChange::Put(titled(0, "purple sofa"), vector(0)), ItemChange::Delete("i1".into())])
        .await
        .unwrap();
    assert_eq!(ids(&milvus.lexical("sofa", 10, None).await.unwrap().unwrap()), ["i0"]);
    assert!(milvus.lexical("desk", 10, None).await.unwrap().unwrap().is_empty());
    let fields = milvus.fields().await.unwrap();
    assert!(fields.iter().any(|field| field.name == "stock.here" && field.num_items == 4), "{fields:?}");
    Milvus::remove(&settings, "terms").await.unwrap();
    // a collection without terms, such as one of an earlier version
    let without = CollectionContent { lexical: None, ..content() };
    let milvus = Milvus::create(&settings, "plain", without, &IndexSettings::default()).await.unwrap();
    milvus.apply(&puts).await.unwrap();
    let milvus = Milvus::open(&settings, "plain", content()).await.unwrap();
    assert!(milvus.lexical("desk", 10, None).await.unwrap().is_none() && milvus.matcher("desk").is_none());
    assert_eq!(milvus.apply(&puts).await.unwrap(), titles.len());
    Milvus::remove(&settings, "plain").await.unwrap();
}

/// Special characters and numbers in names and values.
#[tokio::test]
async fn returns_items_unchanged_and_filters_special_values() {
    let name = "returns_items_unchanged_and_filters_special_values";
    let Some((settings, _up)) = steady(name).await else { return };
    let milvus = Milvus::create(&settings, "odd", content(), &IndexSettings::default()).await.unwrap();
    let odd = json!({"_id": "a'b\"c\\d\n\u{e4}\u{1f600}", "title": "", "text": "line\nline", "none": null, "z": 1,
        "a": 2.0, "big": u64::MAX, "small": 5e-324, "tenth": 0.1, "minus": -3,
        "deep": {"er": {"list": [1, "two", {"three": [true]}]}},
        "we\"ird][ k\u{e9}y\\": "v\"a\\l\nu\te\r\u{e9}\u{7}", "numbers": [1, 9], "brand": "x'); drop"});
    let odd: Item = serde_json::from_value(odd).unwrap();
    let plain = Item { id: "plain".into(), ..item(1) };
    let changes = [ItemChange::Put(odd.clone(), vector(0)), ItemChange::Put(plain.clone(), vector(0))];
    assert_eq!(milvus.apply(&changes).await.unwrap(), 0);
    assert_eq!(milvus.get(std::slice::from_ref(&odd.id)).await.unwrap(), [Some(odd.clone())]);
    assert_eq!(nearest(&milvus, 0, 2, None).await.len(), 2);
    for (must, kept) in [
        (json!([{"field": "brand", "eq": "x'); drop"}]), true),
        (json!([{"field": "brand", "eq": "x"}]), false),
        (json!([{"field": "we\"ird][ k\u{e9}y\\", "eq": "v\"a\\l\nu\te\r\u{e9}\u{7}"}]), true),
        (json!([{"field": "deep.er.list", "eq": "two"}, {"field": "deep.er.list", "eq": 1.0}]), true),
        (json!([{"field": "deep.er.list.three", "in": [false, true]}]), true),
        (json!([{"field": "deep.er.list.three", "eq": false}]), false),
        (json!([{"field": "a", "eq": 2}, {"field": "minus", "gte": -3, "lte": -3}]), true),
        (json!([{"field": "a", "eq": "2"}]), false),
        (json!([{"field": "numbers", "gte": 1, "lte": 1}]), true),
        (json!([{"field": "numbers", "gte": 8.5}]), true),
        // one value below, one above, none within the range
        (json!([{"field": "numbers", "gte": 4, "lte": 5}]), false),
        (json!([{"field": "none", "eq": "null"}]), false),
        (json!([{"field": "nowhere", "in": [1, "a"]}]), false),
        (json!([{"field": "brand", "in": []}]), false),
        (json!([{"field": "title", "eq": ""}]), false),
    ] {
        let filter = filter(must);
        let found = nearest(&milvus, 0, 5, Some(&filter)).await;
        let expected: &[&str] = if kept { &[&odd.id] } else { &[] };
        assert_eq!(ids(&found), expected, "{filter:?}");
    }
    // removed fields no longer match
    let bare = Item { fields: serde_json::Map::new(), ..odd.clone() };
    assert_eq!(milvus.apply(&[ItemChange::Put(bare.clone(), vector(0))]).await.unwrap(), 1);
    assert_eq!(milvus.get(&[odd.id.clone(), "plain".into()]).await.unwrap(), [Some(bare), Some(plain)]);
    let brand = filter(json!([{"field": "brand", "eq": "x'); drop"}]));
    assert!(nearest(&milvus, 0, 5, Some(&brand)).await.is_empty());
    let long = Item { text: "\u{e4}".repeat(40_000), ..item(5) };
    let error = milvus.apply(&[put(6, 6), ItemChange::Put(long, vector(5))]).await.unwrap_err();
    assert!(error.to_string().contains("`i5`"), "{error}");
    assert_eq!(milvus.num_items().await.unwrap(), 2, "a rejected call changes nothing");
    assert!(milvus.check_changes(&[put(6, 6)]).is_ok(), "check_changes agrees");
    Milvus::remove(&settings, "odd").await.unwrap();
}

/// Answers are split when items have the maximum length.
#[tokio::test]
async fn splits_answers_of_long_items() {
    let Some((settings, _up)) = steady("splits_answers_of_long_items").await else { return };
    let milvus = Milvus::create(&settings, "long", content(), &IndexSettings::default()).await.unwrap();
    let long = |i: usize| Item { text: "x".repeat(60_000), ..item(i) };
    let puts: Vec<ItemChange> = (0..150).map(|i| ItemChange::Put(long(i), vector(i))).collect();
    assert_eq!(milvus.apply(&puts).await.unwrap(), 0);
    assert_eq!(milvus.apply(&puts[..3]).await.unwrap(), 3);
    assert_eq!(nearest(&milvus, 0, 60, None).await.len(), 60);
    let found = nearest(&milvus, 0, 150, None).await;
    assert_eq!((found.len(), &*found[7].item.load().unwrap()), (150, &long(7)));
    pages(&milvus, 150).await;
    Milvus::remove(&settings, "long").await.unwrap();
}

#[tokio::test]
async fn alias_moves_between_collections() {
    let Some((settings, _up)) = steady("alias_moves_between_collections").await else { return };
    let old = filled(&settings, "old", IndexKind::Auto, 10).await;
    let new = filled(&settings, "new", IndexKind::Exact, 20).await;
    let served = async || Milvus::open(&settings, &settings.alias, content()).await;
    assert!(served().await.is_err());
    Milvus::point_alias(&settings, "old", &settings.alias).await.unwrap();
    let before = served().await.unwrap();
    assert_eq!((before.name(), before.num_items().await.unwrap()), (old.name(), 10));
    Milvus::point_alias(&settings, "new", &settings.alias).await.unwrap();
    Milvus::point_alias(&settings, "new", &settings.alias).await.unwrap();
    let after = served().await.unwrap();
    assert_eq!((after.name(), after.num_items().await.unwrap()), (new.name(), 20));
    assert_eq!(before.num_items().await.unwrap(), 10, "an open collection does not change");
    Milvus::remove(&settings, "old").await.unwrap();
    assert!(before.num_items().await.is_err());
    assert_eq!(ids(&nearest(&after, 15, 1, None).await), ["i15"]);
}

#[tokio::test]
async fn rejects_another_model_or_vector_size() {
    let Some((settings, _up)) = steady("rejects_another_model_or_vector_size").await else { return };
    let milvus = filled(&settings, "mine", IndexKind::Auto, 1).await;
    let open = async |name: &str, model: &str, dimensions: i64| {
        Milvus::open(&settings, name, CollectionContent { model, dimensions, ..content() })
            .await
            .err()
            .map(|error| error.to_string())
    };
    assert_eq!(open("mine", MODEL, 2).await, None);
    let error = open("mine", "m2", 2).await.unwrap();
    assert!(error.contains("m1") && error.contains("m2") && error.contains(milvus.name()), "{error}");
    let error = open("mine", MODEL, 3).await.unwrap();
    assert!(error.contains("2 entries") && error.contains('3'), "{error}");
    assert!(open("mine", MODEL, 0).await.is_some());
    assert!(open("nobodys", MODEL, 2).await.is_some());
    let again = Milvus::create(&settings, "mine", content(), &IndexSettings::default()).await;
    let error = again.err().unwrap().to_string();
    assert!(error.contains("exists already"), "a collection is not made twice: {error}");
    Milvus::remove(&settings, "mine").await.unwrap();
}

#[tokio::test]
async fn reports_an_unreachable_server_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    // a closed port, and a server that never answers
    for place in ["127.0.0.1:1", &silent] {
        let address = Address::new(format!("http://root:secret@{place}"));
        let settings = MilvusSettings { address, timeout_seconds: 1, ..MilvusSettings::default() };
        let begun = Instant::now();
        let error = Milvus::open(&settings, "any", content()).await.err().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert!(matches!(error, Error::Upstream { retryable: true, .. }), "{error:?}");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(place) && !shown.contains("secret"), "{shown}");
    }
}

/// Restarts the server on drop, for the tests that wait.
struct Server {
    services: OsString,
}

impl Server {
    fn does(&self, verb: &str) {
        let script = souk_testing::repository().join("scripts/services.sh");
        let done = Command::new(script).args([verb, "milvus"]).arg(&self.services).output().unwrap();
        assert!(done.status.success() || std::thread::panicking(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.does("start");
    }
}

#[tokio::test]
async fn reconnects_after_a_restart() {
    let name = "reconnects_after_a_restart";
    let Some(settings) = settings(name) else { return };
    let services = std::env::var_os("SOUK_SERVICES").filter(|dir| Path::new(dir).join("milvus/port").exists());
    let Some(services) = services else {
        return skip(name, "the server is not ours to restart (SOUK_SERVICES has no milvus)");
    };
    let _down = UP.write().await;
    let server = Server { services };
    let milvus = filled(&settings, "lasting", IndexKind::Hnsw, 50).await;
    Milvus::point_alias(&settings, "lasting", &settings.alias).await.unwrap();
    server.does("stop");
    let error = milvus.num_items().await.unwrap_err();
    assert!(matches!(error, Error::Upstream { retryable: true, .. }), "{error:?}");
    assert!(error.to_string().contains(&settings.address.to_string()), "{error}");
    // requests sent while the server is down succeed after it is back
    let starting = tokio::task::spawn_blocking(move || {
        server.does("start");
        server
    });
    let begun = Instant::now();
    let found = loop {
        match milvus.nearest(VectorQuery::new(&vector(20), 1), None).await {
            Ok(found) => break found,
            // a busy machine starts the server slowly
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error:?}"),
        }
    };
    let server = starting.await.unwrap();
    assert_eq!(ids(&found), ["i20"]);
    assert_eq!(milvus.num_items().await.unwrap(), 50);
    assert_eq!(milvus.apply(&[put(20, 0), put(50, 20)]).await.unwrap(), 1);
    server.does("restart");
    assert_eq!(milvus.apply(&[ItemChange::Delete("i50".into()), put(51, 20)]).await.unwrap(), 1);
    let again = Milvus::open(&settings, &settings.alias, content()).await.unwrap();
    assert_eq!(ids(&nearest(&again, 20, 1, None).await), ["i51"]);
    Milvus::remove(&settings, "lasting").await.unwrap();
}
