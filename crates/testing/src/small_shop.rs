//! Small shop for tests: queries name an item by its kind and number, and judgements rate that item as L4.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use serde_json::json;
use souk_io::ubi::{Action, EventRecord, QueryRecord};
use tempfile::TempDir;

pub const ITEMS: usize = 60;
const KINDS: [&str; 6] = ["desk", "lamp", "chair", "pipe", "jacket", "bottle"];

/// Path of a small model.
pub fn model() -> PathBuf {
    crate::golden("st_mean_dense")
}

fn query_text(item: usize) -> String {
    format!("{} {item}", KINDS[item % 6])
}

/// Creates a folder with the shop's data folder `data`.
pub fn shop() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir_all(data.join("qrels")).unwrap();
    let (mut corpus, mut queries, mut qrels) = (String::new(), String::new(), String::new());
    for item in 0..ITEMS {
        let title = format!("{} number {item} in {}", KINDS[item % 6], ["red", "blue", "oak"][item % 3]);
        corpus += &format!("{}\n", json!({"_id": format!("d{item}"), "title": title}));
        queries += &format!("{}\n", json!({"_id": format!("q{item}"), "text": query_text(item)}));
        qrels += &format!("q{item}\td{item}\t4\n");
    }
    for (name, text) in [("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/test.tsv", qrels)] {
        fs::write(data.join(name), text).unwrap();
    }
    home
}

/// Log messages with their keys: a search and a click for each number, at different times.
pub fn messages(numbers: Range<usize>) -> impl Iterator<Item = (String, String)> {
    numbers.flat_map(|n| search(n, &query_text(n % ITEMS), &format!("d{}", n % ITEMS)))
}

/// Log messages, with their key, of a search for a text and a click on an item.
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
