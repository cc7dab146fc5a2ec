//! Third-party clients: the packages openai and huggingface_hub, schemathesis on the OpenAPI document, a browser on the
//! console, and a span collector. Souk's own Python client too. SOUK_CASES sets the number of schemathesis requests; `make
//! soak` runs the long form.

#![expect(clippy::print_stdout, reason = "the proofs are printed")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::client::{Process, golden, shop, try_ask_with};
use serde_json::{Value, json};
use souk::index::Snapshot;
use souk::vector_export::{DEFAULT_FIELD, DEFAULT_NAME, VectorExport, VectorFormat};

const KEYS: &str = "reader,admin:boss";

/// Python interpreter with the packages.
fn python() -> PathBuf {
    let root = souk_testing::repository();
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
fn third_party_clients_work() {
    let home = shop();
    let events = format!("search.events.path={}", home.path().join("events.ndjson").display());
    let process = Process::start(home.path(), &[&events], KEYS);
    let cases = std::env::var("SOUK_CASES").unwrap_or_else(|_| "200".into());
    run("clients.py", &[&format!("http://{}", process.address), "boss", "reader", "--cases", &cases]);
    process.kill();
}

/// The package in `python/`, `docs/python.md` and `examples/search.py`; the generated modules are current.
#[test]
fn own_client_works() {
    let home = shop();
    let events = format!("search.events.path={}", home.path().join("events.ndjson").display());
    let process = Process::start(home.path(), &[&events], KEYS);
    run("souk_client.py", &[&format!("http://{}", process.address), "boss", "reader"]);
    process.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_works_in_a_browser() {
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

/// docs/integrations.md: its requests, and an export in Qdrant's client.
#[test]
fn other_engines_get_the_vectors_of_the_service() {
    let home = shop();
    let process = Process::start(home.path(), &[], "");
    let snapshot = Snapshot::open_any(&home.path().join("state/generations/first-1/snapshot-0")).unwrap();
    let (format, field, name) = (VectorFormat::Qdrant, DEFAULT_FIELD, DEFAULT_NAME);
    let out = home.path().join("qdrant");
    VectorExport { snapshot: &snapshot, format, field, name, with_items: true }.write(&out, &mut |_| ()).unwrap();
    run("integrations.py", &[&format!("http://{}", process.address), &out.to_string_lossy()]);
    process.kill();
}

/// OpenTelemetry spans: a request joins its caller's trace, and its child spans show where the time went.
#[tokio::test(flavor = "multi_thread")]
async fn third_party_collector_parses_spans() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/collector.py");
    let mut collector =
        Command::new(python()).arg("-B").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(collector.stdout.take().unwrap()).lines();
    let endpoint = format!("http://127.0.0.1:{}", said.next().unwrap().unwrap());
    let home = shop();
    let process = Process::start_with(home.path(), &[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())]);
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let header = format!("traceparent: 00-{trace}-{parent}-01\r\n");
    let body = json!({"query": "red lamp", "hybrid": true}).to_string();
    let answer = try_ask_with(process.address, "POST /search", &header, body.as_bytes()).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    process.stop();
    drop(collector.stdin.take());
    let spans: Vec<Value> = said.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert!(collector.wait().unwrap().success());
    let ours: Vec<&Value> = spans.iter().filter(|span| span["trace"] == trace).collect();
    let request = ours.iter().find(|span| span["name"] == "/search").unwrap();
    assert_eq!((&request["parent"], &request["status"]), (&json!(parent), &json!(200)), "{request}");
    assert_eq!((&request["service"], &request["kind"]), (&json!("souk"), &json!(2)), "{request}");
    for name in ["encode", "nearest", "terms"] {
        let part = ours.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("no {name}: {spans:?}"));
        assert_eq!(part["parent"], request["id"], "{part}");
        assert!(part["nanoseconds"].as_u64() <= request["nanoseconds"].as_u64(), "{part}");
    }
}
