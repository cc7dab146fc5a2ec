//! Ingestion from files to examples, with interruptions, damage and a second writer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use souk_ingest::dataset::{
    Example, ExampleCounts, Examples, Extent, Ingest, IngestProgress, IngestSettings, Span, Window, position_before,
    prune,
};
use souk_ingest::log::file::{FileSettings, FileSource};
use souk_ingest::log::{DeadLetter, Lane, LogSource, OnGap, Position, Resume, Signal};
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::error::Result;
use souk_io::shuffle::{Draw, Order};
use souk_io::ubi::{Action, EventRecord, QueryRecord};
use souk_testing::copy_folder;

const ITEMS: u64 = 50;

/// Data folder whose log has `queries` queries with a click and an impression each, and an invalid line after every
/// tenth.
fn shop(home: &Path, queries: u64) -> PathBuf {
    let corpus: String = (0..ITEMS).map(|n| format!("{{\"_id\":\"i{n}\",\"title\":\"item {n}\"}}\n")).collect();
    fs::write(home.join("corpus.jsonl"), corpus).unwrap();
    let mut log = Vec::new();
    for n in 0..queries {
        let (id, time) = (format!("q{n}"), 1_700_000_000_000 + n as i64 * 1000);
        let query = QueryRecord {
            query_id: id.as_str().into(),
            client_id: "c".into(),
            text: format!("item {}", n % ITEMS).into(),
            time,
            hits: Vec::new(),
        };
        query.write("shop", &mut log);
        log.push(b'\n');
        for action in [Action::Impression, Action::Click] {
            let event = EventRecord {
                action,
                query_id: id.as_str().into(),
                client_id: "c".into(),
                item: format!("i{}", n % ITEMS).into(),
                position: Some(1),
                time,
                text: None,
            };
            event.write("shop", &mut log);
            log.push(b'\n');
        }
        if n % 10 == 0 {
            log.extend_from_slice(b"{rubbish\n");
        }
    }
    let path = home.join("logs.ndjson");
    fs::write(&path, log).unwrap();
    path
}

fn settings(commit_messages: u64) -> IngestSettings {
    IngestSettings { commit_messages, ..IngestSettings::default() }
}

fn open(path: &Path) -> impl FnMut(Resume) -> Result<Box<dyn LogSource>> + use<> {
    let settings = FileSettings { paths: vec![path.into()], follow: false, on_gap: OnGap::Stop };
    move |resume| Ok(Box::new(FileSource::open(settings.clone(), resume)?))
}

fn ingest(home: &Path, commit_messages: u64) -> Result<IngestProgress> {
    let source = open(&home.join("logs.ndjson"));
    let stop = Arc::new(AtomicBool::new(false));
    Ingest::new(&home.join("examples"), settings(commit_messages), Box::new(source), stop)?.run(|_| {})
}

fn examples(home: &Path) -> Examples {
    let catalogue = Catalogue::open(&DataFolder::open(home).unwrap()).unwrap();
    Examples::open(&home.join("examples"), &catalogue, None).unwrap()
}

fn commits(home: &Path) -> Vec<PathBuf> {
    let lane = home.join("examples/file-logs.ndjson");
    let mut all: Vec<PathBuf> = fs::read_dir(lane).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

fn draw(examples: &Examples, order: Order, at: u64) -> impl Iterator<Item = Example<'_>> {
    Draw::new(examples.len(), order, at).map(|row| examples.row(row))
}

#[test]
fn every_example_is_drawn_once_per_epoch() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path(), 6000);
    let done = ingest(home.path(), 300).unwrap();
    let counts = &done.counts;
    assert_eq!((counts.examples, counts.queries, counts.impressions, counts.dead), (6000, 6000, 6000, 600));
    assert_eq!(done.waiting, 0);
    assert!(commits(home.path()).len() > 1);

    let examples = examples(home.path());
    assert_eq!((examples.len(), examples.num_queries()), (6000, ITEMS as u32));
    for block in [None, Some(64)] {
        let order = Order { seed: 3, block };
        let all: Vec<i64> = draw(&examples, order, 0).take(12_000).map(|example| example.time).collect();
        let (first, second) = all.split_at(6000);
        let distinct: BTreeSet<i64> = first.iter().copied().collect();
        assert_eq!(distinct.len(), 6000);
        assert_eq!(distinct, second.iter().copied().collect());
        assert_ne!(first, second, "each epoch has its own order");
        let resumed: Vec<i64> = draw(&examples, order, 7234).take(100).map(|example| example.time).collect();
        assert_eq!(resumed, all[7234..7334]);
    }
    let example = examples.row(7);
    assert_eq!(example.query, "item 7");
    assert_eq!(examples.positives(example.query_number), [example.item]);
}

