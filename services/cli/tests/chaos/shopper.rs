//! A client that searches continuously on two search processes, as a load balancer would: it asks the other one if a process
//! cannot be reached, or answers that it is busy or late. Checks that every response is complete, and counts them. Now and then it
//! puts a new item.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::ask;
use souk_testing::small_shop;

/// Searches for each new item.
const SEARCHES_PER_ITEM: usize = 25;

#[derive(Default)]
pub struct Shopper {
    pub stop: AtomicBool,
    /// Last known address of each process.
    pub addresses: [Mutex<String>; 2],
    pub answered: [AtomicU64; 2],
    /// Number of searches answered by the second process tried.
    pub num_retried: AtomicU64,
    pub num_rejected: AtomicU64,
    pub failed: AtomicU64,
    pub versions: Mutex<BTreeSet<String>>,
    /// Acknowledged new items, by their position in the catalogue stream.
    pub items: Mutex<BTreeMap<u64, String>>,
}

impl Shopper {
    pub fn run(&self) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.search(number);
            if number % SEARCHES_PER_ITEM == 0 {
                self.put_item(number / SEARCHES_PER_ITEM);
            }
            sleep(Duration::from_millis(40));
        }
    }

    fn search(&self, number: usize) {
        let body = json!({"query": format!("lamp {}", number % small_shop::ITEMS), "k": 5}).to_string();
        for tried in 0..2 {
            let at = (number + tried) % 2;
            let address = self.addresses[at].lock().unwrap().clone();
            match ask(&address, "POST /search", &body) {
                Some((200, body)) => {
                    self.check(&serde_json::from_str(&body).unwrap());
                    self.answered[at].fetch_add(1, Ordering::Relaxed);
                    self.num_retried.fetch_add(tried as u64, Ordering::Relaxed);
                    return;
                }
                Some((429 | 503 | 504, _)) => drop(self.num_rejected.fetch_add(1, Ordering::Relaxed)),
                Some(other) => {
                    println!("a search failed: {other:?}");
                    break;
                }
                // killed, or not started yet
                None => {}
            }
        }
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn put_item(&self, number: usize) {
        let id = format!("spare-{number}");
        let body = json!({"items": [{"id": id, "title": format!("spare part {number}")}]}).to_string();
        let address = self.addresses[number % 2].lock().unwrap().clone();
        if let Some((200, answer)) = ask(&address, "PUT /items", &body) {
            let answer: Value = serde_json::from_str(&answer).unwrap();
            self.items.lock().unwrap().insert(answer["catalogue"].as_u64().unwrap(), id);
        }
    }

    pub fn summary(&self) -> String {
        let [num, rejected, failed] =
            [self.num_answered(), self.num_rejected.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed)];
        let (retried, versions) = (self.num_retried.load(Ordering::Relaxed), self.versions.lock().unwrap().len());
        format!(
            "{num} searches answered by {versions} versions, {retried} of them by the second process tried; one process was \
             busy or late {rejected} times; {failed} failed"
        )
    }

    pub fn num_answered(&self) -> u64 {
        self.answered.iter().map(|answered| answered.load(Ordering::Relaxed)).sum()
    }

    /// Checks that the index belongs to the model and that all hits are there.
    fn check(&self, found: &Value) {
        let (model, index) = (found["model"].as_str().unwrap(), found["index"].as_str().unwrap());
        assert!(index.starts_with(model) && found["hits"].as_array().unwrap().len() == 5, "{found}");
        self.versions.lock().unwrap().insert(model.to_owned());
    }
}
