//! The `[catalogue]` section: where the stream of catalogue changes is.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_ingest::log::kafka::CatalogueTopic;
use souk_io::catalogue_stream::CatalogueStream;
use souk_io::error::Result;

use super::log::LogConfig;
use super::shared_ledger::{LedgerStream, SharedLedger};

/// The stream of catalogue changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CatalogueConfig {
    /// Compacted Kafka topic with one partition, at the brokers of `[log]`; it is created if it is missing. Without it the
    /// stream is in the ledger.
    pub topic: Option<String>,
}

impl CatalogueConfig {
    /// The stream that all processes of this shop follow. Does not connect yet.
    pub fn open_stream(&self, ledger: Arc<SharedLedger>, log: &LogConfig) -> Result<Arc<dyn CatalogueStream>> {
        Ok(match &self.topic {
            Some(topic) => Arc::new(CatalogueTopic::new(log.kafka_settings()?, topic)?),
            None => Arc::new(LedgerStream::new(ledger)),
        })
    }
}
