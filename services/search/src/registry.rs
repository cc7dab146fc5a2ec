//! What the ledger knows of versions, and how it and the shop come to agree. The ledger says which version is served; the
//! shop follows. A ledger that is away keeps nobody from searching.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use souk::config::StoreConfig;
use souk::search::{Generation, Shop};
use souk::store::{Generation as Known, Ledger, NewGeneration, NewVersion, Report, Served, Version, newest_offer};
use souk::{Error, Result};
use tokio::sync::{Mutex as AsyncMutex, OnceCell, OwnedMutexGuard};

pub const MAX_VERSIONS: usize = 200;
/// A server that was found away is not tried again for so long.
const AWAY: Duration = Duration::from_secs(1);

pub struct Registry {
    store: StoreConfig,
    ledger: OnceCell<Arc<dyn Ledger>>,
    /// When a server was last found away, its name, and what was wrong.
    away: Mutex<Option<(Instant, String, String)>>,
    /// One change of what is served at a time, by the ledger and here; never held for a build.
    changing: AsyncMutex<()>,
    /// One promotion at a time, its build included.
    promoting: Arc<AsyncMutex<()>>,
    /// Why the last promotion of a version came to nothing.
    failures: Mutex<HashMap<String, String>>,
}

/// A version and what belongs to it.
pub struct Entry {
    pub version: Version,
    pub generations: Vec<Known>,
    pub report: Option<Report>,
    pub failure: Option<String>,
}

impl Registry {
    pub fn new(store: StoreConfig) -> Self {
        Self {
            store,
            ledger: OnceCell::new(),
            away: Mutex::default(),
            changing: AsyncMutex::default(),
            promoting: Arc::default(),
            failures: Mutex::default(),
        }
    }

    /// Connects, where that has not succeeded yet. Who waits while another tries shares what comes of it.
    pub async fn ledger(&self) -> Result<&Arc<dyn Ledger>> {
        let asked = Instant::now();
        let open = async || {
            if let Some((at, service, problem)) = unpoisoned(&self.away).clone()
                && at + AWAY > asked
            {
                return Err(Error::Upstream { service, problem, retryable: true, source: None });
            }
            let opened = self.store.open_own_ledger().await;
            if let Err(Error::Upstream { service, problem, retryable: true, .. }) = &opened {
                *unpoisoned(&self.away) = Some((Instant::now(), service.clone(), problem.clone()));
            }
            opened
        };
        self.ledger.get_or_try_init(open).await
    }

    /// The version that shall be served, with its model; nothing where none was ever promoted.
    pub async fn served(&self) -> Result<Option<(Served, Version)>> {
        let ledger = self.ledger().await?;
        let Some(served) = ledger.served().await? else { return Ok(None) };
        let version = ledger.version(&served.version).await?;
        Ok(version.map(|version| (served, version)))
    }

    /// Makes a served generation known that the ledger has never heard of: the first of a shop.
    pub async fn introduce(&self, generation: &Generation) -> Result<()> {
        let (ledger, record) = (self.ledger().await?, generation.record());
        match ledger.version(&record.version).await? {
            None => {
                let (version, path) = (record.version.clone(), record.path.clone());
                let (fingerprint, parent, metrics) = (record.model.clone(), None, json!({}));
                ledger.add_version(&NewVersion { version, path, fingerprint, parent, metrics }).await?;
            }
            Some(known) if known.fingerprint != record.model => {
                let problem = format!(
                    "version `{}` is of model {}, and {} now holds {}: give it another name with search.version",
                    record.version, known.fingerprint, record.path, record.model
                );
                return Err(Error::config("search.version", problem));
            }
            Some(_) => {}
        }
        self.add_generation(generation).await?;
        if ledger.served().await?.is_none() {
            ledger.promote(&record.version, &record.generation).await?;
        }
        Ok(())
    }

    /// Another process that serves the same version may have been faster, or be so just now.
    async fn add_generation(&self, generation: &Generation) -> Result<()> {
        let (ledger, record) = (self.ledger().await?, generation.record());
        let is_known = async || {
            let known = ledger.page_generations(&record.version, None, MAX_VERSIONS).await?;
            Ok::<_, Error>(known.iter().any(|known| known.generation == record.generation))
        };
        if is_known().await? {
            return Ok(());
        }
        let manifest = json!({"catalogue": record.catalogue, "dimensions": record.dimensions, "recall": record.recall});
        let (version, path) = (record.version.clone(), record.snapshot.clone());
        let new = NewGeneration { generation: record.generation.clone(), version, path, manifest };
        match ledger.add_generation(&new).await {
            Err(Error::Input { .. }) if is_known().await? => Ok(()),
            outcome => outcome,
        }
    }

