//! Power loss: what was acknowledged is there afterwards. Each scenario is also run with the syncs of some files left out, and must notice.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souk_testing::databases::runtime;
use souk_testing::http_client::ask;
use souk_testing::power_loss::Disk;

use crate::stage::{shop, stage};

/// Syncs that nothing is left out of.
const NONE: &str = "";

/// Error if what a program promised is not there.
type Kept = Result<(), String>;

fn souk(disk: &Disk, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(disk.folder()).env("HF_HUB_OFFLINE", "1").env("OMP_NUM_THREADS", "1").env("RUST_LOG", "error");
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output_of(command: &mut Command) -> Result<Value, String> {
    let Output { status, stdout, stderr } = command.output().unwrap();
    if !status.success() {
        return Err(String::from_utf8_lossy(&stderr).into_owned());
    }
    Ok(serde_json::from_slice(&stdout).unwrap_or_default())
}

/// The scenario keeps its promise, and not without these syncs.
fn needs_syncs(scenario: impl Fn(&str) -> Kept, all: &[&str]) {
    assert_eq!(scenario(NONE), Ok(()));
    for dropped in all {
        assert!(scenario(dropped).is_err(), "nothing depends on the syncs of `{dropped}`");
    }
}

/// A running `souk serve`, killed on drop.
struct Service {
    child: Child,
    address: SocketAddr,
}

impl Service {
    /// Error if it does not start, or is not ready after a while.
    fn start(disk: &Disk, watched: Option<&str>) -> Result<Self, String> {
        let model = souk_testing::golden("st_mean_dense");
        let model = model.to_str().unwrap();
        let mut command =
            souk(disk, &["serve", "--json", "--listen", "127.0.0.1:0", "--model", model, "--data", "shop"]);
        command.args(["--set", "search.recall_seconds=0"]);
        if let Some(dropped) = watched {
            disk.watch(&mut command, dropped);
        }
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_default();
        let address = said["address"].as_str().map(|address| address.parse().unwrap());
        let service = Self { child, address: address.unwrap_or(([127, 0, 0, 1], 0).into()) };
        if address.is_none() {
            return Err("it does not start".into());
        }
        let began = Instant::now();
        while service.status("GET /readyz", &json!(null)) != 200 {
            if began.elapsed() > Duration::from_secs(10) {
                return Err("it is not ready".into());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(service)
    }

    fn status(&self, route: &str, body: &Value) -> u16 {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        runtime().block_on(ask(self.address, route, "", body.as_bytes())).status
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn small_shop(disk: &Disk) {
    let shop = disk.folder().join("shop");
    fs::create_dir(&shop).unwrap();
    let lines: String =
        (0..20).map(|n| json!({"_id": n.to_string(), "title": format!("oak desk {n}")}).to_string() + "\n").collect();
    fs::write(shop.join("corpus.jsonl"), lines).unwrap();
    disk.settle(&disk.folder());
}

/// Items that were acknowledged are there, and a replica that had them is ready.
fn items(dropped: &str) -> Kept {
    let disk = Disk::new();
    small_shop(&disk);
    for round in 0..2 {
        let service = Service::start(&disk, Some(dropped))?;
        for n in 0..10 {
            let item = json!({"items": [{"id": format!("{round}-{n}"), "title": "new"}]});
            assert_eq!(service.status("PUT /items", &item), 200);
        }
        drop(service);
        disk.lose_power();
    }
    let service = Service::start(&disk, None)?;
    for (round, n) in (0..2).flat_map(|round| (0..10).map(move |n| (round, n))) {
        if service.status(&format!("GET /items/{round}-{n}"), &json!(null)) != 200 {
            return Err(format!("item {round}-{n} is gone"));
        }
    }
    Ok(())
}

#[test]
fn acknowledged_items_survive() {
    needs_syncs(items, &["souk.db", "generations", "generation.part", "manifest.json"]);
}

/// A backup that was reported is whole.
fn backup(dropped: &str) -> Kept {
    let disk = Disk::new();
    small_shop(&disk);
    drop(Service::start(&disk, None)?);
    disk.settle(&disk.folder());
    let mut command = souk(&disk, &["backup", "--json", "--to", "backups"]);
    disk.watch(&mut command, dropped);
    output_of(&mut command)?;
    disk.lose_power();
    output_of(&mut souk(&disk, &["restore", "--json", "--from", "backups", "--check"])).map(drop)
}

#[test]
fn a_finished_backup_survives() {
    needs_syncs(backup, &["backups/"]);
}

/// Every message counts once: what was committed is there, and the rest is read again.
fn examples(dropped: &str) -> Kept {
    const NUM: u64 = 20_000;
    let (disk, elsewhere) = (Disk::new(), tempfile::tempdir().unwrap());
    let log = elsewhere.path().join("log.ndjson");
    let lines = (0..NUM).map(|n| {
        let query = json!({"query_id": format!("q{n}"), "client_id": "c", "user_query": "desk", "timestamp": n * 60_000});
        let object = json!({"object": {"object_id": format!("i{n}")}});
        let click =
            json!({"action_name": "click", "query_id": format!("q{n}"), "timestamp": n * 60_000, "event_attributes": object});
        format!("{query}\n{click}\n")
    });
    fs::write(&log, lines.collect::<String>()).unwrap();
    let ingest = || {
        souk(
            &disk,
            &["ingest", "--json", "--from", log.to_str().unwrap(), "--data", ".", "--set", "ingest.commit_log_hours=1"],
        )
    };
    let mut command = ingest();
    disk.watch(&mut command, dropped);
    let mut running = command.spawn().unwrap();
    let commits = disk.folder().join("examples/file-log.ndjson");
    while !commits.join("00000005").exists() {
        assert!(running.try_wait().unwrap().is_none(), "it ended before its sixth commit");
        sleep(Duration::from_millis(1));
    }
    drop((running.kill(), running.wait()));
    disk.lose_power();
    let left = fs::read_dir(&commits).map_or(0, Iterator::count);
    let mut command = ingest();
    disk.watch(&mut command, dropped);
    let read = output_of(&mut command)?["messages"].as_u64().unwrap();
    disk.lose_power();
    let again = output_of(&mut ingest())?["messages"].as_u64().unwrap();
    let num = sum_of_examples(&commits);
    if left < 5 || read >= 2 * NUM || again != 0 || num != NUM {
        return Err(format!("{left} commits were left, then {read} messages were read, then {again}: {num} examples"));
    }
    Ok(())
}

/// Examples of all commits whose files are whole.
fn sum_of_examples(commits: &Path) -> u64 {
    let counts = fs::read_dir(commits).unwrap().map(|entry| {
        let folder = entry.unwrap().path();
        let commit: Value = serde_json::from_slice(&fs::read(folder.join("commit.json")).unwrap()).unwrap();
        let is_whole = |(name, sum): (&String, &Value)| {
            fs::metadata(folder.join(name)).is_ok_and(|file| file.len() == sum["bytes"])
        };
        let all_whole = commit["files"].as_object().unwrap().iter().all(is_whole);
        if all_whole { commit["counts"]["examples"].as_u64().unwrap() } else { 0 }
    });
    counts.sum()
}

#[test]
fn committed_examples_survive() {
    needs_syncs(examples, &["examples", "commit.json", "examples.arrow", "queries.arrow"]);
}

/// A training that was killed goes on from its last checkpoint.
fn checkpoint(dropped: &str) -> Kept {
    let disk = Disk::new();
    shop(&disk.folder());
    disk.settle(&disk.folder());
    let train = |more: &[&str]| {
        let sets = ["train.batch=12", "train.checkpoint_steps=2", "objective.type=info_nce"];
        let mut command = stage(&disk.folder(), "run", &[&sets[..], more].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut command = train(&["train.epochs=6"]);
    disk.watch(&mut command, dropped);
    let mut running = command.spawn().unwrap();
    let out = disk.folder().join("run");
    let last = out.join("checkpoints/step-000000004");
    while !last.exists() {
        assert!(running.try_wait().unwrap().is_none());
        sleep(Duration::from_millis(5));
    }
    drop((running.kill(), running.wait()));
    disk.lose_power();
    if fs::read_dir(last.parent().unwrap()).map_or(0, Iterator::count) == 0 {
        return Err("no checkpoint is left".into());
    }
    let mut command = train(&["train.epochs=6"]);
    output_of(command.arg("--resume"))?;
    let first = fs::read_to_string(out.join("steps.jsonl")).unwrap();
    let steps = first.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap());
    let num = steps.count();
    if num < 60 { Err(format!("only {num} steps are logged")) } else { Ok(()) }
}

#[test]
fn checkpoints_survive() {
    needs_syncs(checkpoint, &["checkpoints"]);
}
