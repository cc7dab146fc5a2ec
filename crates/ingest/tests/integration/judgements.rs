//! Judgements from a log: what is written, what stays untouched, and that training draws nothing of the held-out days.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

use souk_ingest::dataset::{EXAMPLES_FOLDER, Ingest, IngestSettings, PairSource, Pairs, Strength, TrainingSplit};
use souk_ingest::judgements::{JudgedLog, JudgementReport, JudgementSettings, JudgementSource, Splits};
use souk_ingest::log::file::{FileSettings, FileSource};
use souk_ingest::log::{Lane, OnGap};
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::domain::Level;
use souk_io::error::Result;
use souk_io::held_out::HeldOut;
use souk_io::ubi::{Action, EventRecord, QueryRecord};

const DAY: i64 = 24 * 60 * 60 * 1000;
/// Midnight.
const BEGIN: i64 = 1_700_006_400_000;

/// A shop whose log has ten days of ten searches each. They show the items a, b and c, and most shoppers buy b.
fn shop(home: &Path) -> DataFolder {
    let corpus: String = ["a", "b", "c"].map(|id| format!("{{\"_id\":\"{id}\",\"title\":\"item {id}\"}}\n")).concat();
    fs::write(home.join("corpus.jsonl"), corpus).unwrap();
    fs::write(home.join("queries.jsonl"), "{\"_id\":\"q2\",\"text\":\"Oak desk\"}").unwrap();
    let mut log = Vec::new();
    for n in 0..100_i64 {
        let (id, time) = (format!("s{n}"), BEGIN + n / 10 * DAY + n % 10 * 60_000);
        // one search of each day is for something that nobody buys
        let text = if n % 10 == 9 { "lamp" } else { "oak  desk" };
        QueryRecord {
            query_id: id.as_str().into(),
            client_id: "c".into(),
            text: text.into(),
            time,
            hits: ["a", "b", "c"].map(Into::into).to_vec(),
        }
        .write("shop", &mut log);
        log.push(b'\n');
        if text == "oak  desk" && n % 3 > 0 {
            EventRecord {
                action: if n % 3 == 1 { Action::Purchase } else { Action::Click },
                query_id: id.as_str().into(),
                client_id: "c".into(),
                item: "b".into(),
                position: Some(2),
                time: time + 1000,
                text: None,
            }
            .write("shop", &mut log);
            log.push(b'\n');
        }
    }
    fs::write(home.join("logs.ndjson"), log).unwrap();
    DataFolder::open(home).unwrap()
}

fn judge(data: &DataFolder, prefix: &str) -> Result<JudgementReport> {
    judge_as(data, Splits::ByShare { prefix }, &JudgementSettings::default())
}

fn judge_as(data: &DataFolder, splits: Splits<'_>, settings: &JudgementSettings) -> Result<JudgementReport> {
    read(data, splits, settings)?.write()
}

fn read<'a>(data: &'a DataFolder, splits: Splits<'a>, settings: &'a JudgementSettings) -> Result<JudgedLog<'a>> {
    static STRENGTH: LazyLock<Strength> = LazyLock::new(Strength::default);
    let settings_of_file = FileSettings { paths: vec![data.logs()], follow: false, on_gap: OnGap::Stop };
    let log = Box::new(FileSource::open(settings_of_file, Arc::new(|_: &Lane| Ok(None)))?);
    let source = JudgementSource { data, log, name: "logs.ndjson".into(), strength: &STRENGTH, splits };
    JudgedLog::read(source, settings, &mut |_| ())
}

fn judged(data: &DataFolder, split: &str) -> Vec<(String, String, Level)> {
    data.judgements(split).unwrap().map(Result::unwrap).map(|row| (row.query, row.item, row.level)).collect()
}

#[test]
fn a_log_becomes_judgements_of_the_newest_days() {
    let home = tempfile::tempdir().unwrap();
    let data = shop(home.path());
    let report = judge(&data, "").unwrap();
    assert_eq!((report.counts.searches, report.counts.shown, report.counts.chosen), (100, 300, 60));
    // ten searches are a tenth: one day each
    let dev = &report.splits["dev"];
    assert_eq!((dev.from.as_str(), dev.to.as_str()), ("2023-11-23T00:00:00.000Z", "2023-11-23T23:59:59.999Z"));
    assert_eq!(report.held_out_from, dev.from);
    assert_eq!(report.held_out_to, "2023-11-25T00:00:00.000Z");
    let level = |split, query: &str, item: &str| {
        let rows = judged(&data, split);
        rows.into_iter().find(|row| (row.0.as_str(), row.1.as_str()) == (query, item)).unwrap().2
    };
    // the query that the folder had keeps its identifier; the new one gets the next that is free
    assert_eq!(fs::read_to_string(data.queries_file()).unwrap().lines().count(), 2);
    assert!(fs::read_to_string(data.queries_file()).unwrap().contains("{\"_id\":\"q3\",\"text\":\"lamp\"}"));
    assert_eq!((level("train", "q2", "b"), level("train", "q2", "a")), (Level::L4, Level::L1));
    // of one day: a gain of 15 in 9 looks at half the attention, the average being 15 in 18.3; and a third of a look
    assert_eq!((level("test", "q2", "b"), level("test", "q3", "c")), (Level::L3, Level::L1));
    let slices = data.slices().unwrap();
    assert_eq!((slices["q2"].as_str(), slices["q3"].as_str()), ("head", "unclicked"));
    let note = HeldOut::load(&data).unwrap().unwrap().note("test").unwrap();
    assert_eq!(note, "implicit judgements from the search log, 2023-11-24 to 2023-11-24");
    // again: the same files
    let before = fs::read(data.qrels("test")).unwrap();
    assert_eq!(judge(&data, "").unwrap(), report);
    assert_eq!(fs::read(data.qrels("test")).unwrap(), before);
}