/// Ingests a log that grows in `parts`, committing each, with a join window of `minutes`.
fn ingest_in_parts(home: &Path, log: &Path, parts: usize, minutes: u32) {
    let whole = fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    for part in 1..=parts {
        fs::write(log, lines[..lines.len() * part / parts].concat()).unwrap();
        let window = Window { minutes, queries: 300, seen: 600, ..Window::default() };
        let settings = IngestSettings { window, ..settings(1 << 20) };
        let stop = Arc::new(AtomicBool::new(false));
        Ingest::new(&home.join("examples"), settings, Box::new(open(log)), stop).unwrap().run(|_| {}).unwrap();
    }
}

const LANE: &str = "file-logs.ndjson";

fn extent(end: u64) -> Extent {
    [(LANE.to_owned(), end)].into()
}

#[test]
fn a_span_draws_new_examples_and_knows_earlier_positives() {
    let home = tempfile::tempdir().unwrap();
    let log = shop(home.path(), 3000);
    ingest_in_parts(home.path(), &log, 6, 60);
    let catalogue = Catalogue::open(&DataFolder::open(home.path()).unwrap()).unwrap();
    let folder = home.path().join("examples");
    let open = |from: u64, to: u64| {
        Examples::open(&folder, &catalogue, Some(&Span { from: extent(from), to: extent(to) })).unwrap()
    };
    let mut counts = ExampleCounts::default();
    counts.refresh(&folder).unwrap();
    let end = counts.extent()[LANE];
    assert_eq!(end, 6);
    let num = |from: u64| counts.within(&Span { from: extent(from), to: extent(end) });
    assert_eq!((num(0), num(end)), (3000, 0));
    let (all, old, new) = (open(0, end), open(0, 2), open(2, end));
    assert_eq!((all.len(), old.len() + new.len(), new.len()), (3000, 3000, num(2)));
    let times = |examples: &Examples| (0..examples.len()).map(|row| examples.row(row).time).collect::<Vec<_>>();
    assert_eq!([times(&old), times(&new)].concat(), times(&all));
    // the first query precedes the span, and its item is still a known positive
    let first = all.row(0);
    let again = (0..new.len()).map(|row| new.row(row)).find(|example| example.query == first.query).unwrap();
    assert_eq!(new.positives(again.query_number), [first.item]);
    assert_ne!(all.crc32(), new.crc32());
    assert_eq!(
        new.low_water(Order { seed: 1, block: None }, new.len()),
        all.low_water(Order { seed: 1, block: None }, 3000)
    );
    assert_eq!(Examples::open(&folder, &catalogue, None).unwrap().span(), all.span());
    assert_eq!(counts.rewind(&extent(end), 1), extent(end - 1));
}

