//! CuttableJudge behind a TCP proxy that can be cut. While cut, it accepts connections but forwards nothing in either
//! direction, so clients time out. Data sent meanwhile arrives afterwards, as with TCP retransmission.

use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use souk_testing::fake_judge::{FakeJudge, JudgeReply, ReceivedRequest};

/// Longer than the trainer's timeouts: it retries after 2 s and gives up after 4 (`judge.limits`).
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

pub struct CuttableJudge {
    address: SocketAddr,
    proxy: Arc<Proxy>,
    /// Model name of the judge.
    pub name: String,
    _fake: Option<FakeJudge>,
}

#[derive(Default)]
struct Proxy {
    is_cut: AtomicBool,
    /// Number of requests received while cut.
    num_lost: AtomicU64,
}

impl CuttableJudge {
    /// Starts a proxy to a running judge, given by address and name, or to a fake judge of the small shop.
    pub fn start(running: Option<(String, String)>) -> Self {
        let fake = running.is_none().then(|| FakeJudge::start(|_, seen| JudgeReply::Json(verdicts(seen))));
        let of_fake = |judge: &FakeJudge| (judge.url().trim_start_matches("http://").to_owned(), "fake".to_owned());
        let (target, name) = running.or_else(|| fake.as_ref().map(of_fake)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, proxy) = (listener.local_addr().unwrap(), Arc::new(Proxy::default()));
        let shared = proxy.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(judge)) = (client, TcpStream::connect(&target)) else { return };
                let (to_client, from_judge) = (client.try_clone().unwrap(), judge.try_clone().unwrap());
                let (requests, responses) = (shared.clone(), shared.clone());
                thread::spawn(move || requests.forward(client, judge, true));
                thread::spawn(move || responses.forward(from_judge, to_client, false));
            }
        });
        Self { address, proxy, name, _fake: fake }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn cut(&self, is_cut: bool) {
        self.proxy.is_cut.store(is_cut, Ordering::Relaxed);
    }

    pub fn num_lost(&self) -> u64 {
        self.proxy.num_lost.load(Ordering::Relaxed)
    }

    /// Cuts the connection until a client has timed out.
    pub fn cut_until_timeout(&self, deadline: Duration) {
        let (began, before) = (Instant::now(), self.num_lost());
        self.cut(true);
        while self.num_lost() == before {
            assert!(began.elapsed() < deadline, "no request to the judge");
            sleep(Duration::from_millis(20));
        }
        sleep(CLIENT_TIMEOUT);
    }
}

impl Proxy {
    fn forward(&self, mut from: TcpStream, mut to: TcpStream, is_request: bool) -> Result<()> {
        let mut bytes = [0; 1 << 16];
        loop {
            let num = from.read(&mut bytes)?;
            if self.is_cut.load(Ordering::Relaxed) {
                self.num_lost.fetch_add(u64::from(is_request && num > 0), Ordering::Relaxed);
            }
            while self.is_cut.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(20));
            }
            if num == 0 {
                return to.shutdown(Shutdown::Write);
            }
            to.write_all(&bytes[..num])?;
        }
    }
}

/// CuttableJudge's answer: level 4 for the item with the query's number and kind, less for one of them.
fn verdicts(seen: &ReceivedRequest) -> Value {
    let query: Vec<&str> = seen.body["query"].as_str().unwrap().split(' ').collect();
    let level = |item: &Value| {
        let words: Vec<&str> = item["text"].as_str().unwrap().split(' ').collect();
        let has = |word: Option<&&str>| word.is_some_and(|word| words.contains(word));
        1 + 2 * u8::from(has(query.get(1))) + u8::from(has(query.first()))
    };
    let levels: Vec<u8> = seen.body["items"].as_array().unwrap().iter().map(level).collect();
    let scores: Vec<f64> = levels.iter().map(|level| f64::from(level - 1) / 3.0).collect();
    json!({"model": "fake", "scores": scores, "levels": levels})
}
