//! `souk doctor`: passing and failing checks.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use souk_testing::small_shop::{ITEMS, messages, model, shop};

/// Part, result and message of each check, and the exit code.
fn doctor(home: &Path, more: &[&str]) -> (Vec<(String, bool, String)>, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command
        .current_dir(home)
        .env_remove("RUST_LOG")
        .args(["doctor", "--json", "--data", "data", "--model"])
        .arg(model());
    for set in ["trainer.listen=127.0.0.1:0", "search.listen=127.0.0.1:0", "trainer.stage=[{name=\"sft\"}]"] {
        command.args(["--set", set]);
    }
    let output = command.args(more).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let found = found.iter().map(|one| (text(one, "part"), one["ok"].as_bool().unwrap(), text(one, "said"))).collect();
    (found, output.status.code().unwrap())
}

#[test]
fn reports_each_check() {
    let home = shop();
    let log: String = messages(0..ITEMS).map(|(_, line)| line + "\n").collect();
    std::fs::write(home.path().join("log.ndjson"), log).unwrap();
    let judge = ["--set", "judge.type=qrels", "--set", "judge.split=test"];
    let (found, code) = doctor(home.path(), &[&["--from", "log.ndjson"][..], &judge].concat());
    let bad: Vec<_> = found.iter().filter(|(_, ok, _)| !ok).collect();
    assert!(bad.is_empty() && code == 0, "{bad:?}");
    for part in ["device", "clock", "disk", "model", "data", "log", "ledger", "cache", "judge", "trainer"] {
        assert!(found.iter().any(|(name, ..)| name == part), "no check of {part}");
    }
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("search.listen={}", occupied.local_addr().unwrap());
    let wrong = [
        ("log", vec!["--from", "gone.ndjson"], "gone.ndjson"),
        ("cache", vec!["--set", "store.cache=redis://127.0.0.1:9/0"], "that the server is running"),
        ("search.listen", vec!["--set", &listen], "check whether it is already running"),
        ("trainer", vec!["--set", "trainer.gate.watched=[\"hits\"]"], "names `hits`"),
    ];
    for (part, more, words) in wrong {
        let (found, code) = doctor(home.path(), &[&more[..], &judge].concat());
        let (_, ok, message) = found.iter().find(|(name, ..)| name == part).unwrap();
        assert!(!ok && code == 1 && message.contains(words), "{part}: {message}");
    }
}