#[test]
fn pruned_lanes_resume() {
    let home = tempfile::tempdir().unwrap();
    let log = shop(home.path(), 3000);
    let folder = home.path().join("examples");
    ingest_in_parts(home.path(), &log, 8, 2);
    let more = home.path().join("more");
    fs::create_dir(&more).unwrap();
    let longer = fs::read(shop(&more, 3100)).unwrap();
    let mut counts = ExampleCounts::default();
    counts.refresh(&folder).unwrap();
    let before = counts.extent()[LANE];
    let num = prune(&folder, Duration::from_secs(600)).unwrap();
    assert!(num > 1 && num < before, "{num} of {before}");
    assert_eq!(prune(&folder, Duration::from_secs(600)).unwrap(), 0);
    fs::write(&log, longer).unwrap();
    ingest_in_parts(home.path(), &log, 1, 2);
    counts.refresh(&folder).unwrap();
    assert!(counts.extent()[LANE] > before, "numbering continues");
    let left = examples(home.path());
    let times: BTreeSet<i64> = (0..left.len()).map(|row| left.row(row).time).collect();
    assert_eq!(times.len() as u64, left.len());
    assert_eq!(times.last(), Some(&(1_700_000_000_000 + 3099 * 1000)));
    let all = Span { from: Extent::new(), to: counts.extent() };
    assert_eq!(counts.within(&all), left.len());
    // where a log time is reached, for those who read the log again
    let lane = Lane::new(LANE);
    let (first, newest) = (*times.first().unwrap(), counts.newest().unwrap());
    let [begin, end] = [first, newest].map(|time| position_before(&folder, &lane, time).unwrap().unwrap());
    assert!(begin.0.values().sum::<u64>() > 0, "what was pruned is not read again");
    let after = position_before(&folder, &lane, i64::MAX).unwrap().unwrap();
    assert!(begin.0 < end.0 && end.0 < after.0);
    assert_eq!(position_before(home.path(), &lane, newest).unwrap(), None, "a lane without commits");
    let catalogue = Catalogue::open(&DataFolder::open(home.path()).unwrap()).unwrap();
    let gone = Span { from: extent(0), to: extent(before) };
    let error = Examples::open(&folder, &catalogue, Some(&gone)).err().unwrap().to_string();
    assert!(error.contains("some were deleted"), "{error}");
    // leftovers of an interrupted prune are ignored, then removed
    let half = folder.join(LANE).join("00000000");
    fs::create_dir(&half).unwrap();
    assert_eq!(examples(home.path()).len(), left.len());
    prune(&folder, Duration::from_secs(600)).unwrap();
    assert!(!half.exists());
}

#[test]
fn the_low_water_mark_is_the_first_event_not_yet_drawn() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path(), 200);
    ingest(home.path(), 97).unwrap();
    let examples = examples(home.path());
    for order in [Order { seed: 1, block: None }, Order { seed: 1, block: Some(33) }] {
        for drawn in [0, 1, 32, 33, 50, 150, 199, 200] {
            // by the definition: the click of query n has time n, and its offset grows with it
            let rest = draw(&examples, order, drawn).take((200 - drawn) as usize);
            let first = rest.map(|example| example.time).min();
            let marks = examples.low_water(order, drawn);
            let (_, mark) = marks["file-logs.ndjson"].0.first_key_value().unwrap();
            let length = fs::metadata(home.path().join("logs.ndjson")).unwrap().len();
            let expected = first.map_or(length, |time| {
                let log = fs::read_to_string(home.path().join("logs.ndjson")).unwrap();
                let id = format!("\"query_id\":\"q{}\"", (time - 1_700_000_000_000) / 1000);
                let of_click = |line: &str| line.contains("\"click\"") && line.contains(&format!("{id},"));
                let line = log.lines().find(|line| of_click(line)).unwrap();
                line.as_ptr() as u64 - log.as_ptr() as u64
            });
            assert_eq!(*mark, expected, "{order:?}, {drawn} drawn");
        }
    }
}

/// Source that passes its signals to `watch` first, which may end it.
struct Watched<'a, W> {
    source: Box<dyn LogSource + 'a>,
    watch: W,
}

impl<W: FnMut(&Option<Signal>) -> Result<()> + Send> LogSource for Watched<'_, W> {
    fn next(&mut self, wait: Duration) -> Result<Option<Signal>> {
        let signal = self.source.next(wait)?;
        (self.watch)(&signal)?;
        Ok(signal)
    }

    fn commit(&mut self, lane: &Lane, position: &Position) -> Result<()> {
        self.source.commit(lane, position)
    }

    fn send_dead_letters(&mut self, letters: &[DeadLetter]) -> Result<()> {
        self.source.send_dead_letters(letters)
    }

    fn lag(&self) -> u64 {
        self.source.lag()
    }
}

