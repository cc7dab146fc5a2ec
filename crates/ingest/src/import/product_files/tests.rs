//! Product files of every kind give the same items; what is wrong in them is counted and listed.

use serde_json::{Value, json};

use crate::import::shards::tests::{arrow, parquet};
use crate::import::tests::{folder, gzipped, import_error, import_ok, items, json_lines, reasons, run};
use crate::import::{Encoding, Format, Options, REJECTED_FILE};

fn ids(home: &tempfile::TempDir) -> Vec<Value> {
    items(home).into_iter().map(|item| item["_id"].clone()).collect()
}

#[test]
fn text_files_of_every_kind_give_the_same_items() {
    let csv = b"sku,name,description,price,stock\n1,Oak desk,Solid oak,\"$1,999.50\",5\n2,Red lamp,,9.5,\n";
    let tsv = b"sku\tname\tdescription\tprice\tstock\n1\tOak desk\tSolid oak\t$1,999.50\t5\n2\tRed lamp\t\t9.5\t\n";
    let lines =
        b"{\"sku\":1,\"name\":\"Oak desk\",\"description\":\"Solid oak\",\"price\":\"$1,999.50\",\"stock\":\"5\"}\n\n\
        {\"sku\":2.0,\"name\":\"Red lamp\",\"description\":null,\"price\":9.5,\"stock\":\"\"}\n";
    let array = format!("[\n{}\n]\n", String::from_utf8_lossy(lines).trim_end().replace("\n\n", ",\n"));
    let expected = [
        json!({"_id": "1", "title": "Oak desk", "text": "Solid oak", "price": 1999.5, "stock": "5"}),
        json!({"_id": "2", "title": "Red lamp", "text": "", "price": 9.5}),
    ];
    for (name, bytes) in [
        ("a.csv", csv.to_vec()),
        ("a.csv.gz", gzipped(csv)),
        ("a.tsv", tsv.to_vec()),
        ("a.jsonl", lines.to_vec()),
        ("a.json.gz", gzipped(lines)),
        ("a.json", array.clone().into_bytes()),
        ("b.json.gz", gzipped(array.as_bytes())),
    ] {
        for from in [name, ""] {
            let (home, summary) = import_ok(Format::Items, &Options::default(), &[(name, &bytes)], from);
            assert_eq!(items(&home), expected, "{name}");
            assert_eq!((summary.rows_read, summary.num_rejected()), (2, 0), "{name}");
        }
    }
}

#[test]
fn parquet_and_arrow_files() {
    let home = folder(&[("x", b"")]);
    let place = |name: &str| home.path().join("in").join(name);
    parquet(&place("x.parquet"));
    arrow(&place("y.arrow"), None);
    for name in ["x.parquet", "y.arrow"] {
        std::fs::remove_dir_all(home.path().join("out")).ok();
        let summary = run(Format::Items, &Options::default(), home.path(), name).unwrap();
        assert_eq!(summary.rows_read, 6, "{name}");
        let found = items(&home);
        assert_eq!(found[0], json!({"_id": "0", "title": "a", "text": "", "price": 9.99, "sold": true}), "{name}");
        assert_eq!((&found[1]["title"], &found[5]["_id"]), (&json!(""), &json!("5")), "{name}");
    }
}

#[test]
fn the_first_row_of_an_id_stays_and_rows_without_one_are_rejected() {
    let table = b"sku,name\n1,Oak desk\n1,Other desk\n,No id\n2,Lamp\n3,too,many\n";
    let (home, summary) = import_ok(Format::Items, &Options::default(), &[("a.csv", table)], "a.csv");
    assert_eq!(ids(&home), ["1", "2"]);
    assert_eq!(items(&home)[0]["title"], "Oak desk");
    assert_eq!(reasons(&summary), [("duplicate item id", 1), ("missing id", 1), ("wrong number of columns", 1)]);
    assert_eq!(summary.rows_read, 5);
    let rejected = json_lines(&home, REJECTED_FILE);
    let expected =
        json!({"file": "a.csv", "line": 3, "reason": "duplicate item id", "detail": "1", "start": "1,Other desk"});
    assert_eq!(rejected[0], expected);
    let lines = b"{\"id\":1,\"title\":\"Oak desk\"}\n{\"title\":\"No id\"}\nnonsense\n";
    let (home, summary) = import_ok(Format::Items, &Options::default(), &[("a.jsonl", lines)], "a.jsonl");
    assert_eq!((ids(&home).len(), reasons(&summary)), (1, vec![("missing id", 1), ("not a JSON object", 1)]));
    assert_eq!(json_lines(&home, REJECTED_FILE)[0]["start"], "{\"title\":\"No id\"}");
}

