//! What the ledger is told and asked, from threads that are not its own: what is served, what is offered, what has to stay.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use souk::Result;
use souk::config::StoreConfig;
use souk::store::{Ledger, NewVersion, Version, VersionState, newest_offer};
use tokio::runtime::Handle;

/// Versions that were served and could be gone back to.
const KEPT: usize = 3;
const MAX_VERSIONS: usize = 200;

pub struct Registry {
    store: StoreConfig,
    runtime: Handle,
    ledger: OnceLock<Arc<dyn Ledger>>,
}

/// A candidate with what was measured of it.
pub struct Offer {
    pub version: NewVersion,
    /// What it scored, by split.
    pub reports: Vec<(String, Value)>,
    /// What its parent scored, for one that nobody had measured.
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

    /// Whether the ledger answers.
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

    /// What was offered last and nobody serves yet.
    pub fn waiting(&self) -> Result<Option<Version>> {
        let ledger = self.ledger()?;
        self.runtime.block_on(newest_offer(ledger.as_ref()))
    }

    /// Makes a candidate known with its reports, and rejects one that did not pass. Doing it again changes nothing.
    pub fn publish(&self, offer: &Offer) -> Result<()> {
        let ledger = self.ledger()?;
        let name = &offer.version.version;
        self.runtime.block_on(async {
            if ledger.version(name).await?.is_none() {
                ledger.add_version(&offer.version).await?;
            }
            let parent = offer.version.parent.iter().map(|parent| (parent, &offer.parent_reports));
            for (version, reports) in parent.chain([(name, &offer.reports)]) {
                let known = ledger.page_reports(version, None, MAX_VERSIONS).await?;
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

    /// A version whose model is about to go can be served no more.
    pub fn retire(&self, name: &str) -> Result<()> {
        let ledger = self.ledger()?;
        self.runtime.block_on(async {
            match ledger.version(name).await? {
                Some(version) if version.state == VersionState::Candidate => ledger.reject_version(name).await,
                _ => Ok(()),
            }
        })
    }

    /// Versions whose models must stay: served, offered, or served not long ago.
    pub fn needed(&self) -> Result<BTreeSet<String>> {
        let ledger = self.ledger()?;
        let (served, versions, offer) = self.runtime.block_on(async {
            let versions = ledger.page_versions(None, MAX_VERSIONS).await?;
            Ok::<_, souk::Error>((ledger.served().await?, versions, newest_offer(ledger.as_ref()).await?))
        })?;
        let promoted = versions.into_iter().filter(|version| version.state == VersionState::Promoted).take(KEPT);
        let names = promoted.chain(offer).map(|version| version.version);
        Ok(names.chain(served.map(|served| served.version)).collect())
    }
}
