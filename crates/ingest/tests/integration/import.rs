//! Importers on real files: Parquet written by pyarrow, and the public datasets in the folder SOUK_DATA.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use souk_ingest::import::{Format, Options, Summary, import};
use souk_io::beir::DataFolder;

fn imported(format: Format, options: &Options, from: &Path) -> (tempfile::TempDir, Summary) {
    let home = tempfile::tempdir().unwrap();
    let mut rows = 0;
    let summary = import(format, options, from, &home.path().join("out"), &mut |more| rows += more).unwrap();
    assert!(rows > 0, "progress is reported");
    (home, summary)
}

/// Path of a public dataset in the folder SOUK_DATA (docs/evaluation.md); lists the test as skipped if it is missing.
fn shared(test: &str, path: &str) -> Option<PathBuf> {
    // a relative folder counts from the repository, as in the scripts
    let folder = std::env::var_os("SOUK_DATA").filter(|folder| !folder.is_empty());
    let dataset = folder.map(|folder| souk_testing::repository().join(folder).join(path));
    if let Some(dataset) = dataset.filter(|dataset| dataset.exists()) {
        return Some(dataset);
    }
    if let Some(list) = std::env::var_os("SOUK_SKIPPED") {
        let mut list = fs::OpenOptions::new().append(true).create(true).open(list).unwrap();
        writeln!(list, "{test}: no shared data: SOUK_DATA names no folder with {path}").unwrap();
    }
    None
}

fn judgements(folder: &Path, split: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(format!("out/qrels/{split}.tsv"))).unwrap();
    text.lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn esci_in_every_compression() {
    // product columns use snappy, gzip, zstd and no compression; the examples have version 2 pages
    let from = souk_testing::repository().join("crates/ingest/tests/esci");
    let (home, summary) = imported(Format::Esci, &Options::default(), &from);
    let corpus = fs::read_to_string(home.path().join("out/corpus.jsonl")).unwrap();
    let first = corpus.lines().next().unwrap();
    assert_eq!(
        first,
        r#"{"_id":"B01","title":"Oak desk, 120 cm","text":"Solid oak.\nOiled.\ntwo drawers","brand":"Nordwood","color":"oak"}"#
    );
    assert_eq!(corpus.lines().count(), 3);
    assert_eq!(judgements(home.path(), "train"), ["7\tB01\t4", "7\tB02\t2", "7\tB03\t3"]);
    assert_eq!(judgements(home.path(), "test"), ["9\tB02\t4", "9\tB03\t1"]);
    let slices = DataFolder::open(&home.path().join("out")).unwrap().slices().unwrap();
    assert_eq!((slices["7"].as_str(), slices["9"].as_str()), ("behavioral", "negations"));
    assert_eq!(summary.num_rejected(), 4, "{:?}", summary.rejected);
    assert_eq!(summary.left_out["rows of other locales"], 2);

    let japan = Options { locale: Some("jp".into()), ..Options::default() };
    let (home, summary) = imported(Format::Esci, &japan, &from);
    assert!(fs::read_to_string(home.path().join("out/corpus.jsonl")).unwrap().contains("オーク机"));
    assert_eq!((summary.counts.items, summary.counts.judgements["train"]), (1, 1));
}

#[test]
fn home_depot_as_beir() {
    let Some(from) = shared("home_depot_as_beir", "home_depot") else { return };
    let (home, summary) = imported(Format::Beir, &Options::default(), &from);
    let counts = &summary.counts;
    assert_eq!((counts.items, counts.queries, summary.num_rejected()), (54_667, 9484, 0));
    assert_eq!((counts.judgements["train"], counts.judgements["dev"]), (52_322, 7483));
    for name in ["qrels/train.tsv", "qrels/dev.tsv"] {
        let written = fs::read(home.path().join("out").join(name)).unwrap();
        assert!(written == fs::read(from.join(name)).unwrap(), "{name}: levels 1 to 4 are kept");
    }
}

#[test]
fn icecat() {
    let Some(from) = shared("icecat", "icecat") else { return };
    let (home, summary) = imported(Format::Icecat, &Options::default(), &from);
    let counts = &summary.counts;
    assert_eq!((counts.items, counts.queries, counts.judgements["train"]), (19_406, 87, 2338));
    assert_eq!(summary.num_rejected(), 0);
    let items = DataFolder::open(&home.path().join("out")).unwrap().items().unwrap();
    let toner = items.map(|item| item.unwrap().1).find(|item| item.id == "3920564").unwrap();
    assert_eq!((&toner.fields["brand"], &toner.fields["price"]), (&"Xerox".into(), &49.95.into()));
    assert_eq!(toner.fields["attributes"]["quantity_per_pack"], 6.0);
}

#[test]
fn amazons_toys_without_a_header() {
    let Some(from) = shared("amazons_toys_without_a_header", "catalogs/amazon_toys_10k_noheader.csv") else { return };
    let columns = ["id=0", "title=1", "category=2", "brand=3", "price=4"];
    let columns = columns.iter().map(|column| column.parse().unwrap()).collect();
    let options = Options { no_header: true, columns, ..Options::default() };
    let (home, summary) = imported(Format::Csv, &options, &from);
    assert_eq!((summary.counts.items, summary.num_rejected()), (10_000, 0));
    let items = DataFolder::open(&home.path().join("out")).unwrap().items().unwrap();
    let priced = items.filter(|item| item.as_ref().unwrap().1.fields.get("price").is_some_and(|p| p.is_number()));
    assert_eq!(priced.count(), 8565, "rows with a non-empty fifth column");
}

#[test]
fn ubi_of_opensearch() {
    let Some(from) = shared("ubi_of_opensearch", "logs/ubi_1.3_synthetic.ndjson") else { return };
    let (_home, summary) = imported(Format::Ubi, &Options::default(), &from);
    let events = |(name, count): (&String, &u64)| if name.starts_with("events ") { *count } else { 0 };
    let other: u64 = summary.left_out.iter().map(events).sum();
    // six queries have an empty text
    assert_eq!(summary.rejected["a query whose `user_query` is empty"], 6);
    assert_eq!(summary.num_rejected(), 6);
    assert_eq!(summary.counts.log_lines + other + 6, 473 + 3448);
    assert_eq!(summary.left_out["OpenSearch bulk lines"], 473 + 3448);
    // impressions, clicks, carts and purchases
    assert_eq!(summary.counts.log_lines, 467 + 1999 + 287 + 234 + 6);
}

#[test]
fn clicks_of_best_buy() {
    let Some(from) = shared("clicks_of_best_buy", "logs/bestbuy_2011_clicks.csv") else { return };
    let (_home, summary) = imported(Format::Ubi, &Options::default(), &from);
    // 999 clicks of 876 searches (a user, a text, a time) with 759 texts on 846 items
    assert_eq!(summary.counts.log_lines, 999 + 876);
    assert_eq!((summary.counts.queries, summary.counts.items, summary.num_rejected()), (759, 846, 0));
}
