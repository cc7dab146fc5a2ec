//! SIGKILL during writes: every acknowledged write survives the restart, and the service answers at once. SOUK_KILLS
//! sets the number of kills; `make soak` runs the long form.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::{Process, shop};
use serde_json::json;
use tokio::net::TcpStream;

const WRITERS: usize = 3;

/// Acknowledged state of each id; ids with a write in flight are missing.
#[derive(Clone, Default)]
struct Acknowledged(Arc<Mutex<std::collections::BTreeMap<String, Option<String>>>>);

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_sigkill() {
    let home = shop();
    let kills: u64 = std::env::var("SOUK_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let acknowledged = Acknowledged::default();
    let mut num_checked = 0;
    let mut slowest = Duration::ZERO;
    for round in 0..kills {
        let process = Process::start(home.path(), &[], "");
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
        num_checked += expected.len();
        for (id, title) in expected {
            let answer = client_get(process.address, &format!("/items/{id}")).await;
            match title {
                Some(title) => assert_eq!(answer.json()["title"], title.as_str(), "{id} was acknowledged"),
                None => assert_eq!(answer.status, 404, "{id} was deleted, and that was acknowledged"),
            }
        }
        process.kill();
    }
    assert!(num_checked > 0);
    println!("{kills} kills, {num_checked} states checked; the slowest start took {slowest:?}");
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
