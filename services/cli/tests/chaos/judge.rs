//! The judge behind a wire that can be cut. While it is, connections are taken and nothing passes in either direction: who
//! asks is not told so, and has to give up by itself. What was sent meanwhile arrives afterwards, as TCP sends it again.

use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use souk_testing::fake_judge::{FakeJudge, JudgeRequest, Reply};

/// The trainer asks once more after 2 s and gives up after 4 (`judge.limits`): only then has a cut done what it can.
const GIVEN_UP: Duration = Duration::from_secs(5);

pub struct Judge {
    address: SocketAddr,
    wire: Arc<Wire>,
    /// As the judge calls itself.
    pub name: String,
    _pretend: Option<FakeJudge>,
}

#[derive(Default)]
struct Wire {
    is_cut: AtomicBool,
    /// What was sent to the judge and went nowhere.
    lost: AtomicU64,
}

impl Judge {
    /// The wire to a judge that is there, with its name, or to one that knows the small shop.
    pub fn start(there: Option<(String, String)>) -> Self {
        let pretend = there.is_none().then(|| FakeJudge::start(|_, seen| Reply::Json(verdicts(seen))));
        let told = |judge: &FakeJudge| (judge.url().trim_start_matches("http://").to_owned(), "told".to_owned());
        let (place, name) = there.or_else(|| pretend.as_ref().map(told)).unwrap();
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, wire) = (door.local_addr().unwrap(), Arc::new(Wire::default()));
        let held = wire.clone();
        thread::spawn(move || {
            for near in door.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(&place)) else { return };
                let (back, answers) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (out, home) = (held.clone(), held.clone());
                thread::spawn(move || out.pass(near, far, true));
                thread::spawn(move || home.pass(answers, back, false));
            }
        });
        Self { address, wire, name, _pretend: pretend }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn cut(&self, is_cut: bool) {
        self.wire.is_cut.store(is_cut, Ordering::Relaxed);
    }

    pub fn num_lost(&self) -> u64 {
        self.wire.lost.load(Ordering::Relaxed)
    }

    /// Cuts the wire until somebody has asked in vain and given up.
    pub fn cut_until_felt(&self, patience: Duration) {
        let (began, before) = (Instant::now(), self.num_lost());
        self.cut(true);
        while self.num_lost() == before {
            assert!(began.elapsed() < patience, "nobody asked the judge");
            sleep(Duration::from_millis(20));
        }
        sleep(GIVEN_UP);
    }
}

impl Wire {
    fn pass(&self, mut from: TcpStream, mut to: TcpStream, asks: bool) -> Result<()> {
        let mut bytes = [0; 1 << 16];
        loop {
            let num = from.read(&mut bytes)?;
            if self.is_cut.load(Ordering::Relaxed) {
                self.lost.fetch_add(u64::from(asks && num > 0), Ordering::Relaxed);
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

/// The item with the query's number is what was meant; one of its kind is near it.
fn verdicts(seen: &JudgeRequest) -> Value {
    let query: Vec<&str> = seen.body["query"].as_str().unwrap().split(' ').collect();
    let level = |item: &Value| {
        let words: Vec<&str> = item["text"].as_str().unwrap().split(' ').collect();
        let has = |word: Option<&&str>| word.is_some_and(|word| words.contains(word));
        1 + 2 * u8::from(has(query.get(1))) + u8::from(has(query.first()))
    };
    let levels: Vec<u8> = seen.body["items"].as_array().unwrap().iter().map(level).collect();
    let scores: Vec<f64> = levels.iter().map(|level| f64::from(level - 1) / 3.0).collect();
    json!({"model": "told", "scores": scores, "levels": levels})
}
