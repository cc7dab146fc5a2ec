//! Checks at the end of a run: files on disk, the ledger and the logs of the services.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use serde_json::Value;
use souk::store::{Ledger, VersionState};

use crate::Loop;
use crate::shopper::Shopper;

/// Log messages that mean partial files (checksums, lengths, truncated JSON), and models or indexes that differ from their
/// registration or are registered twice.
const FORBIDDEN_MESSAGES: [&str; 16] = [
    "is damaged",
    "checksum",
    "a checkpoint cannot be used",
    "is no state of a stage",
    "is not a round's decision",
    "not the JSON that was written",
    "not what `souk evaluate` writes",
    "it ends within a number",
    "it may be truncated",
    "or truncated",
    "its header declares",
    "the safetensors header is malformed",
    "is not a generation record",
    "does not name a generation",
    "was registered as model",
    "already exists: use another name",
];

pub fn audit(running: &Loop, num: usize, shopper: &Shopper) {
    let examples = running.examples();
    let times: BTreeSet<i64> = (0..examples.len()).map(|row| examples.row(row).time).collect();
    assert_eq!((examples.len(), times.len()), (num as u64, num), "every event counts once");
    audit_rounds(running);
    for log in ["trainer.log", "search-0.log", "search-1.log"] {
        audit_log(&running.home.join(log));
    }
    assert_eq!(shopper.failed.load(Ordering::Relaxed), 0, "searches failed");
    assert!(shopper.answered.iter().all(|answered| answered.load(Ordering::Relaxed) > 25), "{}", shopper.summary());
}

/// Checks that every round ended with a model published exactly once, and that no partial files are left.
fn audit_rounds(running: &Loop) {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(running.state().join("rounds")).unwrap() {
        let place = entry.unwrap().path();
        let name = place.file_name().unwrap().to_string_lossy().into_owned();
        numbers.push(name.parse::<u64>().unwrap_or_else(|_| panic!("{name} is partial")));
        let ended = fs::read(place.join("ended.json")).unwrap_or_else(|_| panic!("{name} has not ended"));
        let ended: Value = serde_json::from_slice(&ended).unwrap();
        assert!(ended["version"].is_string(), "a round failed permanently: {ended:#}");
    }
    assert_no_partial_files(&running.state());
    let versions = running.ledger(async |ledger| ledger.page_versions(None, 1000).await.unwrap());
    for version in versions.iter().filter(|version| version.state == VersionState::Rejected) {
        assert_ne!(version.metrics["gate"]["passed"], true, "{} passed its gate and was rejected", version.version);
    }
    let published: Vec<u64> = versions.iter().filter_map(|version| version.metrics["round"].as_u64()).collect();
    let distinct: BTreeSet<u64> = published.iter().copied().collect();
    assert_eq!(published.len(), distinct.len(), "a round is published once");
    assert!(!published.is_empty() && distinct.iter().all(|round| numbers.contains(round)));
}

/// Checks that no temporary file (`.part`) is left.
fn assert_no_partial_files(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.extension().is_none_or(|extension| extension != "part"), "{} is left behind", path.display());
        if path.is_dir() && !path.is_symlink() {
            assert_no_partial_files(&path);
        }
    }
}

/// Whether a line of a log is an event with a level. A panic, an abort or a message of a library is not.
fn is_event(line: &str) -> bool {
    serde_json::from_str::<Value>(line).is_ok_and(|event| event["level"].is_string())
}

fn audit_log(path: &Path) {
    let text = fs::read_to_string(path).unwrap();
    let is_forbidden = |line: &&str| !is_event(line) || FORBIDDEN_MESSAGES.iter().any(|message| line.contains(message));
    let lines: Vec<&str> = text.lines().filter(is_forbidden).collect();
    assert!(lines.is_empty(), "{} has:\n{}", path.display(), lines.join("\n"));
}
