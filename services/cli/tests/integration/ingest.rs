//! `souk ingest` of files: output, errors, and a full disk.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn souk(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_souk-engine")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write_log(path: &Path, searches: usize) {
    let mut log = String::new();
    for n in 0..searches {
        log.push_str(&format!(
            "{{\"query_id\":\"q{n}\",\"client_id\":\"c\",\"user_query\":\"oak desk {n}\",\"timestamp\":\"2026-01-31T10:00:00.000Z\"}}\n\
             {{\"action_name\":\"click\",\"query_id\":\"q{n}\",\"timestamp\":1769853601000,\"event_attributes\":{{\"object\":{{\"object_id\":\"i{n}\"}}}}}}\n"
        ));
    }
    fs::write(path, log).unwrap();
}

#[test]
fn a_second_run_finds_nothing_new() {
    let home = tempfile::tempdir().unwrap();
    let (log, data) = (home.path().join("logs.ndjson"), home.path().to_str().unwrap());
    write_log(&log, 50);
    let arguments = ["ingest", "--from", log.to_str().unwrap(), "--data", data];
    let first = souk(&arguments);
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(text(&first.stdout).starts_with("100 messages: 50 examples, 50 queries, 0 impressions"));
    let again = souk(&[&arguments[..], &["--json"]].concat());
    let again: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&again["messages"], &again["waiting"]), (&0.into(), &0.into()));
}

#[test]
fn usage_errors_exit_with_2_and_bad_paths_with_1() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().to_str().unwrap();
    let log = home.path().join("logs.ndjson");
    write_log(&log, 1);
    let log = log.to_str().unwrap();
    let denied = home.path().join("denied");
    fs::write(&denied, "a file where a folder is expected").unwrap();
    let paths = format!("log.paths=[{log:?}]");
    let both = ["ingest", "--data", data, "--set", &paths, "--set", "log.brokers=localhost:1"];
    for (arguments, code, expected) in [
        (&["ingest", "--data", data][..], 2, "no source: give --from FILE"),
        (&both, 2, "has both files and Kafka"),
        (&["ingest", "--data", data, "--kafka", "localhost:1"], 2, "has no topic"),
        (&["ingest", "--data", data, "--from", "/nowhere/log"], 1, "/nowhere/log: cannot open the log"),
        (
            &["ingest", "--data", denied.to_str().unwrap(), "--from", log],
            1,
            "denied/examples: cannot create the folder",
        ),
        (&["ingest", "--data", data, "--from", log, "--set", "ingest.strength.cap=0"], 2, "and cap 1 or more"),
        (&["ingest", "--data", data, "--from", log, "--set", "ingest.commit_messages=0"], 2, "must be from 1"),
    ] {
        let output = souk(arguments);
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (log, data) = (home.path().join("logs.ndjson"), home.path().to_str().unwrap());
    write_log(&log, 20_000);
    let engine = env!("CARGO_BIN_EXE_souk-engine");
    let arguments = format!("ingest --json --from {} --data {data} --set ingest.commit_messages=10000", log.display());
    // files are limited to 64 KiB: writes fail as on a full disk
    let limited = format!("trap '' XFSZ; ulimit -f 64; exec '{engine}' {arguments}");
    let full = Command::new("bash").args(["-c", &limited]).output().unwrap();
    assert_eq!(full.status.code(), Some(1), "{}", text(&full.stderr));
    assert!(text(&full.stderr).contains("cannot write"), "{}", text(&full.stderr));
    let lane = home.path().join("examples/file-logs.ndjson");
    assert_eq!(fs::read_dir(&lane).unwrap().count(), 0, "a partial commit is left behind");
    let done = souk(&arguments.split(' ').collect::<Vec<_>>());
    let done: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&done["examples"], &done["repeated"]), (&20_000.into(), &0.into()));
}