#[test]
fn a_growing_log_is_read_exactly_once() {
    let home = tempfile::tempdir().unwrap();
    let log = shop(home.path(), 3000);
    let whole = fs::read(&log).unwrap();
    fs::write(&log, b"").unwrap();
    let line_end = |at: usize| at + whole[at..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let cuts = [0, line_end(70_001), line_end(71_000), line_end(200_000), line_end(411_111), whole.len()];
    for cut in cuts.windows(2) {
        let mut file = fs::OpenOptions::new().append(true).open(&log).unwrap();
        std::io::Write::write_all(&mut file, &whole[cut[0]..cut[1]]).unwrap();
        let mut source = open(&log);
        let dying = move |resume: Resume| -> Result<Box<dyn LogSource>> {
            let mut left = 2_usize;
            // the dataset cannot tell this from a killed process
            let watch = move |_: &Option<Signal>| {
                left = left.checked_sub(1).ok_or_else(|| souk_io::Error::input("killed"))?;
                Ok(())
            };
            Ok(Box::new(Watched { source: source(resume)?, watch }))
        };
        let stop = Arc::new(AtomicBool::new(false));
        let mut ingest = Ingest::new(&home.path().join("examples"), settings(100), Box::new(dying), stop).unwrap();
        assert!(ingest.run(|_| {}).is_err(), "killed after its first batch");
    }
    ingest(home.path(), 500).unwrap();
    assert_each_once(home.path(), 3000);
}

fn assert_each_once(home: &Path, num: usize) {
    let examples = examples(home);
    let times: BTreeSet<i64> = (0..examples.len()).map(|row| examples.row(row).time).collect();
    assert_eq!((times.len(), examples.len()), (num, num as u64));
}

#[test]
fn only_one_of_two_writers_commits() {
    let home = tempfile::tempdir().unwrap();
    let log = shop(home.path(), 5000);
    let (mut source, mut opened) = (open(&log), 0);
    let path = home.path().to_path_buf();
    let contested = move |resume: Resume| -> Result<Box<dyn LogSource>> {
        opened += 1;
        let path = path.clone();
        let mut other = (opened == 1).then_some(path);
        let watch = move |signal: &Option<Signal>| {
            if let Some(path) = other.take_if(|_| matches!(signal, Some(Signal::Batch(_)))) {
                assert_eq!(ingest(&path, 1000).unwrap().counts.examples, 5000);
            }
            Ok(())
        };
        Ok(Box::new(Watched { source: source(resume)?, watch }))
    };
    let stop = Arc::new(AtomicBool::new(false));
    let mut ingest = Ingest::new(&home.path().join("examples"), settings(1000), Box::new(contested), stop).unwrap();
    let done = ingest.run(|_| {}).unwrap();
    assert_eq!(done.counts.examples, 0, "the other had written everything");
    assert_each_once(home.path(), 5000);
}

#[test]
fn stopping_commits_everything_read() {
    let home = tempfile::tempdir().unwrap();
    let log = shop(home.path(), 100);
    let files = FileSettings { paths: vec![log], follow: true, on_gap: OnGap::Stop };
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    let source = move |resume: Resume| -> Result<Box<dyn LogSource>> {
        let asked = asked.clone();
        let source = Box::new(FileSource::open(files.clone(), resume)?);
        let watch = move |signal: &Option<Signal>| {
            asked.fetch_or(matches!(signal, Some(Signal::Batch(_))), Ordering::Relaxed);
            Ok(())
        };
        Ok(Box::new(Watched { source, watch }))
    };
    let mut ingest = Ingest::new(&home.path().join("examples"), settings(1 << 20), Box::new(source), stop).unwrap();
    assert_eq!(ingest.run(|_| {}).unwrap().counts.examples, 100);
    assert_each_once(home.path(), 100);
}

#[test]
fn damage_is_reported_and_removed_commits_are_read_again() {
    let home = tempfile::tempdir().unwrap();
    let log = shop(home.path(), 400);
    let whole = fs::read(&log).unwrap();
    let middle = whole.len() / 2 + whole[whole.len() / 2..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    fs::write(&log, &whole[..middle]).unwrap();
    ingest(home.path(), 1 << 20).unwrap();
    fs::write(&log, &whole).unwrap();
    ingest(home.path(), 1 << 20).unwrap();
    let [first, last] = commits(home.path()).try_into().unwrap();
    let catalogue = Catalogue::open(&DataFolder::open(home.path()).unwrap()).unwrap();
    let error = || Examples::open(&home.path().join("examples"), &catalogue, None).err().unwrap().to_string();

    let shard = last.join("examples.arrow");
    let good = fs::read(&shard).unwrap();
    for bytes in [&good[..good.len() / 2], b"", &{
        let mut bad = good.clone();
        bad[good.len() / 3] ^= 1;
        bad
    }] {
        fs::write(&shard, bytes).unwrap();
        assert!(error().contains("examples.arrow: is damaged"), "{}", error());
    }
    fs::write(&shard, &good).unwrap();
    fs::rename(&first, home.path().join("elsewhere")).unwrap();
    assert!(error().contains("has commit 1 but not 0"), "{}", error());
    fs::rename(home.path().join("elsewhere"), &first).unwrap();
    fs::write(last.join("commit.json"), "{").unwrap();
    assert!(error().contains("is damaged: remove this folder"), "{}", error());
    let again = ingest(home.path(), 1 << 20).err().unwrap().to_string();
    assert!(again.contains("is damaged: remove this folder"), "{again}");
    fs::remove_dir_all(&last).unwrap();
    ingest(home.path(), 1 << 20).unwrap();
    assert_each_once(home.path(), 400);
}

#[test]
fn abandoned_commits_are_removed() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path(), 100);
    let half = home.path().join("examples/file-logs.ndjson/.part-1");
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("examples.arrow"), "half").unwrap();
    let living = half.with_file_name(".part-2");
    fs::create_dir_all(&living).unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    fs::File::open(&half).unwrap().set_modified(long_ago).unwrap();
    ingest(home.path(), 1 << 20).unwrap();
    assert!(!half.exists() && living.exists(), "another process may still write the recent one");
    assert_each_once(home.path(), 100);
}