#[test]
fn broken_encodings_are_counted_or_rejected() {
    let table = b"sku,name\n1,Caf\xe9 table\n2,Lamp\n3,Caf\xc3\xa9 chair\n";
    let (home, summary) = import_ok(Format::Items, &Options::default(), &[("a.csv", table)], "a.csv");
    let found = items(&home);
    assert_eq!((&found[0]["title"], &found[2]["title"]), (&json!("Café table"), &json!("Café chair")));
    assert_eq!(summary.noted["rows that are not UTF-8, read as windows-1252"], 1);
    let strict = Options { encoding: Encoding::Utf8, ..Options::default() };
    let (home, summary) = import_ok(Format::Items, &strict, &[("a.csv", table)], "a.csv");
    assert_eq!((ids(&home).len(), reasons(&summary)), (2, vec![("not valid UTF-8", 1)]));
    let error = import_error(Format::Items, &Options::default(), &[("a.csv", b"\xff\xfei\0d\0")], "a.csv");
    assert!(error.contains("is UTF-16"), "{error}");
}

#[test]
fn a_folder_is_one_catalogue_and_its_other_files_are_listed() {
    let files: [(&str, &[u8]); 5] = [
        ("part-1.csv", b"sku,name\n1,Oak desk\n2,Lamp\n"),
        ("part-2.csv", b"sku,name\n3,Rug\n1,Desk again\n"),
        ("part-3.csv", b""),
        ("README.md", b"hello"),
        ("old/part-0.csv", b"sku,name\n9,Old\n"),
    ];
    let (home, summary) = import_ok(Format::Items, &Options::default(), &files, "");
    assert_eq!(ids(&home), ["1", "2", "3"]);
    assert_eq!(reasons(&summary), [("duplicate item id", 1)]);
    assert_eq!(summary.unread_files, ["README.md", "old"]);
    let data: [(&str, &[u8]); 2] = [
        ("corpus.jsonl", b"{\"_id\":\"1\",\"title\":\"Oak desk\",\"text\":\"Solid\"}\n"),
        ("queries.jsonl", b"{\"_id\":\"q1\",\"text\":\"desk\"}\n"),
    ];
    let (home, summary) = import_ok(Format::Items, &Options::default(), &data, "");
    assert_eq!(items(&home), [json!({"_id": "1", "title": "Oak desk", "text": "Solid"})]);
    assert_eq!(summary.unread_files, ["queries.jsonl"]);
    let error = import_error(Format::Items, &Options::default(), &[("notes.md", b"x")], "");
    assert!(error.contains("has no file that ends with .csv, .tsv") && error.contains("it has: notes.md"), "{error}");
}

#[test]
fn other_tables_in_the_folder_are_not_taken_for_items() {
    let log = b"time,session,search_term,product_id,event\n2025-07-31 10:00,s,oak desk,1,click\n\
        2025-07-31 10:01,s,red lamp,2,click\n2025-07-31 10:02,s,oak desk,1,cart\n2025-07-31 10:03,s,oak desk,1,purchase\n\
        2025-07-31 10:04,s,red lamp,2,click\n";
    let files: [(&str, &[u8]); 3] = [
        ("clicks.csv", log),
        ("items.csv", b"sku,product_name\n1,Oak desk\n2,Red lamp\n"),
        ("queries.jsonl", b"{\"_id\":\"q1\",\"text\":\"desk\"}\n"),
    ];
    let (home, summary) = import_ok(Format::Items, &Options::default(), &files, "");
    assert_eq!(ids(&home), ["1", "2"]);
    assert_eq!(summary.unread_files, ["clicks.csv", "queries.jsonl"]);
    let error = import_error(Format::Items, &Options::default(), &[("log.csv", log)], "log.csv");
    assert!(error.contains("Name them with --columns id=product_id,title=search_term"), "{error}");
    let (_, summary) = import_ok(Format::Log, &Options::default(), &files, "");
    assert_eq!((summary.log_rows_read, summary.unread_files), (5, vec!["items.csv".into(), "queries.jsonl".into()]));
}

#[test]
fn options_of_other_formats_are_errors() {
    let options = Options { events: vec!["a=click".parse().unwrap()], ..Options::default() };
    let error = import_error(Format::Items, &options, &[("a.csv", b"sku,name\n1,Oak desk\n")], "a.csv");
    assert!(error.contains("--events applies to log, not to items"), "{error}");
    let error = import_error(Format::Items, &Options::default(), &[("a.csv", b"")], "a.csv");
    assert!(error.contains("is empty: it has no rows"), "{error}");
}
