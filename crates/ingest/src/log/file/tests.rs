//! File logs while they are written, rotated, truncated and deleted.

use std::io::Write;
use std::sync::Mutex;

use super::*;

fn source(path: &Path, follow: bool, position: Option<Position>) -> FileSource {
    let settings = FileSettings { paths: vec![path.into()], follow, on_gap: OnGap::Stop };
    FileSource::open(settings, Arc::new(move |_| Ok(position.clone()))).unwrap()
}

fn append(path: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Reads lines until the source is drained; returns them with the final position.
fn read(source: &mut FileSource, wait: Duration) -> (Vec<String>, Position) {
    let (mut lines, mut position) = (Vec::new(), Position::default());
    loop {
        match source.next(wait).unwrap() {
            Some(Signal::Batch(batch)) => {
                for message in batch.messages() {
                    lines.push(String::from_utf8_lossy(message.payload).into_owned());
                    position = Position::default();
                    position.pass(message.part, message.offset, message.next);
                }
            }
            Some(Signal::Opened(..)) => {}
            Some(Signal::Closed(..) | Signal::Ended) | None => return (lines, position),
        }
    }
}

#[test]
fn resumes_at_the_end_of_the_previous_run() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    append(&log, "one\r\ntwo\n\nthr");
    let (lines, position) = read(&mut source(&log, false, None), Duration::ZERO);
    assert_eq!(lines, ["one", "two", "", "thr"], "an unterminated last line counts when the file is not followed");
    append(&log, "ee\nfour\n");
    let (lines, _) = read(&mut source(&log, false, Some(position)), Duration::ZERO);
    assert_eq!(lines, ["ee", "four"]);
}

#[test]
fn followed_line_is_held_until_complete() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    append(&log, "one\ntw");
    let mut source = source(&log, true, None);
    assert_eq!(read(&mut source, Duration::ZERO).0, ["one"]);
    append(&log, "o\n");
    assert_eq!(read(&mut source, Duration::ZERO).0, ["two"]);
}

#[test]
fn rotation_while_reading_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    append(&log, "one\n");
    let mut source = source(&log, true, None);
    assert_eq!(read(&mut source, Duration::ZERO).0, ["one"]);
    fs::rename(&log, home.path().join("logs.ndjson.1")).unwrap();
    append(&home.path().join("logs.ndjson.1"), "late\n");
    append(&log, "new\n");
    assert_eq!(read(&mut source, Duration::ZERO).0, ["late"], "the writer has not switched files yet");
    append(&home.path().join("logs.ndjson.1"), "later\n");
    let (lines, position) = read(&mut source, ROTATION_GRACE * 2);
    assert_eq!(lines, ["later", "new"]);
    fs::write(&log, "x\n").unwrap();
    let (lines, _) = read(&mut source, Duration::ZERO);
    assert!(lines.is_empty(), "truncation is only detected here");
    assert_eq!(read(&mut source, Duration::ZERO).0, ["x"]);
    assert_eq!(position.0.len(), 1);
}

#[test]
fn rotation_between_two_runs_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    append(&log, "one\ntwo\n");
    let (_, position) = read(&mut source(&log, false, None), Duration::ZERO);
    append(&log, "three\n");
    fs::rename(&log, home.path().join("logs.ndjson.2")).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    append(&home.path().join("logs.ndjson.1"), "four\n");
    append(&log, "five\n");
    let (lines, _) = read(&mut source(&log, false, Some(position)), Duration::ZERO);
    assert_eq!(lines, ["three", "four", "five"]);
}

#[test]
fn unread_file_that_vanished_is_a_gap() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    append(&log, "one\n");
    let (_, position) = read(&mut source(&log, false, None), Duration::ZERO);
    fs::write(&log, "other\n").unwrap();
    let mut stopped = source(&log, false, Some(position.clone()));
    let error = stopped.next(Duration::ZERO).err().unwrap().to_string();
    assert!(error.contains("is gone") && error.contains("on_gap=skip"), "{error}");
    let settings = FileSettings { paths: vec![log], follow: false, on_gap: OnGap::Skip };
    let mut skipped = FileSource::open(settings, Arc::new(move |_| Ok(Some(position.clone())))).unwrap();
    assert_eq!(read(&mut skipped, Duration::ZERO).0, ["other"]);
}

