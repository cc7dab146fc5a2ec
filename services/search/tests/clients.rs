//! Clients that nobody here wrote: the packages openai and huggingface_hub, schemathesis on the document, and a browser on
//! the console. SOUK_CASES sets how many requests schemathesis makes up; `make soak` has the long form.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "what was proved is worth reading")]

mod client;

use std::path::{Path, PathBuf};
use std::process::Command;

use client::{Process, golden, shop, try_ask_with};
use serde_json::json;

const KEYS: &str = "reader,admin:boss";

/// The interpreter that has the packages.
fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = Command::new(root.join("scripts/python.sh"))
        .arg("services/search/tests/clients/requirements.txt")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim().into()
}

fn run(script: &str, arguments: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let ran = Command::new(python()).arg("-B").arg(script).args(arguments).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}\n{err}");
    println!("{out}");
}

#[test]
fn other_peoples_clients_are_answered() {
    let home = shop();
    let events = format!("search.events.path={}", home.path().join("events.ndjson").display());
    let process = Process::start(home.path(), &[&events], KEYS);
    let cases = std::env::var("SOUK_CASES").unwrap_or_else(|_| "200".into());
    run("clients.py", &[&format!("http://{}", process.address), "boss", "reader", "--cases", &cases]);
    process.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn people_search_compare_vote_and_promote_in_a_browser() {
    let home = shop();
    let process = Process::start(home.path(), &[], KEYS);
    let second = json!({"version": "second", "path": golden("st_cls"), "report": {"overall": {"ndcg@10": 50.0}}});
    let key = "Authorization: Bearer boss\r\n";
    let answer = try_ask_with(process.address, "POST /models", key, second.to_string().as_bytes()).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    let address = format!("http://{}", process.address);
    tokio::task::spawn_blocking(move || run("console.py", &[&address, "boss", "--query", "red lamp for a desk"]))
        .await
        .unwrap();
    process.kill();
}
