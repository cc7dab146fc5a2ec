//! What the ledger knows of versions, and how it and the shop come to agree. The ledger says which version is served; the
//! shop follows. A ledger that is away keeps nobody from searching.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use souk::config::StoreConfig;
use souk::search::{Generation, Shop};
use souk::store::{Generation as Known, Ledger, NewGeneration, NewVersion, Report, Served, SqlLedger, Version};
use souk::{Error, Result};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

pub const MOST_VERSIONS: usize = 200;

pub struct Registry {
    store: StoreConfig,
    ledger: OnceCell<Arc<dyn Ledger>>,
    /// One change of what is served at a time.
    changing: AsyncMutex<()>,
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
        Self { store, ledger: OnceCell::new(), changing: AsyncMutex::default(), failures: Mutex::default() }
    }

    /// Connects, where that has not succeeded yet. A file of our own is brought up to date by itself.
    pub async fn ledger(&self) -> Result<&Arc<dyn Ledger>> {
        let open = async || {
            if self.store.database.scheme() == "sqlite" {
                SqlLedger::migrate(&self.store.database).await?;
            }
            self.store.open_ledger().await
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

    /// Another process that serves the same version may have been faster.
    async fn add_generation(&self, generation: &Generation) -> Result<()> {
        let (ledger, record) = (self.ledger().await?, generation.record());
        let known = ledger.page_generations(&record.version, None, MOST_VERSIONS).await?;
        if known.iter().any(|known| known.generation == record.generation) {
            return Ok(());
        }
        let manifest = json!({"catalogue": record.catalogue, "dimensions": record.dimensions, "recall": record.recall});
        let (version, path) = (record.version.clone(), record.snapshot.clone());
        ledger.add_generation(&NewGeneration { generation: record.generation.clone(), version, path, manifest }).await
    }

    pub async fn entries(&self) -> Result<Vec<Entry>> {
        let ledger = self.ledger().await?;
        let mut entries = Vec::new();
        for version in ledger.page_versions(None, MOST_VERSIONS).await? {
            let generations = ledger.page_generations(&version.version, None, MOST_VERSIONS).await?;
            let report = ledger.page_reports(&version.version, None, 1).await?.pop();
            let failure = self.failures().get(&version.version).cloned();
            entries.push(Entry { version, generations, report, failure });
        }
        Ok(entries)
    }

    /// Serves a version from now on: builds its index where there is none, then tells the ledger, then swaps.
    pub async fn promote(&self, shop: &Arc<Shop>, version: &Version) -> Result<()> {
        let _alone = self.changing.lock().await;
        let outcome = self.promoted(shop, version).await;
        self.note(&version.version, &outcome);
        outcome
    }

    async fn promoted(&self, shop: &Arc<Shop>, version: &Version) -> Result<()> {
        let ledger = self.ledger().await?;
        let name = shop.prepare(&version.version, &version.path).await?;
        let missing = || Error::input(format!("version `{}` has no index here", version.version));
        let generation = shop.version(&version.version).await?.ok_or_else(missing)?;
        if generation.record().model != version.fingerprint {
            return Err(Error::input(format!(
                "version `{}` was registered as model {}, but {} holds model {}: register that under another name",
                version.version,
                version.fingerprint,
                version.path,
                generation.record().model
            )));
        }
        self.add_generation(&generation).await?;
        ledger.promote(&version.version, &name).await?;
        shop.swap(&version.version).await
    }

    /// Goes back to what was served before.
    pub async fn roll_back(&self, shop: &Arc<Shop>) -> Result<Served> {
        let before = {
            let _alone = self.changing.lock().await;
            let ledger = self.ledger().await?;
            let nothing = || Error::input("nothing is served: there is nothing to roll back");
            let served = ledger.served().await?.ok_or_else(nothing)?;
            ledger.roll_back(&served.version).await?
        };
        self.follow(shop).await?;
        Ok(before)
    }

    /// Swaps to what the ledger says is served.
    pub async fn follow(&self, shop: &Arc<Shop>) -> Result<()> {
        let _alone = self.changing.lock().await;
        let Some((served, version)) = self.served().await? else { return Ok(()) };
        if shop.served().record().version == served.version {
            return Ok(());
        }
        tracing::info!(version = served.version, "the registry serves another version: following");
        let outcome = async {
            shop.prepare(&version.version, &version.path).await?;
            shop.swap(&version.version).await
        };
        let outcome = outcome.await;
        self.note(&version.version, &outcome);
        outcome
    }

    /// Whether what is served is being changed now.
    pub fn is_changing(&self) -> bool {
        self.changing.try_lock().is_err()
    }

    fn note(&self, version: &str, outcome: &Result<()>) {
        match outcome {
            Ok(()) => drop(self.failures().remove(version)),
            Err(error) => {
                tracing::error!(version, ?error, "cannot be served");
                self.failures().insert(version.into(), error.to_string());
            }
        }
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
