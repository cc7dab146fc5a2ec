//! What all requests share.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use souk::search::{SearchSettings, Shop};
use souk::telemetry::SEARCH_REQUESTS;
use souk_http::{Fault, Front, Keys, Probe};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::events::Scribe;
use crate::registry::Registry;

/// Queries that the index's recall is measured by.
const REMEMBERED: usize = 64;

pub struct Service {
    pub front: Arc<Front>,
    pub shop: Arc<Shop>,
    pub registry: Arc<Registry>,
    pub scribe: Scribe,
    /// Whether the ledger answers, or why a search would not be.
    pub probe: Probe<Result<bool, &'static str>>,
    /// Vectors that were searched for lately, each with the fingerprint of its model.
    recent: Mutex<VecDeque<(String, Vec<f32>)>>,
}

impl Service {
    pub fn new(shop: Arc<Shop>, registry: Arc<Registry>, scribe: Scribe, keys: Keys) -> Self {
        let bounds = &shop.settings().bounds;
        let front = Front {
            keys,
            room: Arc::new(Semaphore::new(bounds.max_requests)),
            max_requests: bounds.max_requests,
            max_bytes: bounds.max_bytes,
            body_time: Duration::from_secs(bounds.body_seconds),
            metrics: &SEARCH_REQUESTS,
        };
        Self { front: Arc::new(front), shop, registry, scribe, probe: Probe::default(), recent: Mutex::default() }
    }

    pub fn settings(&self) -> &SearchSettings {
        self.shop.settings()
    }

    /// What is not done in time is not done.
    pub async fn in_time<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let most = self.settings().bounds.deadline_ms;
        let late = |_| Fault::too_late(format!("not done in {most} ms: ask for less, or try again"));
        timeout(Duration::from_millis(most), work).await.map_err(late)?
    }

    pub fn remember(&self, model: &str, vector: &[f32]) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back((model.to_owned(), vector.to_vec()));
    }

    /// Those of a model.
    pub fn recent(&self, model: &str) -> Vec<Vec<f32>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().filter(|(made_by, _)| made_by == model).map(|(_, vector)| vector.clone()).collect()
    }
}
