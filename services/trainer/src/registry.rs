//! Blocking access to the ledger: the served version, offers, and versions to keep.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use souk::Result;
use souk::config::StoreConfig;
use souk::store::{Ledger, NewVersion, Version, VersionState, newest_offer};
use tokio::runtime::Handle;

/// Versions that were served last and are kept: the one that is served, and those that rollbacks go back to.
const KEPT_VERSIONS: usize = 3;
/// More reports than one version gets.
const MAX_REPORTS: usize = 200;

pub struct Registry {
    store: StoreConfig,
    runtime: Handle,
    ledger: OnceLock<Arc<dyn Ledger>>,
}

/// A candidate version with its reports.
pub struct Offer {
    pub version: NewVersion,
    /// Metrics by split.
    pub reports: Vec<(String, Value)>,
    /// Metrics of its parent, stored if the parent has none.
    pub parent_reports: Vec<(String, Value)>,
    pub passed: bool,
}

impl Registry {
    pub fn new(store: StoreConfig, runtime: Handle) -> Self {
        Self { store, runtime, ledger: OnceLock::new() }
    }

    fn ledger(&self) -> Result<Arc<dyn Ledger>> {
        if let Some(ledger) = self.ledger.get() {
            return Ok(ledger.clone());
        }
        let opened = self.runtime.block_on(self.store.open_own_ledger())?;
        Ok(self.ledger.get_or_init(|| opened).clone())
    }

    /// Fails if the ledger does not answer.
    pub fn check(&self) -> Result<()> {
        self.served().map(drop)
    }

    pub fn served(&self) -> Result<Option<Version>> {
        let ledger = self.ledger()?;
        self.runtime.block_on(async {
            let Some(served) = ledger.served().await? else { return Ok(None) };
            ledger.version(&served.version).await
        })
    }

    /// The newest offer that is not served yet.
    pub fn open_offer(&self) -> Result<Option<Version>> {
        let ledger = self.ledger()?;
        self.runtime.block_on(newest_offer(ledger.as_ref()))
    }

    /// Registers a candidate with its reports, as rejected if it did not pass. Idempotent.
    pub fn publish(&self, offer: &Offer) -> Result<()> {
        let ledger = self.ledger()?;
        let name = &offer.version.version;
        self.runtime.block_on(async {
            if ledger.version(name).await?.is_none() {
                ledger.add_version(&offer.version).await?;
            }
            let parent = offer.version.parent.iter().map(|parent| (parent, &offer.parent_reports));
            for (version, reports) in parent.chain([(name, &offer.reports)]) {
                let known = ledger.page_reports(version, None, MAX_REPORTS).await?;
                for (split, metrics) in reports {
                    if !known.iter().any(|report| report.split == *split) {
                        ledger.add_report(version, split, metrics).await?;
                    }
                }
            }
            if !offer.passed {
                ledger.reject_version(name).await?;
            }
            Ok(())
        })
    }

    /// Rejects a candidate whose model is about to be removed.
    pub fn retire(&self, name: &str) -> Result<()> {
        let ledger = self.ledger()?;
        self.runtime.block_on(async {
            match ledger.version(name).await? {
                Some(version) if version.state == VersionState::Candidate => ledger.reject_version(name).await,
                _ => Ok(()),
            }
        })
    }

    /// Versions whose models are kept: served, offered, or recently served.
    pub fn needed(&self) -> Result<BTreeSet<String>> {
        let ledger = self.ledger()?;
        let (served, offer) = self.runtime.block_on(async {
            Ok::<_, souk::Error>((ledger.served_versions(KEPT_VERSIONS).await?, newest_offer(ledger.as_ref()).await?))
        })?;
        let served = served.into_iter().map(|served| served.version);
        Ok(served.chain(offer.map(|offer| offer.version)).collect())
    }
}