#[test]
fn overlong_line_is_truncated_with_bounded_memory() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    append(&log, "one\n");
    append(&log, &"x".repeat(3 * MAX_LINE_BYTES));
    append(&log, "\ntwo\n");
    let lengths = Mutex::new(Vec::new());
    let mut source = source(&log, false, None);
    while let Some(signal) = source.next(Duration::ZERO).unwrap() {
        if let Signal::Batch(batch) = signal {
            lengths.lock().unwrap().extend(batch.messages().map(|m| (m.payload.len(), m.offset, m.next)));
        }
    }
    let end = 5 + 3 * MAX_LINE_BYTES as u64;
    assert_eq!(*lengths.lock().unwrap(), [(3, 0, 4), (TRUNCATED_BYTES, 4, end), (3, end, end + 4)]);
}

#[test]
fn rejects_two_logs_with_the_same_file_name() {
    let home = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|folder| {
        fs::create_dir(home.path().join(folder)).unwrap();
        home.path().join(folder).join("logs.ndjson")
    });
    paths.iter().for_each(|path| append(path, "one\n"));
    let settings = FileSettings { paths: paths.to_vec(), follow: false, on_gap: OnGap::Stop };
    let error = FileSource::open(settings, Arc::new(|_| Ok(None))).err().unwrap().to_string();
    assert!(error.contains("the same file name"), "{error}");
}

#[test]
fn two_rotations_between_reads_lose_nothing() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    let rotated = |number: u8| home.path().join(format!("logs.ndjson.{number}"));
    append(&log, "one\n");
    let mut source = source(&log, true, None);
    assert_eq!(read(&mut source, Duration::ZERO).0, ["one"]);
    fs::rename(&log, rotated(1)).unwrap();
    append(&log, "two\n");
    fs::rename(rotated(1), rotated(2)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    append(&log, "too\n");
    fs::rename(&log, rotated(1)).unwrap();
    append(&log, "three\n");
    fs::write(home.path().join("logs.ndjson.bak"), "no part of it\n").unwrap();
    assert_eq!(read(&mut source, ROTATION_GRACE * 2).0, ["two", "too", "three"]);
}

#[test]
fn recognises_a_file_without_a_line_end() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    append(&log, "one");
    let (lines, position) = read(&mut source(&log, false, None), Duration::ZERO);
    assert_eq!(lines, ["one"]);
    assert!(read(&mut source(&log, false, Some(position.clone())), Duration::ZERO).0.is_empty());
    append(&log, "\ntwo\n");
    assert_eq!(read(&mut source(&log, false, Some(position)), Duration::ZERO).0, ["", "two"]);
}

#[test]
fn truncated_log_is_reread_under_a_new_name() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    append(&log, "same\none\ntwo\n");
    let mut source = source(&log, true, None);
    let (_, before) = read(&mut source, Duration::ZERO);
    fs::write(&log, "same\nnew\n").unwrap();
    assert!(read(&mut source, Duration::ZERO).0.is_empty(), "truncation is only detected here");
    let (lines, after) = read(&mut source, Duration::ZERO);
    assert_eq!(lines, ["same", "new"]);
    assert_ne!(before.0.keys().collect::<Vec<_>>(), after.0.keys().collect::<Vec<_>>());
    append(&log, "more\n");
    let settings = FileSettings { paths: vec![log], follow: false, on_gap: OnGap::Stop };
    let mut again = FileSource::open(settings, Arc::new(move |_| Ok(Some(after.clone())))).unwrap();
    assert_eq!(read(&mut again, Duration::ZERO).0, ["more"]);
}
