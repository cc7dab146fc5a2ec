//! SIGKILL during writes: every acknowledged write survives the restart, and the service answers at once. SOUK_KILLS
//! sets the number of kills; `make soak` runs the long form.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::{Process, shop};
use serde_json::{Value, json};
use tokio::net::TcpStream;

const WRITERS: usize = 3;
/// Changes that make a new snapshot worth it.
const CHANGES: usize = 1000;

/// Acknowledged state of each id; ids with a write in flight are missing.
#[derive(Clone, Default)]
struct Acknowledged(Arc<Mutex<std::collections::BTreeMap<String, Option<String>>>>);

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_sigkill() {
    let home = shop();
    let kills: u64 = std::env::var("SOUK_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let acknowledged = Acknowledged::default();
    let mut slowest = Duration::ZERO;
    let (mut ids, mut snapshots) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..kills {
        let process = Process::start(home.path(), &[], "");
        // enough changes for a new snapshot, which every second kill interrupts
        let items: Vec<Value> =
            (0..CHANGES).map(|number| json!({"id": format!("b{number}"), "title": format!("{round}")})).collect();
        let put =
            crate::client::try_ask(process.address, "PUT /items", json!({"items": items}).to_string().as_bytes()).await;
        assert_eq!(put.unwrap().status, 200);
        let states = (0..CHANGES).map(|number| (format!("b{number}"), Some(format!("{round}"))));
        acknowledged.0.lock().unwrap().extend(states);
        if round % 2 == 1 {
            wait_for_snapshot(home.path(), &mut snapshots).await;
        }
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| tokio::spawn(write(process.address, acknowledged.clone(), round, writer)))
            .collect();
        // kill at a different moment each time
        tokio::time::sleep(Duration::from_millis(60 + round * 7919 % 240)).await;
        process.kill();
        for writer in writers {
            writer.await.unwrap();
        }
        let began = Instant::now();
        let process = Process::start(home.path(), &[], "");
        slowest = slowest.max(began.elapsed());
        let expected = acknowledged.0.lock().unwrap().clone();
        ids.extend(expected.keys().cloned());
        for (id, title) in expected {
            let answer = client_get(process.address, &format!("/items/{id}")).await;
            match title {
                Some(title) => assert_eq!(answer.json()["title"], title.as_str(), "{id} was acknowledged"),
                None => assert_eq!(answer.status, 404, "{id} was deleted, and that was acknowledged"),
            }
        }
        process.kill();
    }
    assert!(ids.len() > CHANGES && !snapshots.is_empty());
    let (num, built) = (ids.len(), snapshots.len());
    println!("{kills} kills, {num} ids checked after each, {built} new snapshots; the slowest start took {slowest:?}");
}

/// Waits until another snapshot of the first generation was built.
async fn wait_for_snapshot(home: &Path, known: &mut BTreeSet<PathBuf>) {
    let (generation, began) = (home.join("state/generations/first-1"), Instant::now());
    loop {
        let found = std::fs::read_dir(&generation).unwrap().map(|entry| entry.unwrap().path());
        let new = found.filter(|path| path.join("manifest.json").exists() && !path.ends_with("snapshot-0"));
        let before = known.len();
        known.extend(new);
        if known.len() > before {
            return;
        }
        assert!(began.elapsed() < crate::client::TIMEOUT, "no new snapshot");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn client_get(address: SocketAddr, path: &str) -> crate::client::HttpResponse {
    crate::client::try_ask(address, &format!("GET {path}"), b"").await.unwrap()
}

/// Writes and deletes its own ids until the service is gone. An id whose answer is missing can be in either state.
async fn write(address: SocketAddr, acknowledged: Acknowledged, round: u64, writer: usize) {
    for number in 0.. {
        let id = format!("k{round}-{writer}-{}", number / 2);
        let title = format!("title {number} of {id}");
        let (route, body) = match number % 4 {
            3 => (format!("DELETE /items/{id}"), String::new()),
            _ => ("PUT /items".into(), json!({"items": [{"id": id, "title": title}]}).to_string()),
        };
        if TcpStream::connect(address).await.is_err() {
            return;
        }
        // unknown until answered
        acknowledged.0.lock().unwrap().remove(&id);
        let Some(answer) = crate::client::try_ask(address, &route, body.as_bytes()).await else { return };
        assert_eq!(answer.status, 200, "{route}: {}", answer.body);
        let state = if number % 4 == 3 { None } else { Some(title) };
        acknowledged.0.lock().unwrap().insert(id, state);
    }
}
