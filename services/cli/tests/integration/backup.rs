//! `souk backup` and `souk restore`, with backups in a folder and in an object store.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use souk_testing::databases::{runtime, server_url, unique};
use souk_testing::http_client::ask;

use crate::index::put;

/// Command in the folder of a shop, with its settings and an object store.
fn souk(home: &Path, arguments: &[&str], server: Option<&str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env("HF_HUB_OFFLINE", "1").env("OMP_NUM_THREADS", "1").env("RUST_LOG", "warn");
    if let Some(server) = server {
        command.env("AWS_ENDPOINT_URL", server).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", "souk").env("AWS_SECRET_ACCESS_KEY", "souk");
    }
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finished(mut command: Command) -> Result<Value, String> {
    let Output { status, stdout, stderr } = command.output().unwrap();
    if status.success() {
        return Ok(serde_json::from_slice(&stdout).unwrap());
    }
    Err(String::from_utf8_lossy(&stderr).into_owned())
}

/// A running `souk serve`, killed on drop.
struct Service {
    child: Child,
    address: SocketAddr,
}

impl Service {
    fn start(home: &Path, more: &[&str], server: Option<&str>) -> Self {
        let serve = ["serve", "--json", "--listen", "127.0.0.1:0"];
        let mut child = souk(home, &[&serve[..], more].concat(), server).stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        let address = said["address"].as_str().unwrap().parse().unwrap();
        // it has all changes
        while runtime().block_on(ask(address, "GET /readyz", "", b"")).status != 200 {
            sleep(Duration::from_millis(20));
        }
        Self { child, address }
    }

    fn ask(&self, route: &str, body: &Value) -> Value {
        let answer = runtime().block_on(ask(self.address, route, "", body.to_string().as_bytes()));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    fn hits(&self) -> Value {
        self.ask("POST /search", &json!({"query": "oak desk 3", "k": 5, "hybrid": true}))["hits"].clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Loses a machine with everything on it, and restores it on another one.
fn lose_and_restore(address: &str, server: Option<&str>) {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(old.path().join("shop")).unwrap();
    let lines: String =
        (0..20).map(|n| json!({"_id": n.to_string(), "title": format!("oak desk {n}")}).to_string() + "\n").collect();
    fs::write(old.path().join("shop/corpus.jsonl"), lines).unwrap();
    let model = souk_testing::golden("st_mean_dense");
    let service = Service::start(old.path(), &["--model", model.to_str().unwrap(), "--data", "shop"], server);
    service.ask("PUT /items", &json!({"items": [{"id": "new", "title": "oak desk 3 wide"}]}));
    let backup =
        |more: &[&str]| finished(souk(old.path(), &[&["backup", "--json", "--to", address], more].concat(), server));
    let first = backup(&[]).unwrap();
    assert_eq!(first["content"]["search"]["catalogue"], 0, "{first}");
    service.ask("PATCH /items/new", &json!({"price": 5}));
    let second = backup(&["--keep", "1"]).unwrap();
    assert_eq!((second["deleted"].as_u64(), second["content"]["ledger"]["last_change"].as_u64()), (Some(1), Some(2)));
    let hits = service.hits();
    drop((service, old));

    let restore = |more: &[&str]| finished(souk(new.path(), &[&["restore", "--json"], more].concat(), server));
    let checked = restore(&["--from", address, "--check"]).unwrap();
    assert_eq!((&checked["address"], &checked["size"]), (&second["address"], &second["size"]));
    let gone = restore(&["--from", first["address"].as_str().unwrap()]).unwrap_err();
    assert!(gone.contains("has no complete backup: check the address"), "{gone}");
    assert!(restore(&[]).unwrap_err().contains("set [search] backups"));
    restore(&["--from", address]).unwrap();
    let service = Service::start(new.path(), &[], server);
    assert_eq!(service.hits(), hits);
    let put = service.ask("PUT /items", &json!({"items": [{"id": "newer", "title": "oak desk"}]}));
    assert_eq!(put["catalogue"], 3);
    let used = restore(&["--from", address]).unwrap_err();
    assert!(used.contains("which another process serves from"), "{used}");
}

#[test]
fn a_lost_machine_is_restored_from_a_folder() {
    let home = tempfile::tempdir().unwrap();
    lose_and_restore(home.path().join("backups").to_str().unwrap(), None);
}

#[test]
fn a_lost_machine_is_restored_from_an_object_store() {
    let name = "backup::a_lost_machine_is_restored_from_an_object_store";
    let Some(server) = server_url("S3_URL", name, |url| url.starts_with("http://")) else { return };
    let bucket = unique("souk").replace('_', "-");
    put(&server, &bucket, b"");
    lose_and_restore(&format!("s3://{bucket}/backups"), Some(&server));
}
