//! A client that searches all along, by way of two processes of the search service, as a load balancer would: one that
//! cannot be reached is passed over. It looks whether every answer is a whole one, and counts.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::ask;
use souk_testing::small_shop;

#[derive(Default)]
pub struct Shopper {
    pub stop: AtomicBool,
    /// Where each process was last known to be asked.
    pub addresses: [Mutex<String>; 2],
    pub answered: [AtomicU64; 2],
    /// Searches that were answered by the second process that was tried.
    pub elsewhere: AtomicU64,
    pub refused: AtomicU64,
    pub failed: AtomicU64,
    pub versions: Mutex<BTreeSet<String>>,
}

impl Shopper {
    pub fn run(&self) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.search(number);
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
                    self.look(&serde_json::from_str(&body).unwrap());
                    self.answered[at].fetch_add(1, Ordering::Relaxed);
                    self.elsewhere.fetch_add(tried as u64, Ordering::Relaxed);
                    return;
                }
                Some((429, _)) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Some(other) => {
                    println!("a search failed: {other:?}");
                    break;
                }
                // killed, or not there yet
                None => {}
            }
        }
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub fn told(&self) -> String {
        let [num, refused, failed] =
            [self.num_answered(), self.refused.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed)];
        let (elsewhere, versions) = (self.elsewhere.load(Ordering::Relaxed), self.versions.lock().unwrap().len());
        format!(
            "{num} searches answered by {versions} versions, {elsewhere} of them by the second process that was tried, \
             {refused} refused, {failed} failed"
        )
    }

    pub fn num_answered(&self) -> u64 {
        self.answered.iter().map(|answered| answered.load(Ordering::Relaxed)).sum()
    }

    /// Model and index are one, and nothing is missing.
    fn look(&self, found: &Value) {
        let (model, index) = (found["model"].as_str().unwrap(), found["index"].as_str().unwrap());
        assert!(index.starts_with(model) && found["hits"].as_array().unwrap().len() == 5, "{found}");
        self.versions.lock().unwrap().insert(model.to_owned());
    }
}