#[test]
fn examples_of_unknown_items_are_counted_and_dropped() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path(), 100);
    ingest(home.path(), 1 << 20).unwrap();
    let corpus = "{\"_id\":\"i7\"}\n{\"_id\":\"i3\"}\n";
    fs::write(home.path().join("corpus.jsonl"), corpus).unwrap();
    let examples = examples(home.path());
    assert_eq!((examples.len(), examples.num_unknown_items()), (4, 96));
    let items: Vec<u32> = (0..4).map(|row| examples.row(row).item).collect();
    assert_eq!(items, [1, 0, 1, 0]);
    let order = Order { seed: 0, block: None };
    assert_eq!(draw(&examples, order, 0).take(8).count(), 8);
}

/// Commits that an earlier version wrote are read and continued: `tests/golden/formats/ingest` has some. To write them anew, remove that
/// folder and set `REGENERATE=1`.
#[test]
fn commits_of_an_earlier_version_are_continued() {
    let home = tempfile::tempdir().unwrap();
    let (kept, lane) = (souk_testing::golden("formats/ingest"), "examples/file-logs.ndjson");
    if std::env::var_os("REGENERATE").is_some() && !kept.exists() {
        shop(home.path(), 30);
        ingest(home.path(), 40).unwrap();
        copy_folder(&home.path().join(lane), &kept.join(lane));
    }
    shop(home.path(), 0);
    copy_folder(&kept.join(lane), &home.path().join(lane));
    assert_eq!(examples(home.path()).len(), 30);
    // a click on a search of that time, in another file
    let click = EventRecord {
        action: Action::Click,
        query_id: "q29".into(),
        client_id: "c".into(),
        item: "i7".into(),
        position: Some(2),
        time: 1_700_000_040_000,
        text: None,
    };
    let mut log = Vec::new();
    click.write("shop", &mut log);
    log.push(b'\n');
    let path = home.path().join("logs.ndjson");
    fs::write(&path, log).unwrap();
    let files = FileSettings { paths: vec![path], follow: false, on_gap: OnGap::Skip };
    let open = move |resume| -> Result<Box<dyn LogSource>> { Ok(Box::new(FileSource::open(files.clone(), resume)?)) };
    let stop = Arc::new(AtomicBool::new(false));
    let mut ingest = Ingest::new(&home.path().join("examples"), settings(1), Box::new(open), stop).unwrap();
    assert_eq!(ingest.run(|_| ()).unwrap().counts.examples, 1, "its query is known");
    assert_eq!(examples(home.path()).len(), 31);
}
