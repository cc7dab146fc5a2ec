//! Milvus as an index, on a real server: the questions that every index goes through, and what a server brings with it,
//! which is aliases, restarts, wrong addresses and collections of other models.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use souk_io::address::Address;
use souk_io::domain::Item;
use souk_io::error::Error;
use souk_serving::index::{Ask, Change, Index, IndexSettings, Kind, Milvus, MilvusSettings};
use tokio::sync::{RwLock, RwLockReadGuard};

use crate::questions::{MODEL, NUM, conforms, filter, ids, item, nearest, put, vector};

/// Held for reading by whoever needs the server up, for writing while it is restarted.
static UP: RwLock<()> = RwLock::const_new(());

fn skip(test: &str, reason: &str) {
    if let Some(file) = std::env::var_os("SOUK_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

/// Names of this test's own on the server, or a note that the test was skipped.
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

/// The settings and the promise that the server stays up.
async fn steady(test: &str) -> Option<(MilvusSettings, RwLockReadGuard<'static, ()>)> {
    let settings = settings(test)?;
    Some((settings, UP.read().await))
}

async fn filled(settings: &MilvusSettings, name: &str, kind: Kind, num: usize) -> Milvus {
    let index = IndexSettings { kind, ..IndexSettings::default() };
    let milvus = Milvus::create(settings, name, (MODEL, 2), &index).await.unwrap();
    assert_eq!(milvus.num_items().await.unwrap(), 0);
    let puts: Vec<Change> = (0..num).map(|i| put(i, i)).collect();
    assert_eq!(milvus.apply(&puts).await.unwrap(), 0);
    milvus
}

#[tokio::test]
async fn milvus_conforms() {
    let Some((settings, _up)) = steady("milvus_conforms").await else { return };
    let milvus = filled(&settings, "graph", Kind::Hnsw, NUM).await;
    conforms(&milvus).await;
    let vectors: Vec<Vec<f32>> = (0..NUM).step_by(500).map(vector).collect();
    assert!(milvus.recall(&vectors, 10).await.unwrap() > 0.9);
    let far = milvus.nearest(Ask::new(&vector(0), 300), None).await.unwrap();
    assert_eq!(far.len(), 300);
    assert_eq!(far[0].item, item(0), "items that do not fit into one answer for sure come as they were, too");
    assert!(far.is_sorted_by(|a, b| a.score >= b.score));
    assert!(milvus.nearest(Ask::new(&vector(0), 20_000), None).await.is_err());
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

/// Whatever letters and numbers it has.
#[tokio::test]
async fn an_item_comes_back_as_it_was_and_is_filtered_by_what_it_has() {
    let name = "an_item_comes_back_as_it_was_and_is_filtered_by_what_it_has";
    let Some((settings, _up)) = steady(name).await else { return };
    let milvus = Milvus::create(&settings, "odd", (MODEL, 2), &IndexSettings::default()).await.unwrap();
    let odd = json!({"_id": "a'b\"c\\d\n\u{e4}\u{1f600}", "title": "", "text": "line\nline", "none": null, "z": 1, "a": 2.0,
        "big": u64::MAX, "small": 5e-324, "tenth": 0.1, "minus": -3, "deep": {"er": {"list": [1, "two", {"three": [true]}]}},
        "we\"ird][ k\u{e9}y\\": "v\"a\\l\nu\te\r\u{e9}\u{7}", "numbers": [1, 9], "brand": "x'); drop"});
    let odd: Item = serde_json::from_value(odd).unwrap();
    let plain = Item { id: "plain".into(), ..item(1) };
    let changes = [Change::Put(odd.clone(), vector(0)), Change::Put(plain.clone(), vector(0))];
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
        // the one is below, the other above, and none within
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
    // what an item has no longer is gone
    let bare = Item { fields: serde_json::Map::new(), ..odd.clone() };
    assert_eq!(milvus.apply(&[Change::Put(bare.clone(), vector(0))]).await.unwrap(), 1);
    assert_eq!(milvus.get(&[odd.id.clone(), "plain".into()]).await.unwrap(), [Some(bare), Some(plain)]);
    let brand = filter(json!([{"field": "brand", "eq": "x'); drop"}]));
    assert!(nearest(&milvus, 0, 5, Some(&brand)).await.is_empty());
    let long = Item { text: "\u{e4}".repeat(40_000), ..item(5) };
    let error = milvus.apply(&[put(6, 6), Change::Put(long, vector(5))]).await.unwrap_err();
    assert!(error.to_string().contains("`i5`"), "{error}");
    assert_eq!(milvus.num_items().await.unwrap(), 2, "nothing of a call that is refused is done");
    assert!(milvus.takes(&[put(6, 6)]).is_ok(), "and it is known before");
    Milvus::remove(&settings, "odd").await.unwrap();
}

/// Answers are cut where items are as long as they may be.
#[tokio::test]
async fn long_items_come_in_more_answers() {
    let Some((settings, _up)) = steady("long_items_come_in_more_answers").await else { return };
    let milvus = Milvus::create(&settings, "long", (MODEL, 2), &IndexSettings::default()).await.unwrap();
    let long = |i: usize| Item { text: "x".repeat(60_000), ..item(i) };
    let puts: Vec<Change> = (0..150).map(|i| Change::Put(long(i), vector(i))).collect();
    assert_eq!(milvus.apply(&puts).await.unwrap(), 0);
    assert_eq!(milvus.apply(&puts[..3]).await.unwrap(), 3);
    assert_eq!(nearest(&milvus, 0, 60, None).await.len(), 60);
    let found = nearest(&milvus, 0, 150, None).await;
    assert_eq!((found.len(), &found[7].item), (150, &long(7)));
    pages(&milvus, 150).await;
    Milvus::remove(&settings, "long").await.unwrap();
}

#[tokio::test]
async fn an_alias_goes_from_one_collection_to_another() {
    let Some((settings, _up)) = steady("an_alias_goes_from_one_collection_to_another").await else { return };
    let old = filled(&settings, "old", Kind::Auto, 10).await;
    let new = filled(&settings, "new", Kind::Exact, 20).await;
    let served = async || Milvus::open(&settings, &settings.alias, MODEL, 2).await;
    assert!(served().await.is_err());
    old.serve_as(&settings, &settings.alias).await.unwrap();
    let before = served().await.unwrap();
    assert_eq!((before.name(), before.num_items().await.unwrap()), (old.name(), 10));
    new.serve_as(&settings, &settings.alias).await.unwrap();
    new.serve_as(&settings, &settings.alias).await.unwrap();
    let after = served().await.unwrap();
    assert_eq!((after.name(), after.num_items().await.unwrap()), (new.name(), 20));
    assert_eq!(before.num_items().await.unwrap(), 10, "what was opened stays what it was");
    Milvus::remove(&settings, "old").await.unwrap();
    assert!(before.num_items().await.is_err());
    assert_eq!(ids(&nearest(&after, 15, 1, None).await), ["i15"]);
}

#[tokio::test]
async fn another_model_or_width_is_refused_by_name() {
    let Some((settings, _up)) = steady("another_model_or_width_is_refused_by_name").await else { return };
    let milvus = filled(&settings, "mine", Kind::Auto, 1).await;
    let open = async |name: &str, model: &str, dimensions: i64| {
        Milvus::open(&settings, name, model, dimensions).await.err().map(|error| error.to_string())
    };
    assert_eq!(open("mine", MODEL, 2).await, None);
    let error = open("mine", "m2", 2).await.unwrap();
    assert!(error.contains("m1") && error.contains("m2") && error.contains(milvus.name()), "{error}");
    let error = open("mine", MODEL, 3).await.unwrap();
    assert!(error.contains("2 entries") && error.contains('3'), "{error}");
    assert!(open("mine", MODEL, 0).await.is_some());
    assert!(open("nobodys", MODEL, 2).await.is_some());
    let again = Milvus::create(&settings, "mine", (MODEL, 2), &IndexSettings::default()).await;
    let error = again.err().unwrap().to_string();
    assert!(error.contains("there already"), "a collection is not made twice: {error}");
    Milvus::remove(&settings, "mine").await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    // one that is closed, and one that never answers
    for place in ["127.0.0.1:1", &silent] {
        let address = Address::new(format!("http://root:secret@{place}"));
        let settings = MilvusSettings { address, timeout_seconds: 1, ..MilvusSettings::default() };
        let begun = Instant::now();
        let error = Milvus::open(&settings, "any", MODEL, 2).await.err().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert!(matches!(error, Error::Upstream { retryable: true, .. }), "{error:?}");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(place) && !shown.contains("secret"), "{shown}");
    }
}

/// Runs again once this goes, for the tests that wait.
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
async fn a_server_that_was_killed_is_found_again() {
    let name = "a_server_that_was_killed_is_found_again";
    let Some(settings) = settings(name) else { return };
    let services = std::env::var_os("SOUK_SERVICES").filter(|dir| Path::new(dir).join("milvus/port").exists());
    let Some(services) = services else {
        return skip(name, "the server is not ours to restart (SOUK_SERVICES has no milvus)");
    };
    let _down = UP.write().await;
    let server = Server { services };
    let milvus = filled(&settings, "lasting", Kind::Hnsw, 50).await;
    milvus.serve_as(&settings, &settings.alias).await.unwrap();
    server.does("stop");
    let error = milvus.num_items().await.unwrap_err();
    assert!(matches!(error, Error::Upstream { retryable: true, .. }), "{error:?}");
    assert!(error.to_string().contains(&settings.address.to_string()), "{error}");
    // who asks while the server is away, and asks again, is answered once it is back
    let starting = tokio::task::spawn_blocking(move || {
        server.does("start");
        server
    });
    let begun = Instant::now();
    let found = loop {
        match milvus.nearest(Ask::new(&vector(20), 1), None).await {
            Ok(found) => break found,
            // a busy machine starts it late
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error:?}"),
        }
    };
    let server = starting.await.unwrap();
    assert_eq!(ids(&found), ["i20"]);
    assert_eq!(milvus.num_items().await.unwrap(), 50);
    assert_eq!(milvus.apply(&[put(20, 0), put(50, 20)]).await.unwrap(), 1);
    server.does("restart");
    assert_eq!(milvus.apply(&[Change::Delete("i50".into()), put(51, 20)]).await.unwrap(), 1);
    let again = Milvus::open(&settings, &settings.alias, MODEL, 2).await.unwrap();
    assert_eq!(ids(&nearest(&again, 20, 1, None).await), ["i51"]);
    Milvus::remove(&settings, "lasting").await.unwrap();
}
