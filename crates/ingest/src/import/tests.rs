//! Every format on a few handmade rows: imported rows, rejected rows with reasons, and error messages.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use souk_io::beir::DataFolder;
use souk_io::domain::{Item, Judgement};

/// Temporary folder with these files.
pub(super) fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = home.path().join("in").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    home
}

pub(super) fn run(format: Format, options: &Options, home: &Path, from: &str) -> Result<Summary> {
    import(format, options, &home.join("in").join(from), &home.join("out"), &mut |_| ())
}

pub(super) fn import_ok(
    format: Format,
    options: &Options,
    files: &[(&str, &[u8])],
    from: &str,
) -> (tempfile::TempDir, Summary) {
    let home = folder(files);
    let summary = run(format, options, home.path(), from).unwrap();
    (home, summary)
}

pub(super) fn import_error(format: Format, options: &Options, files: &[(&str, &[u8])], from: &str) -> String {
    let home = folder(files);
    let error = run(format, options, home.path(), from).unwrap_err().to_string();
    assert!(!home.path().join("out.part").exists(), "nothing is left behind");
    error
}

pub(super) fn items(home: &tempfile::TempDir) -> Vec<Value> {
    json_lines(home, "corpus.jsonl")
}

pub(super) fn json_lines(home: &tempfile::TempDir, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(home.path().join("out").join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Query, item and level.
fn judgements(home: &tempfile::TempDir, split: &str) -> Vec<(String, String, u8)> {
    let judgements = DataFolder::open(&home.path().join("out")).unwrap().judgements(split).unwrap();
    judgements.map(Result::unwrap).map(|Judgement { query, item, level }| (query, item, level.number())).collect()
}

fn judged(rows: &[(&str, &str, u8)]) -> Vec<(String, String, u8)> {
    rows.iter().map(|(query, item, level)| ((*query).into(), (*item).into(), *level)).collect()
}

pub(super) fn reasons(summary: &Summary) -> Vec<(&str, u64)> {
    summary.rejected.iter().map(|(reason, count)| (reason.as_str(), *count)).collect()
}

pub(super) fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn beir_imports_valid_rows_and_lists_the_rest() {
    let corpus = b"\xef\xbb\xbf{\"_id\":\"a\",\"title\":\"Desk\",\"text\":null,\"price\":5,\"metadata\":{\"x\":[1]}}\r\n\n\
        {\"_id\":7,\"title\":\"Lamp\"}\n{\"_id\":\"a\"}\n{\"title\":\"x\"}\nnonsense\n{\"_id\":\"caf\xe9\",\"text\":\"caf\xe9\"}\n[]\n{\"_id\":\"x\\ty\"}";
    let queries = gzipped(
        b"{\"_id\":\"q1\",\"text\":\"desk\"}\n{\"_id\":\"q2\",\"text\":\" \"}\n{\"_id\":\"q3\",\"text\":\"lamp\"}\n",
    );
    let train = b"query-id\tcorpus-id\tscore\r\nq1\ta\t2\r\nq1\t7\t1\r\nq1\ta\t0\r\nq9\ta\t1\r\nq1\tzz\t1\r\nq1\t7\r\nq3\t7\tgood\r\n";
    let test = b"q3 0 7 0\nq3 0 a 2.0\n";
    let slices = b"query-id\tslice\nq1\tfurniture\nq1\tother\nq7\tx\n";
    let files: [(&str, &[u8]); 8] = [
        ("corpus.jsonl", corpus),
        ("queries.jsonl.gz", &queries),
        ("qrels/train.tsv", train),
        ("qrels/test.tsv.gz", &gzipped(test)),
        ("slices.tsv", slices),
        ("README.md", b"hello"),
        ("corpus.jsonl.gz", b"the same, packed"),
        ("qrels/notes.txt", b"hello"),
    ];
    let (home, summary) = import_ok(Format::Beir, &Options::default(), &files, "");
    assert_eq!(
        items(&home),
        [
            json!({"_id": "a", "title": "Desk", "text": "", "price": 5, "metadata": {"x": [1]}}),
            json!({"_id": "7", "title": "Lamp", "text": ""}),
            json!({"_id": "café", "title": "", "text": "café"}),
        ]
    );
    // the largest grade of the folder is 2
    assert_eq!(judgements(&home, "train"), judged(&[("q1", "a", 4), ("q1", "7", 3)]));
    assert_eq!(judgements(&home, "test"), judged(&[("q3", "7", 1), ("q3", "a", 4)]));
    assert_eq!(DataFolder::open(&home.path().join("out")).unwrap().slices().unwrap().len(), 1);
    assert_eq!(
        reasons(&summary),
        [
            ("duplicate item id", 1),
            ("duplicate judgement", 1),
            ("grade not in the scale", 1),
            ("id contains a tab or a line end", 1),
            ("judgement of an unknown item", 1),
            ("judgement of an unknown query", 1),
            ("missing id", 1),
            ("not a JSON object", 2),
            ("not a judgement: expected query-id, corpus-id and score separated by tabs", 1),
            ("query is already in a slice", 1),
            ("query without text", 1),
            ("slice of an unknown query", 1),
        ]
    );
    let listed = json_lines(&home, REJECTED_FILE);
    assert_eq!(listed.len() as u64, summary.num_rejected());
    let expected = json!({"file": "corpus.jsonl", "line": 4, "reason": "duplicate item id", "detail": "a",
        "start": "{\"_id\":\"a\"}"});
    assert_eq!(listed[0], expected);
    assert_eq!(summary.noted["rows that are not UTF-8, read as windows-1252"], 1);
    assert_eq!(summary.unread_files, ["README.md", "corpus.jsonl.gz", "qrels/notes.txt"]);
}

#[test]
fn scale_follows_the_grades_or_the_option() {
    let levels = |grades: &[&str], levels: Option<&str>| -> Result<Vec<u8>> {
        let ids = 0..grades.len();
        let corpus: String = ids.clone().map(|id| format!("{{\"_id\":\"{id}\"}}\n")).collect();
        let qrels: String = ids.map(|id| format!("q\t{id}\t{}\n", grades[id])).collect();
        let home = folder(&[
            ("corpus.jsonl", corpus.as_bytes()),
            ("queries.jsonl", b"{\"_id\":\"q\",\"text\":\"x\"}"),
            ("qrels/t.tsv", qrels.as_bytes()),
        ]);
        let options = Options { scale: levels.map(str::parse).transpose()?, ..Options::default() };
        run(Format::Beir, &options, home.path(), "")?;
        Ok(judgements(&home, "t").into_iter().map(|(_, _, level)| level).collect())
    };
    assert_eq!(levels(&["1", "0"], None).unwrap(), [4, 1]);
    assert_eq!(levels(&["2", "1", "0", "-1"], None).unwrap(), [4, 3, 1, 1]);
    assert_eq!(levels(&["3", "2", "1", "0"], None).unwrap(), [4, 3, 2, 1]);
    assert_eq!(levels(&["4", "3", "2", "1"], None).unwrap(), [4, 3, 2, 1]);
    assert_eq!(levels(&["1", "1"], None).unwrap(), [4, 4], "irrelevant items are often omitted");
    for unclear in [&["1", "2"][..], &["1", "3", "2"], &["3"], &["2"]] {
        let error = levels(unclear, None).unwrap_err().to_string();
        assert!(error.contains("are ambiguous: set --levels"), "{error}");
    }
    assert_eq!(levels(&["3", "1"], Some("1=1,2=2,3=3,4=4")).unwrap(), [3, 1]);
    let unknown = levels(&["4", "0"], None).unwrap_err().to_string();
    assert!(unknown.contains("from 0 to 4") && unknown.contains("--levels"), "{unknown}");
    for wrong in ["", "1", "1=5", "1=4,", "=x"] {
        assert!(wrong.parse::<Scale>().is_err(), "{wrong}");
    }
}

#[test]
fn home_depot_joins_files_that_are_not_sorted() {
    let train = b"\"id\",\"product_uid\",\"product_title\",\"search_term\",\"relevance\"\n\
        2,100002,\"Desk\xae 12\"\" oak\",\"oak desk\",3\n3,100001,\"Lamp\",\"oak desk\",2.33\n\
        9,100001,\"Lamp\",\"lamp, \nwarm\",2\n16,100009,\"Chair\",\"oak desk\",1.33\n17,100001,\"Lamp\",\"x\",9\n\
        18,100001,\"Lamp\",\"\",2\n";
    let test = b"\"id\",\"product_uid\",\"product_title\",\"search_term\"\r\n1,100005,\"Rug\",\"rug\"\r\n4,100001,\"Lamp\",\"oak desk\"\r\n";
    let descriptions = b"product_uid,product_description\n100001,\"Warm light.\"\n100002,Solid.\n100007,No title\n";
    let attributes = b"product_uid,name,value\n100002,MFG Brand Name,Nordwood\n100001,Bullet01,Dimmable\n\
        ,,\n100002,Width (in.),12\n100001,Bullet02,\"LED, \n9 W\"\n100404,Bullet01,Lost\n100001,MFG Brand Name,Lumo\n100002,bad\n\
        100002,Width (in.),14\n100002,Width (in.),12\n100001,MFG Brand Name,Lumo Pro\n";
    let files: [(&str, &[u8]); 4] = [
        ("train.csv", train),
        ("test.csv", test),
        ("product_descriptions.csv", descriptions),
        ("attributes.csv", attributes),
    ];
    let (home, summary) = import_ok(Format::HomeDepot, &Options::default(), &files, "");
    assert_eq!(
        items(&home),
        [
            json!({"_id": "100001", "title": "Lamp", "text": "Warm light. Dimmable LED, \n9 W", "brand": "Lumo; Lumo Pro"}),
            json!({"_id": "100002", "title": "Desk® 12\" oak", "text": "Solid.", "brand": "Nordwood",
                "attributes": {"Width (in.)": "12; 14"}}),
            json!({"_id": "100007", "title": "", "text": "No title"}),
            json!({"_id": "100009", "title": "Chair", "text": ""}),
            json!({"_id": "100005", "title": "Rug", "text": ""}),
        ]
    );
    assert_eq!(summary.noted["items without a title"], 1);
    let queries = json_lines(&home, "queries.jsonl");
    let texts: Vec<&str> = queries.iter().map(|query| query["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["oak desk", "lamp, \nwarm", "x", "rug"]);
    // python3 -c 'import zlib; print([zlib.crc32(t) % 8 for t in (b"oak desk", b"lamp, \nwarm")])' says [0, 2]
    assert_eq!(judgements(&home, "dev"), judged(&[("q1", "100002", 4), ("q1", "100001", 3), ("q1", "100009", 1)]));
    assert_eq!(judgements(&home, "train"), judged(&[("q2", "100001", 2)]));
    assert_eq!(
        reasons(&summary),
        [
            ("attribute of an unknown item", 1),
            ("attribute without product_uid", 1),
            ("relevance outside 1 to 3", 1),
            ("search without product_uid or search_term", 1),
            ("wrong number of columns", 1),
        ]
    );
    let lost = json_lines(&home, REJECTED_FILE).into_iter().find(|row| row["detail"] == "100404").unwrap();
    assert_eq!((&lost["line"], &lost["start"]), (&json!(8), &json!("100404,Bullet01,Lost")));
}

#[test]
fn home_depot_needs_train_csv_and_its_columns() {
    let options = Options::default();
    let missing = import_error(Format::HomeDepot, &options, &[("test.csv", b"")], "");
    assert!(missing.contains("has no train.csv") && missing.contains("it has: test.csv"), "{missing}");
    let header = b"id,product_uid,product_titel,search_term,relevance\n";
    let typo = import_error(Format::HomeDepot, &options, &[("train.csv", header)], "");
    assert!(typo.contains("no column `product_title` (did you mean `product_titel`?)"), "{typo}");
}

#[test]
fn wands_has_its_labels_classes_and_features() {
    let products = "product_id\tproduct_name\tproduct_class\tcategory hierarchy\tproduct_description\tproduct_features\trating_count\taverage_rating\treview_count\n\
        0\tsolid wood bed\tBeds\tFurniture / Beds\tgood , \"deep\" sleep\tcolor : oak|style:modern\t15.0\t4.5\t15.0\n\
        1\t12\" lamp\t\t\t\t\t\t\t\n2\t\"lamp\nwith a stand\"\tLamps\t\t\t\t\t\t\nshort\trow\n";
    let queries = "query_id\tquery\tquery_class\n0\twood bed\tBeds\n1\tlamp\t\n0\tagain\tBeds\n";
    let labels =
        "id\tquery_id\tproduct_id\tlabel\n0\t0\t0\tExact\n1\t0\t1\tIrrelevant\n2\t1\t2\tPartial\n3\t1\t1\tMaybe\n";
    let files: [(&str, &[u8]); 3] =
        [("product.csv", products.as_bytes()), ("query.csv", queries.as_bytes()), ("label.csv", labels.as_bytes())];
    let (home, summary) = import_ok(Format::Wands, &Options::default(), &files, "");
    let found = items(&home);
    let bed = json!({"_id": "0", "title": "solid wood bed", "text": "good , \"deep\" sleep", "category": "Furniture / Beds",
        "class": "Beds", "attributes": {"color": "oak", "style": "modern"}, "rating_count": 15.0, "average_rating": 4.5,
        "review_count": 15.0});
    assert_eq!(
        (&found[0], &found[1]["title"], &found[2]["title"]),
        (&bed, &json!("12\" lamp"), &json!("lamp\nwith a stand"))
    );
    assert_eq!(judgements(&home, "test"), judged(&[("0", "0", 4), ("0", "1", 1), ("1", "2", 2)]));
    let slices = DataFolder::open(&home.path().join("out")).unwrap().slices().unwrap();
    assert_eq!(slices.into_iter().collect::<Vec<_>>(), [("0".to_owned(), "Beds".to_owned())]);
    assert_eq!(summary.num_rejected(), 3, "{:?}", summary.rejected);
    let good = Options { scale: Some("Exact=4,Partial=3,Irrelevant=1".parse().unwrap()), ..Options::default() };
    let (home, _) = import_ok(Format::Wands, &good, &files, "");
    assert_eq!(judgements(&home, "test")[2].2, 3);
}

#[test]
fn icecat_has_typed_attributes_and_cents() {
    let products =
        br#"{"id":"1","name":"dv7","title":"HP dv7","short_description":"17\"","supplier":"HP","price":10995,
"attr_t_type":"Notebook"}"#;
    let products = [products.to_vec(), b"\n".to_vec()].concat();
    let good = br#"{"id":2,"name":"dv7","title":"HP dv7","supplier":"HP","price":10995,"attr_t_type":"x","attr_n_weight":3.5,"attr_b_usb":true,"ean":["1"],"text":"own"}"#;
    let all = gzipped(&[good.as_slice(), b"\n", &products].concat());
    let (home, summary) = import_ok(Format::Icecat, &Options::default(), &[("products.jsonl.gz", &all)], "");
    let expected = json!({"_id": "2", "title": "HP dv7", "text": "", "name": "dv7", "brand": "HP", "price": 109.95,
        "attributes": {"type": "x", "weight": 3.5, "usb": true}, "ean": ["1"], "icecat_text": "own"});
    assert_eq!(items(&home), [expected]);
    assert_eq!(reasons(&summary), [("not a JSON object", 2)]);
}

#[test]
fn icecat_prices_in_texts_and_attributes_of_two_kinds() {
    let products = br#"{"id":"1","price":"10995","attr_n_height":5,"attr_t_height":"5 cm","attr_b_height":true}
{"id":"2","price":"$109.95"}
{"id":"3","price":"on request"}
"#;
    let (home, summary) = import_ok(Format::Icecat, &Options::default(), &[("products.jsonl", products)], "");
    let found = items(&home);
    assert_eq!(
        [&found[0]["price"], &found[1]["price"], &found[2]["price"]],
        [&json!(109.95), &json!(109.95), &json!("on request")]
    );
    // in name order
    assert_eq!(found[0]["attributes"], json!({"height": true, "height (n)": 5, "height (t)": "5 cm"}));
    assert_eq!(summary.noted["attributes with one name and two types, the second renamed to `name (type)`"], 2);
    assert_eq!(summary.noted["non-numeric prices kept as text"], 1);
}

#[test]
fn csv_keeps_every_column() {
    let named = |columns: &[&str]| Options {
        columns: columns.iter().map(|column| column.parse().unwrap()).collect(),
        ..Options::default()
    };
    let table = b"sku,title,,column_2,title,brand,id\n1,a,b,c,d,e,f\n";
    let (home, _) = import_ok(Format::Csv, &named(&["id=title", "brand=sku"]), &[("t.csv", table)], "t.csv");
    let expected = json!({"_id": "a", "title": "", "text": "", "brand": "1", "column_2": "b", "column_3": "c",
        "column_4": "d", "column_5": "e", "column_6": "f"});
    assert_eq!(items(&home), [expected]);
    for twice in [["id=0", "id=1"], ["brand=0", "brand=1"]] {
        let error = import_error(Format::Csv, &named(&twice), &[("t.csv", b"")], "t.csv");
        assert!(error.contains("twice: only title and text"), "rejected before reading the empty file: {error}");
    }
}

#[test]
fn csv_with_and_without_a_header() {
    let table = b"SKU;Name;Preis;title;Marke;\n1;\"Desk; oak\";\"1,999.50\";x;Nord;y\n2;Lamp;on request;;;\n3;too;few\n\n1;again;1;;;\n;no id;1;;;\n";
    let named = |columns: &[&str]| Options {
        columns: columns.iter().map(|column| column.parse().unwrap()).collect(),
        ..Options::default()
    };
    let columns = named(&["id=sku", "title=Name", "price=2", "brand=Marke"]);
    let (home, summary) = import_ok(Format::Csv, &columns, &[("t.csv", table)], "t.csv");
    assert_eq!(
        items(&home),
        [
            json!({"_id": "1", "title": "Desk; oak", "text": "", "price": 1999.5, "brand": "Nord", "column_3": "x", "column_5": "y"}),
            json!({"_id": "2", "title": "Lamp", "text": "", "price": "on request"}),
        ]
    );
    assert_eq!(reasons(&summary), [("duplicate item id", 1), ("missing id", 1), ("wrong number of columns", 1)]);
    let bare = Options { no_header: true, ..named(&["id=0", "title=1", "text=1", "text=2"]) };
    let (home, _) = import_ok(Format::Csv, &bare, &[("t.tsv", b"7\ta\tb\tc\n8\t\t\t\n")], "t.tsv");
    assert_eq!(items(&home)[0], json!({"_id": "7", "title": "a", "text": "a b", "column_3": "c"}));
    let (home, _) = import_ok(Format::Csv, &Options::default(), &[("t.csv", b"name,asin\nDesk,B1\n")], "t.csv");
    assert_eq!(items(&home), [json!({"_id": "B1", "title": "Desk", "text": ""})]);
}

#[test]
fn unclosed_quote_rejects_one_line() {
    let table = b"id,title\n1,\"two\nlines\"\n2,\"open\n3,three\n4,\"fo\"\"ur\"\n5,\"five\n6,six\n";
    let (home, summary) = import_ok(Format::Csv, &Options::default(), &[("t.csv", table)], "t.csv");
    let ids: Vec<Value> = items(&home).into_iter().map(|item| item["_id"].clone()).collect();
    assert_eq!(ids, ["1", "3", "4", "6"]);
    assert_eq!(items(&home)[0]["title"], "two\nlines");
    assert_eq!(summary.num_rejected(), 2);
}

#[test]
fn overlong_lines_are_skipped() {
    let long =
        [b"{\"_id\":\"1\",\"text\":\"".to_vec(), vec![b'x'; lines::MAX_BYTES], b"\"}\n{\"_id\":\"2\"}\n".to_vec()]
            .concat();
    let (home, summary) = import_ok(Format::Beir, &Options::default(), &[("corpus.jsonl", &long)], "");
    assert_eq!(items(&home), [json!({"_id": "2", "title": "", "text": ""})]);
    assert_eq!(reasons(&summary), [("longer than 16 MiB", 1)]);
    let quoted =
        [b"id,title\n1,\"".to_vec(), vec![b'\n'; 2000], vec![b'x'; lines::MAX_BYTES], b"\n2,b\n".to_vec()].concat();
    let (home, _) = import_ok(Format::Csv, &Options::default(), &[("t.csv", &quoted)], "t.csv");
    assert_eq!(items(&home).len(), 1);
}

#[test]
fn rejects_items_too_long_to_read_back() {
    // each of these bytes takes six in JSON
    let item = [b"id,title\n1,".to_vec(), vec![1; lines::MAX_BYTES / 5], b"\n2,b\n".to_vec()].concat();
    let (home, summary) = import_ok(Format::Csv, &Options::default(), &[("t.csv", &item)], "t.csv");
    assert_eq!((items(&home).len(), reasons(&summary)), (1, vec![("longer than 16 MiB", 1)]));
    assert_eq!(DataFolder::open(&home.path().join("out")).unwrap().items().unwrap().filter(Result::is_ok).count(), 1);
}

#[test]
fn ubi_lines_queries_and_items() {
    let log = br#"{"index":{"_index":"ubi_queries"}}
{"application":"shop","query_id":"a","user_query":"tv ","timestamp":"2024-12-10T00:01:29.378Z","query_response_hit_ids":["7","9"]}
{"application":"shop","action_name":"click","query_id":"a","timestamp":1733788889378,"event_attributes":{"object":{"object_id":"7"}}}
{"action_name":"purchase","query_id":"a","user_query":"radio","timestamp":1733788889378,"event_attributes":{"object":{"object_id":8,"description":"Red radio"}}}
{"action_name":"page_exit"}
{"action_name":"click","query_id":"a","timestamp":"soon","event_attributes":{"object":{"object_id":"7"}}}
{"action_name":"click","query_id":"a","timestamp":1}
{"query_id":"b","user_query":"tv","timestamp":"2024-12-10 00:01:30"}
"#;
    let (home, summary) = import_ok(Format::Ubi, &Options::default(), &[("log.ndjson", log)], "log.ndjson");
    assert_eq!((summary.counts.log_lines, summary.counts.queries, summary.counts.items), (4, 2, 3));
    let lines = json_lines(&home, "logs.ndjson");
    assert_eq!((&lines[0]["application"], &lines[0]["user_query"]), (&json!("shop"), &json!("tv ")));
    assert_eq!(lines[1]["timestamp"], "2024-12-10T00:01:29.378Z");
    assert_eq!(
        json_lines(&home, "queries.jsonl"),
        [json!({"_id": "q1", "text": "tv"}), json!({"_id": "q2", "text": "radio"})]
    );
    let titles: Vec<(Value, Value)> =
        items(&home).into_iter().map(|item| (item["_id"].clone(), item["title"].clone())).collect();
    assert_eq!(titles, [(json!("8"), json!("Red radio")), (json!("7"), json!("")), (json!("9"), json!(""))]);
    assert_eq!(
        reasons(&summary),
        [("a click without `event_attributes.object.object_id`", 1), ("not a UBI object", 1)]
    );
    assert_eq!(summary.left_out["OpenSearch bulk lines"] + summary.left_out["events `page_exit`"], 2);

    let files: [(&str, &[u8]); 3] = [
        ("log.ndjson", log),
        ("shop/corpus.jsonl", b"{\"_id\":\"7\",\"title\":\"TV\"}\n"),
        ("shop/queries.jsonl", b"{\"_id\":\"q\",\"text\":\"tv\"}\n"),
    ];
    let home = folder(&files);
    let options = Options { catalogue: Some(home.path().join("in/shop")), ..Options::default() };
    let summary = run(Format::Ubi, &options, home.path(), "log.ndjson").unwrap();
    assert_eq!(items(&home), [json!({"_id": "7", "title": "TV", "text": ""})]);
    assert_eq!(summary.noted["events on items missing from the catalogue"], 1);
    assert_eq!(summary.unread_files, [home.path().join("in/shop/queries.jsonl").display().to_string()]);
}

#[test]
fn clicks_in_a_doubly_quoted_table() {
    let clicks = b"\"user,sku,category,query,click_time,query_time\"\n\
        \"u1,7,tv,\"\"flat, tv\"\",\"\"2011-09-01 23:44:52.533\"\",\"\"2011-09-01 23:43:59.752\"\"\"\n\
        \"u1,8,,\"\"flat, tv\"\",\"\"2011-09-01 23:45:52.5\"\",\"\"2011-09-01 23:43:59.752\"\"\"\n\
        \"u2,7,tv,\"\"flat, tv\"\",never,\"\"2011-09-01 23:43:59.752\"\"\"\n";
    let (home, summary) = import_ok(Format::Ubi, &Options::default(), &[("clicks.csv", clicks)], "");
    assert_eq!((summary.counts.log_lines, summary.counts.queries, summary.counts.items), (3, 1, 2));
    let log = fs::read(home.path().join("out/logs.ndjson")).unwrap();
    let records: Vec<_> =
        log.split(|byte| *byte == b'\n').take(3).map(|line| souk_io::ubi::Record::parse(line).unwrap()).collect();
    let [souk_io::ubi::Record::Query(query), _, souk_io::ubi::Record::Event(click)] = &records[..] else {
        panic!("a query and two clicks")
    };
    assert_eq!((&*query.text, &*click.item, &click.query_id), ("flat, tv", "8", &query.query_id));
    assert_eq!(items(&home)[0], json!({"_id": "7", "title": "", "text": "", "category": "tv"}));
    assert_eq!(reasons(&summary), [("invalid timestamp", 1)]);
}

#[test]
fn unusable_inputs_give_helpful_errors() {
    use Format::{Beir, Csv, Esci, HomeDepot, Icecat, Ubi, Wands};
    let none = Options::default();
    let csv = |text: &'static [u8]| import_error(Csv, &none, &[("t.csv", text)], "t.csv");
    let option = |options: Options| import_error(Icecat, &options, &[("products.jsonl", b"{}")], "");
    for (error, expected) in [
        (
            import_error(Beir, &none, &[("corpus.jsonl", b"{\"_id\":\"1\"}")], "corpus.jsonl"),
            "beir needs a folder: use --from",
        ),
        (import_error(Csv, &none, &[("t.csv", b"")], ""), "csv needs one file; the folder has: t.csv"),
        (import_error(Wands, &none, &[("x", b"")], "gone"), "does not exist"),
        (import_error(Ubi, &none, &[("x.txt", b"")], ""), "has no logs"),
        (import_error(Esci, &none, &[("x.txt", b"")], ""), "has no shopping_queries_dataset_products.parquet"),
        (
            import_error(Beir, &none, &[("corpus.jsonl", b"nonsense\n")], ""),
            "none of 1 rows could be imported; 1 were rejected, first corpus.jsonl, line 1: not a JSON object",
        ),
        (import_error(Beir, &none, &[("corpus.jsonl", b"")], ""), "none of 0 rows could be imported"),
        (csv(b"PK\x03\x04zip"), "is a zip archive"),
        (csv(b"\xff\xfei\0d\0"), "is UTF-16"),
        (csv(b""), "is empty"),
        (csv(b"a,b\n1,2\n"), "no id column found: set --columns id=...; the table has a, b"),
        (csv(b"id,title\r1,a\r2,b\r"), "its lines end with bare carriage returns"),
        (
            import_error(HomeDepot, &none, &[("train.csv", b"id,product_uid\r1,\"a\"\r\n\n")], ""),
            "its lines end with bare carriage returns",
        ),
        (option(Options { locale: Some("us".into()), ..none.clone() }), "--locale applies to esci, not to icecat"),
        (option(Options { columns: vec!["id=0".parse().unwrap()], ..none.clone() }), "--columns applies to csv"),
        (import_error(HomeDepot, &none, &[("train.csv", b"\"open")], ""), "its header cannot be read: unclosed quote"),
    ] {
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    let wide: &[u8] = &[b"x,".repeat(1 << 20), vec![b'y'; 1 << 20], b"\n".to_vec()].concat();
    for error in [
        import_error(Csv, &none, &[("t.csv", wide)], "t.csv"),
        import_error(HomeDepot, &none, &[("train.csv", wide)], ""),
    ] {
        assert!(error.ends_with("and 1048557 more (is this a table?)") && error.len() < 1000, "{error}");
    }
    let far = Options { columns: vec!["id=9".parse().unwrap()], ..none.clone() };
    assert!(import_error(Csv, &far, &[("t.csv", b"a,b\n1,2\n")], "t.csv").contains("the table has 2 columns"));
    let strict = Options { encoding: Encoding::Utf8, ..none };
    let (_, summary) = import_ok(Csv, &strict, &[("t.csv", b"id\ncaf\xe9\nok\n")], "t.csv");
    assert_eq!(reasons(&summary), [("not valid UTF-8", 1)]);
    let bad_gzip = &gzipped(&[b'x'; 1000])[..30];
    let home = folder(&[("corpus.jsonl", bad_gzip)]);
    assert!(run(Beir, &Options::default(), home.path(), "").is_err());
    assert!("Esci".parse::<Format>().unwrap_err().to_string().contains("use items, log, pairs, beir"));
}

#[test]
fn written_items_parse_back() {
    let line = br#"{"_id":"1","title":"a","text":"b","deep":{"x":[null,1.5]}}"#;
    let (home, _) = import_ok(Format::Beir, &Options::default(), &[("corpus.jsonl", line)], "");
    let read: Vec<Item> =
        DataFolder::open(&home.path().join("out")).unwrap().items().unwrap().map(|item| item.unwrap().1).collect();
    assert_eq!(read, [Item::parse(line, Path::new("x"), 1).unwrap()]);
}
