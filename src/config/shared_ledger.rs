//! The ledger of a service: connected on first use, and again after an outage; and the catalogue stream in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use souk_io::catalogue_stream::{CatalogueStream, Mutation, StreamPage};
use souk_io::error::{Answer, Error, Result};
use souk_store::Ledger;
use tokio::sync::{Notify, OnceCell};
use tokio::time::{sleep, timeout};

use super::store::StoreConfig;

/// Time before an unreachable ledger is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time between two looks for new changes of other processes.
const POLL: Duration = Duration::from_millis(100);

/// Time that a write is repeated; a request waits longer.
const WRITE_PATIENCE: Duration = Duration::from_secs(4);

/// A ledger that is connected on first use.
pub struct SharedLedger {
    store: StoreConfig,
    ledger: OnceCell<Arc<dyn Ledger>>,
    /// The last failure to connect.
    last_outage: Mutex<Option<Outage>>,
}

#[derive(Clone)]
struct Outage {
    at: Instant,
    service: String,
    problem: String,
}

impl SharedLedger {
    /// Does not connect yet.
    pub fn new(store: StoreConfig) -> Self {
        Self { store, ledger: OnceCell::new(), last_outage: Mutex::default() }
    }

    /// Connects on first use. Concurrent callers share one attempt.
    pub async fn open(&self) -> Result<&Arc<dyn Ledger>> {
        let started = Instant::now();
        let open = async || {
            if let Some(Outage { at, service, problem }) = self.last_outage().clone()
                && at + RETRY_AFTER > started
            {
                return Err(Error::Upstream { service, problem, retryable: true, source: None });
            }
            let opened = self.store.open_own_ledger().await;
            if let Err(Error::Upstream { service, problem, retryable: true, .. }) = &opened {
                let (service, problem) = (service.clone(), problem.clone());
                *self.last_outage() = Some(Outage { at: Instant::now(), service, problem });
            }
            opened
        };
        self.ledger.get_or_try_init(open).await
    }

    fn last_outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.last_outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The catalogue stream in a ledger.
pub struct LedgerStream {
    ledger: Arc<SharedLedger>,
    /// Wakes the reader after a write of this process.
    written: Notify,
}

impl LedgerStream {
    /// Does not connect yet.
    pub fn new(ledger: Arc<SharedLedger>) -> Self {
        Self { ledger, written: Notify::new() }
    }
}

impl CatalogueStream for LedgerStream {
    fn id(&self) -> Answer<'_, String> {
        Box::pin(async move { Ok(format!("ledger {}", self.ledger.open().await?.stream_id().await?)) })
    }

    fn append_if<'a>(&'a self, mutations: &'a [Mutation], unchanged_since: u64) -> Answer<'a, Option<u64>> {
        Box::pin(async move {
            // not repeated: after a lost answer it would take its own change for another one
            let appended = self.ledger.open().await?.append_changes_if(mutations, unchanged_since).await;
            self.written.notify_one();
            appended
        })
    }

    fn append<'a>(&'a self, mutations: &'a [Mutation]) -> Answer<'a, u64> {
        Box::pin(async move {
            let began = Instant::now();
            loop {
                let appended = async { self.ledger.open().await?.append_changes(mutations).await }.await;
                match appended {
                    // a restarted database; appending a change a second time is harmless
                    Err(Error::Upstream { retryable: true, .. }) if began.elapsed() < WRITE_PATIENCE => {
                        sleep(POLL).await
                    }
                    appended => {
                        self.written.notify_one();
                        return appended;
                    }
                }
            }
        })
    }

    fn read(&self, after: u64, limit: usize, patience: Duration) -> Answer<'_, StreamPage> {
        Box::pin(async move {
            let (ledger, began) = (self.ledger.open().await?, Instant::now());
            loop {
                // read before the page: all changes up to it are visible to the page
                let end = ledger.last_change().await?;
                if end > after {
                    let mutations = ledger.page_changes(after, limit).await?;
                    let last = mutations.last().map_or(end, |(last, _)| *last);
                    let reached = if mutations.len() < limit { last.max(end) } else { last };
                    return Ok(StreamPage { mutations, reached, end: end.max(last) });
                }
                if end < after || began.elapsed() >= patience {
                    return Ok(StreamPage { mutations: Vec::new(), reached: end, end });
                }
                // a timeout means that only other processes may have written
                drop(timeout(POLL, self.written.notified()).await);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Change, Config};

    #[tokio::test]
    async fn concurrent_callers_share_one_connection_timeout() {
        // accepts connections and never answers
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://nobody@{}/nothing", silent.local_addr().unwrap());
        let config = Config::load(None, &[Change::text("store.database", "test", &url)]).unwrap();
        let ledger = SharedLedger::new(config.store);
        let began = Instant::now();
        let (first, second, third) = tokio::join!(ledger.open(), ledger.open(), ledger.open());
        let one = began.elapsed();
        for found in [first.err(), second.err(), third.err(), ledger.open().await.err()] {
            assert!(matches!(found, Some(Error::Upstream { retryable: true, .. })), "{found:?}");
        }
        assert!(began.elapsed() - one < RETRY_AFTER, "no new attempt so soon");
        assert!(one < Duration::from_secs(9), "three attempts take 15 s, these took {one:?}");
    }
}
