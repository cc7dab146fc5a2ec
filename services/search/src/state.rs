//! State shared by all requests.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use souk::search::{Bounds, SearchSettings, ServingState};
use souk::telemetry::SEARCH_REQUESTS;
use souk_http::{Fault, Front, FrontLimits, Keys, Probe};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::catalogue_map::MapCache;
use crate::events::EventWriter;
use crate::registry::ModelRegistry;

/// Time that a read waits for a catalogue change.
const MAX_CATCH_UP: Duration = Duration::from_secs(2);
/// Number of recent queries kept to measure recall.
pub const NUM_RECENT: usize = 64;

pub struct SearchService {
    pub front: Arc<Front>,
    pub serving: Arc<ServingState>,
    pub registry: Arc<ModelRegistry>,
    pub event_writer: EventWriter,
    pub map: MapCache,
    /// A permit per write in progress. A write whose caller has left keeps its permit.
    pub writes: Arc<Semaphore>,
    /// Whether the ledger answers, or why a search would fail.
    pub probe: Probe<Result<bool, &'static str>>,
    /// Recent query vectors, each with its model's fingerprint.
    recent: Mutex<VecDeque<(String, Vec<f32>)>>,
    settings: RwLock<Arc<SearchSettings>>,
}

impl SearchService {
    pub fn new(
        serving: Arc<ServingState>,
        registry: Arc<ModelRegistry>,
        event_writer: EventWriter,
        keys: Keys,
    ) -> Self {
        let Bounds { max_requests, max_bytes, body_seconds, .. } = serving.settings().bounds;
        let front = Front::new(keys, FrontLimits { max_requests, max_bytes, body_seconds }, &SEARCH_REQUESTS);
        Self {
            front: Arc::new(front),
            writes: Arc::new(Semaphore::new(max_requests)),
            settings: RwLock::new(Arc::new(serving.settings().clone())),
            serving,
            registry,
            event_writer,
            map: MapCache::default(),
            probe: Probe::default(),
            recent: Mutex::default(),
        }
    }

    /// Settings in effect.
    pub fn settings(&self) -> Arc<SearchSettings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over those of the new settings that can change while the service runs, unless they do not fit the others. Returns
    /// whether all others are as before.
    pub fn reload(&self, read: &SearchSettings) -> souk::Result<bool> {
        let mut settings = self.settings.write().unwrap_or_else(PoisonError::into_inner);
        let new = settings.reloaded(read);
        new.check()?;
        *settings = Arc::new(new);
        Ok(**settings == *read)
    }

    /// Runs work until the deadline; unfinished work is dropped.
    pub async fn in_time<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let max_ms = self.settings().bounds.deadline_ms;
        let late = |_| Fault::too_late(format!("not done in {max_ms} ms: ask for less, or try again"));
        timeout(Duration::from_millis(max_ms), work).await.map_err(late)?
    }

    /// Waits until searches see the catalogue change that the caller asks for.
    pub async fn see_at_least(&self, position: Option<u64>) -> Result<(), Fault> {
        let Some(position) = position else { return Ok(()) };
        let behind = |_| {
            let at = self.serving.stream_lag().position;
            let problem = format!(
                "this replica is at catalogue change {at}, not yet at {position}: try again, or another replica"
            );
            Fault::conflict(problem)
        };
        timeout(MAX_CATCH_UP, self.serving.wait_for(position)).await.map_err(behind)
    }

    pub fn remember(&self, model: &str, vector: &[f32]) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == NUM_RECENT {
            recent.pop_front();
        }
        recent.push_back((model.to_owned(), vector.to_vec()));
    }

    /// Recent query vectors of a model.
    pub fn recent(&self, model: &str) -> Vec<Vec<f32>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().filter(|(made_by, _)| made_by == model).map(|(_, vector)| vector.clone()).collect()
    }
}
