//! The `[store]` section: the ledger's database and the cache.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_cache::{Cache, open_cache};
use souk_io::address::Address;
use souk_io::error::Result;
use souk_store::{Ledger, SqlLedger};

/// The ledger's database and the cache.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// `sqlite:PATH` or `postgres://USER@HOST/DATABASE`; the password may come in PGPASSWORD.
    pub database: Address,
    /// `memory`, or `redis://HOST:PORT/N`.
    pub cache: Address,
    /// Size of a cache in memory.
    pub cache_bytes: usize,
    /// Lifetime of an entry in Redis; 0: until Redis evicts it.
    pub cache_seconds: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            database: Address::new("sqlite:souk.db"),
            cache: Address::new("memory"),
            cache_bytes: 256 << 20,
            cache_seconds: 0,
        }
    }
}

impl StoreConfig {
    /// Opens the ledger, whose tables must exist (`souk db migrate`).
    pub async fn open_ledger(&self) -> Result<Arc<dyn Ledger>> {
        Ok(Arc::new(SqlLedger::open(&self.database).await?))
    }

    /// For services: creates and migrates a SQLite file first.
    pub async fn open_own_ledger(&self) -> Result<Arc<dyn Ledger>> {
        if self.database.scheme() == "sqlite" {
            SqlLedger::migrate(&self.database).await?;
        }
        self.open_ledger().await
    }

    /// A cache for this process alone.
    pub fn memory_cache(&self) -> Result<Arc<dyn Cache>> {
        open_cache(&Address::new("memory"), self.cache_bytes, None)
    }

    /// Opens the cache.
    pub fn open_cache(&self) -> Result<Arc<dyn Cache>> {
        let lifetime = (self.cache_seconds > 0).then(|| Duration::from_secs(self.cache_seconds));
        open_cache(&self.cache, self.cache_bytes, lifetime)
    }
}