    pub async fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for version in self.ledger().await?.page_versions(None, MAX_VERSIONS).await? {
            entries.push(self.entry(version).await?);
        }
        Ok(entries)
    }

    pub async fn entry(&self, version: Version) -> Result<Entry> {
        let ledger = self.ledger().await?;
        let generations = ledger.page_generations(&version.version, None, MAX_VERSIONS).await?;
        let report = ledger.page_reports(&version.version, None, 1).await?.pop();
        let failure = unpoisoned(&self.failures).get(&version.version).cloned();
        Ok(Entry { version, generations, report, failure })
    }

    /// The right to promote a version; nothing while another is being promoted.
    pub fn turn(&self) -> Option<OwnedMutexGuard<()>> {
        self.promoting.clone().try_lock_owned().ok()
    }

    /// Serves a version from now on: builds its index where there is none, then tells the ledger, then swaps.
    pub async fn promote(&self, shop: &Arc<Shop>, version: &Version, _turn: OwnedMutexGuard<()>) -> Result<()> {
        let outcome = self.promoted(shop, version).await;
        self.note(&version.version, &outcome);
        outcome
    }

    async fn promoted(&self, shop: &Arc<Shop>, version: &Version) -> Result<()> {
        let ledger = self.ledger().await?;
        let generation = prepared(shop, version).await?;
        self.add_generation(&generation).await?;
        let _alone = self.changing.lock().await;
        ledger.promote(&version.version, &generation.record().generation).await?;
        shop.swap(&version.version).await
    }

    /// Serves what a trainer offers, if it does. What cannot be served, whoever tries, is rejected, with its reason in the log.
    pub async fn adopt(&self, shop: &Arc<Shop>) -> Result<()> {
        let ledger = self.ledger().await?;
        let Some(version) = newest_offer(ledger.as_ref()).await? else { return Ok(()) };
        // its trainer may still be writing
        if ledger.page_reports(&version.version, None, 1).await?.is_empty() {
            return Ok(());
        }
        let Some(turn) = self.turn() else { return Ok(()) };
        tracing::info!(version = version.version, "a trainer offers another version: serving it");
        let outcome = match prepared(shop, &version).await {
            // while its index was built, another process may have come to serve it, or what is newer: that is followed
            Ok(_) if !is_offered(ledger.as_ref(), &version).await? => return Ok(()),
            Ok(_) => self.promote(shop, &version, turn).await,
            Err(error) => {
                let outcome = Err(error);
                self.note(&version.version, &outcome);
                outcome
            }
        };
        match outcome {
            Err(error @ (Error::Config { .. } | Error::Input { .. } | Error::Data { .. } | Error::Weights { .. })) => {
                ledger.reject_version(&version.version).await?;
                Err(error)
            }
            outcome => outcome,
        }
    }

    /// Goes back to what was served before `version`, if that is what is served; a build that goes on is not waited for.
    pub async fn roll_back(&self, shop: &Arc<Shop>, version: &str) -> Result<()> {
        let ledger = self.ledger().await?;
        {
            let _alone = self.changing.lock().await;
            ledger.roll_back(version).await?;
        }
        self.follow(shop).await
    }

    /// Swaps to what the ledger says is served.
    pub async fn follow(&self, shop: &Arc<Shop>) -> Result<()> {
        let Some((served, version)) = self.served().await? else { return Ok(()) };
        if is_served(shop, &served.version) {
            return Ok(());
        }
        tracing::info!(version = served.version, "the registry serves another version: following");
        let outcome = self.followed(shop, &version).await;
        self.note(&version.version, &outcome);
        outcome
    }

    async fn followed(&self, shop: &Arc<Shop>, version: &Version) -> Result<()> {
        prepared(shop, version).await?;
        let _alone = self.changing.lock().await;
        // while its index was built, another may have come to be served
        let served = self.ledger().await?.served().await?;
        match served.is_some_and(|served| served.version == version.version) && !is_served(shop, &version.version) {
            true => shop.swap(&version.version).await,
            false => Ok(()),
        }
    }

    fn note(&self, version: &str, outcome: &Result<()>) {
        match outcome {
            Ok(()) => drop(unpoisoned(&self.failures).remove(version)),
            Err(error) => {
                tracing::error!(version, ?error, "cannot be served");
                unpoisoned(&self.failures).insert(version.into(), error.to_string());
            }
        }
    }
}

/// An index of the version, made where there is none.
async fn prepared(shop: &Arc<Shop>, version: &Version) -> Result<Arc<Generation>> {
    shop.prepare(&version.version, &version.path, &version.fingerprint).await
}

async fn is_offered(ledger: &dyn Ledger, version: &Version) -> Result<bool> {
    Ok(newest_offer(ledger).await?.is_some_and(|offer| offer.version == version.version))
}

fn is_served(shop: &Shop, version: &str) -> bool {
    shop.served().record().version == version
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use souk::config::{Change, Config};

    use super::*;

    #[tokio::test]
    async fn all_who_wait_for_a_silent_server_are_told_at_once() {
        // takes connections, and never says a word
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://nobody@{}/nothing", silent.local_addr().unwrap());
        let config = Config::load(None, &[Change::text("store.database", "test", &url)]).unwrap();
        let registry = Registry::new(config.store);
        let began = Instant::now();
        let (first, second, third) = tokio::join!(registry.ledger(), registry.ledger(), registry.ledger());
        let one = began.elapsed();
        for found in [first.err(), second.err(), third.err(), registry.ledger().await.err()] {
            assert!(matches!(found, Some(Error::Upstream { retryable: true, .. })), "{found:?}");
        }
        assert!(began.elapsed() - one < AWAY, "it is not tried again at once");
        assert!(one < Duration::from_secs(9), "three tries take 15 s, and these took {one:?}");
    }
}