#[test]
fn training_draws_nothing_of_the_held_out_days() {
    let home = tempfile::tempdir().unwrap();
    let data = shop(home.path());
    let settings = FileSettings { paths: vec![data.logs()], follow: false, on_gap: OnGap::Stop };
    let open = Box::new(move |resume| Ok(Box::new(FileSource::open(settings.clone(), resume)?) as _));
    let examples = home.path().join(EXAMPLES_FOLDER);
    Ingest::new(&examples, IngestSettings::default(), open, Arc::new(AtomicBool::new(false)))
        .unwrap()
        .run(|_| ())
        .unwrap();
    let catalogue = Catalogue::open(&data).unwrap();
    let pairs = || Pairs::open(&data, &catalogue, PairSource::Examples, TrainingSplit::whole("train"), None).unwrap();
    let all = pairs();
    assert_eq!((all.len(), all.num_held_out()), (60, 0));
    judge(&data, "").unwrap();
    let some = pairs();
    assert_eq!((some.len(), some.num_held_out()), (48, 12));
    assert_ne!(some.crc32(), all.crc32());
}

#[test]
fn judgements_by_raters_are_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    let data = shop(home.path());
    fs::create_dir(home.path().join("qrels")).unwrap();
    fs::write(data.qrels("test"), "q2\ta\t4\n").unwrap();
    fs::write(home.path().join("slices.tsv"), "q2\tlong\n").unwrap();
    let error = judge(&data, "").unwrap_err().to_string();
    assert!(error.contains("test.tsv") && error.contains("--prefix log-"), "{error}");
    assert!(!data.qrels("train").exists() && !home.path().join("judgements.json").exists());
    judge(&data, "log-").unwrap();
    assert_eq!(judged(&data, "test"), [("q2".to_owned(), "a".to_owned(), Level::L4)]);
    assert!(data.qrels("log-test").exists());
    let slices = data.slices().unwrap();
    assert_eq!((slices["q2"].as_str(), slices["q3"].as_str()), ("long", "unclicked"));
    // a second prefix, with more days held out, does not give up the first
    let settings = JudgementSettings { dev: 0.3, ..JudgementSettings::default() };
    judge_as(&data, Splits::ByShare { prefix: "wide-" }, &settings).unwrap();
    let held_out = HeldOut::load(&data).unwrap().unwrap();
    assert!(held_out.note("log-dev").is_some() && held_out.note("wide-dev").is_some());
    judge(&data, "log-").unwrap();
    let times = HeldOut::times(&data).unwrap();
    assert_eq!(times.len(), 4, "dev and test of both");
    assert_eq!(times.iter().map(|time| time.start).min(), Some(BEGIN + 6 * DAY));
}

#[test]
fn the_newest_part_of_the_log_replaces_an_older_one() {
    let home = tempfile::tempdir().unwrap();
    let data = shop(home.path());
    let settings = JudgementSettings::default();
    let newest = |day: i64| judge_as(&data, Splits::Since { time: BEGIN + day * DAY, name: "newest" }, &settings);
    newest(4).unwrap();
    let report = newest(9).unwrap();
    assert_eq!(report.splits.keys().collect::<Vec<_>>(), ["newest"]);
    assert!(!data.qrels("train").exists());
    let times = HeldOut::times(&data).unwrap();
    assert_eq!((times.len(), &times[0]), (1, &(BEGIN + 9 * DAY..BEGIN + 10 * DAY)));
    let error = newest(10).unwrap_err().to_string();
    assert!(error.contains("no search from 2023-11-25"), "{error}");
}

#[test]
fn items_that_sell_better_than_their_clicks_let_expect_have_more_quality() {
    let home = tempfile::tempdir().unwrap();
    let data = shop(home.path());
    let corpus = [
        "{\"_id\":\"a\"}",
        "{\"_id\":\"b\",\"units\":400,\"returns\":10}",
        "{\"_id\":\"c\",\"units\":400,\"returns\":90}",
    ];
    fs::write(home.path().join("corpus.jsonl"), corpus.join("\n")).unwrap();
    let settings = JudgementSettings::default();
    let found = read(&data, Splits::ByShare { prefix: "" }, &settings).unwrap().qualities().unwrap();
    assert_eq!(found.iter().map(|of| of.item.as_str()).collect::<Vec<_>>(), ["b", "c"], "nothing is known of a");
    assert!(found[0].score > 0.6 && found[1].score < 0.4, "{found:?}");
    // eight days before the held-out ones, six buyers or clickers each
    assert_eq!((found[0].clicks, found[0].units, found[0].returns), (48, 400, 10));
}
