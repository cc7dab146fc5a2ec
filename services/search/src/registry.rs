//! Versions in the ledger, kept in sync with the serving state: the ledger decides which version is served, and the
//! service follows. If the ledger is down, searches continue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::json;
use souk::config::SharedLedger;
use souk::search::{OpenGeneration, ServingState, Unprepared};
use souk::store::{Generation, Ledger, NewGeneration, NewVersion, Report, ServedVersion, Version, newest_offer};
use souk::telemetry::SEARCH;
use souk::{Error, Result};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::webhook::{Event, Webhook};

pub const MAX_VERSIONS: usize = 200;

pub struct ModelRegistry {
    ledger: Arc<SharedLedger>,
    /// Serializes changes of the served version, in the ledger and here; never held during a build.
    change_lock: AsyncMutex<()>,
    /// Allows one promotion at a time, including its build.
    promotion_lock: Arc<AsyncMutex<()>>,
    /// Why the last promotion of a version failed.
    failures: Mutex<HashMap<String, String>>,
    webhook: Option<Arc<Webhook>>,
}

/// A version with its generations and latest report.
pub struct VersionEntry {
    pub version: Version,
    pub generations: Vec<Generation>,
    pub report: Option<Report>,
    pub failure: Option<String>,
}

impl ModelRegistry {
    pub fn new(ledger: Arc<SharedLedger>, webhook: Option<Webhook>) -> Self {
        let (change_lock, promotion_lock, failures) = (AsyncMutex::default(), Arc::default(), Mutex::default());
        Self { ledger, change_lock, promotion_lock, failures, webhook: webhook.map(Arc::new) }
    }

    /// Connects on first use.
    pub async fn ledger(&self) -> Result<&Arc<dyn Ledger>> {
        self.ledger.open().await
    }

    /// Version that should be served, with its model; None before the first promotion.
    pub async fn served(&self) -> Result<Option<(ServedVersion, Version)>> {
        let ledger = self.ledger().await?;
        let Some(served) = ledger.served().await? else { return Ok(None) };
        let version = ledger.version(&served.version).await?;
        Ok(version.map(|version| (served, version)))
    }

