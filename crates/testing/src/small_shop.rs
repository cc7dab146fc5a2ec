//! A small shop whose shoppers ask for an item by its kind and its number, and judgements that say that this is it.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use serde_json::json;
use souk_io::ubi::{Action, EventRecord, QueryRecord};
use tempfile::TempDir;

pub const ITEMS: usize = 60;
const KINDS: [&str; 6] = ["desk", "lamp", "chair", "pipe", "jacket", "bottle"];

pub fn model() -> PathBuf {
    crate::golden("st_mean_dense")
}

fn words(item: usize) -> String {
    format!("{} {item}", KINDS[item % 6])
}

pub fn shop() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir_all(data.join("qrels")).unwrap();
    let (mut corpus, mut queries, mut qrels) = (String::new(), String::new(), String::new());
    for item in 0..ITEMS {
        let title = format!("{} number {item} in {}", KINDS[item % 6], ["red", "blue", "oak"][item % 3]);
        corpus += &format!("{}\n", json!({"_id": format!("d{item}"), "title": title}));
        queries += &format!("{}\n", json!({"_id": format!("q{item}"), "text": words(item)}));
        qrels += &format!("q{item}\td{item}\t4\n");
    }
    for (name, text) in [("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/test.tsv", qrels)] {
        fs::write(data.join(name), text).unwrap();
    }
    home
}

/// A search and a click for each number, each with its key; their times tell them apart.
pub fn messages(numbers: Range<usize>) -> impl Iterator<Item = (String, String)> {
    numbers.flat_map(|n| search(n, &words(n % ITEMS), &format!("d{}", n % ITEMS)))
}

/// A search for a text and a click on an item.
pub fn search(number: usize, text: &str, item: &str) -> [(String, String); 2] {
    let (id, time) = (format!("s{number}"), 1_700_000_000_000 + number as i64 * 1000);
    let (mut search, mut click) = (Vec::new(), Vec::new());
    let query =
        QueryRecord { query_id: id.as_str().into(), client_id: "c".into(), text: text.into(), time, hits: Vec::new() };
    query.write("shop", &mut search);
    let event = EventRecord {
        action: Action::Click,
        query_id: id.as_str().into(),
        client_id: "c".into(),
        item: item.into(),
        position: Some(1),
        time,
        text: None,
    };
    event.write("shop", &mut click);
    [search, click].map(|bytes| (id.clone(), String::from_utf8(bytes).unwrap()))
}