    /// Registers a served generation that the ledger does not know, such as a service's first one.
    pub async fn introduce(&self, generation: &OpenGeneration) -> Result<()> {
        let (ledger, record) = (self.ledger().await?, generation.record());
        match ledger.version(&record.version).await? {
            None => {
                let (version, path) = (record.version.clone(), record.path.clone());
                let (fingerprint, parent, metrics) = (record.model.clone(), None, json!({}));
                ledger.add_version(&NewVersion { version, path, fingerprint, parent, metrics }).await?;
            }
            Some(known) if known.fingerprint != record.model => {
                let problem = format!(
                    "version `{}` was registered as model {}, but {} now holds {}: set search.version to another name",
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

    /// Adds a generation; another process that serves the same version may add it at the same time.
    async fn add_generation(&self, generation: &OpenGeneration) -> Result<()> {
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

    pub async fn entries(&self) -> Result<Vec<VersionEntry>> {
        let mut entries = Vec::new();
        for version in self.ledger().await?.page_versions(None, MAX_VERSIONS).await? {
            entries.push(self.entry(version).await?);
        }
        Ok(entries)
    }

    pub async fn entry(&self, version: Version) -> Result<VersionEntry> {
        let ledger = self.ledger().await?;
        let generations = ledger.page_generations(&version.version, None, MAX_VERSIONS).await?;
        let report = ledger.page_reports(&version.version, None, 1).await?.pop();
        let failure = lock_ignoring_poison(&self.failures).get(&version.version).cloned();
        Ok(VersionEntry { version, generations, report, failure })
    }

    /// Permit to promote a version; None while another promotion runs.
    pub fn try_start_promotion(&self) -> Option<OwnedMutexGuard<()>> {
        self.promotion_lock.clone().try_lock_owned().ok()
    }

    /// Serves a version: builds its index if missing, updates the ledger, then swaps.
    pub async fn promote(
        &self,
        serving: &Arc<ServingState>,
        version: &Version,
        _permit: OwnedMutexGuard<()>,
    ) -> Result<()> {
        let outcome = self.build_and_promote(serving, version).await;
        self.record_outcome(&version.version, &outcome);
        outcome
    }

    async fn build_and_promote(&self, serving: &Arc<ServingState>, version: &Version) -> Result<()> {
        let ledger = self.ledger().await?;
        let mut generation = prepare_index(serving, version).await?;
        if let Some(webhook) = &self.webhook {
            let served = serving.served().record().version.clone();
            webhook.wait_until_ready(generation.record(), &served).await?;
            // it may have been closed during a long wait
            generation = prepare_index(serving, version).await?;
        }
        self.add_generation(&generation).await?;
        {
            let _alone = self.change_lock.lock().await;
            ledger.promote(&version.version, &generation.record().generation).await?;
            serving.swap(&version.version).await?;
        }
        self.tell(Event::Promoted, serving);
        Ok(())
    }

    /// Tells the webhook in the background: a receiver that hangs delays nothing.
    fn tell(&self, event: Event, serving: &Arc<ServingState>) {
        if let Some(webhook) = self.webhook.clone() {
            let served = serving.served();
            tokio::spawn(async move { webhook.tell(event, served.record()).await });
        }
    }

    /// Serves a version that a trainer offers, if any. Rejects a version that no replica could serve. Trouble of this replica alone, such
    /// as a folder that it cannot see, is an error, and the version is tried again.
    pub async fn adopt(&self, serving: &Arc<ServingState>) -> Result<()> {
        let ledger = self.ledger().await?;
        let Some(version) = newest_offer(ledger.as_ref()).await? else { return Ok(()) };
        // the trainer may still be writing its report
        if ledger.page_reports(&version.version, None, 1).await?.is_empty() {
            return Ok(());
        }
        let Some(permit) = self.try_start_promotion() else { return Ok(()) };
        tracing::info!(version = version.version, "a trainer offers a version: building and serving it");
        let unprepared = match prepare_index(serving, &version).await {
            // while the index was built, another process may have served it, or a newer one: `follow` handles that
            Ok(_) if !is_offered(ledger.as_ref(), &version).await? => return Ok(()),
            Ok(_) => return self.promote(serving, &version, permit).await,
            Err(unprepared) => unprepared,
        };
        let is_unfit = matches!(unprepared, Unprepared::Unfit(_));
        let outcome = Err(unprepared.into());
        self.record_outcome(&version.version, &outcome);
        if is_unfit {
            ledger.reject_version(&version.version).await?;
            SEARCH.version_failing.set(0);
        }
        outcome
    }

    /// Rolls back to the version served before `version`, if `version` is served. The other one is ready to be served here before
    /// the ledger changes. Does not wait for a running build if there is an index of it.
    pub async fn roll_back(&self, serving: &Arc<ServingState>, version: &str) -> Result<()> {
        let ledger = self.ledger().await?;
        if let [served, before] = &ledger.served_versions(2).await?[..]
            && served.version == version
            && let Some(before) = ledger.version(&before.version).await?
        {
            prepare_index(serving, &before).await?;
        }
        {
            let _alone = self.change_lock.lock().await;
            ledger.roll_back(version).await?;
        }
        self.follow(serving).await?;
        self.tell(Event::RolledBack, serving);
        Ok(())
    }

    /// Swaps to the version that the ledger names.
    pub async fn follow(&self, serving: &Arc<ServingState>) -> Result<()> {
        let Some((served, version)) = self.served().await? else { return Ok(()) };
        if is_served(serving, &served.version) {
            return Ok(());
        }
        tracing::info!(version = served.version, "the registry serves another version: switching to it");
        let outcome = self.build_and_swap(serving, &version).await;
        self.record_outcome(&version.version, &outcome);
        outcome
    }

    async fn build_and_swap(&self, serving: &Arc<ServingState>, version: &Version) -> Result<()> {
        prepare_index(serving, version).await?;
        let _alone = self.change_lock.lock().await;
        // the ledger may name another version by the time the index is built
        let served = self.ledger().await?.served().await?;
        let is_wanted = served.is_some_and(|served| served.version == version.version);
        if is_wanted && !is_served(serving, &version.version) { serving.swap(&version.version).await } else { Ok(()) }
    }

    fn record_outcome(&self, version: &str, outcome: &Result<()>) {
        match outcome {
            Ok(()) => drop(lock_ignoring_poison(&self.failures).remove(version)),
            Err(error) => {
                tracing::error!(version, ?error, "cannot serve the version");
                lock_ignoring_poison(&self.failures).insert(version.into(), error.to_string());
            }
        }
        SEARCH.version_failing.set(i64::from(outcome.is_err()));
    }
}

/// Generation with an index of the version, built if missing.
async fn prepare_index(
    serving: &Arc<ServingState>,
    version: &Version,
) -> std::result::Result<Arc<OpenGeneration>, Unprepared> {
    serving.prepare(&version.version, &version.path, &version.fingerprint).await
}

async fn is_offered(ledger: &dyn Ledger, version: &Version) -> Result<bool> {
    Ok(newest_offer(ledger).await?.is_some_and(|offer| offer.version == version.version))
}

fn is_served(serving: &ServingState, version: &str) -> bool {
    serving.served().record().version == version
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
