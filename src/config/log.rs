//! The `[log]` section: where the search log is read from.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_ingest::log::file::{FileSettings, FileSource};
use souk_ingest::log::kafka::{KafkaSettings, KafkaSource};
use souk_ingest::log::{LogSource, OnGap, Resume};
use souk_io::error::{Error, Result};

/// Source of the search log.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Files of UBI 1.3 records, one JSON object on each line.
    pub paths: Vec<PathBuf>,
    /// Kafka's `host:port,host:port`.
    pub brokers: String,
    /// Kafka topics.
    pub topics: Vec<String>,
    /// Kafka consumer group; `souk` by default.
    pub group: Option<String>,
    /// Kafka topic for records that cannot be read.
    pub dead_letter_topic: Option<String>,
    /// Properties of librdkafka, such as `"security.protocol" = "ssl"`.
    pub properties: BTreeMap<String, String>,
    /// Waits for more records at the end.
    pub follow: bool,
    /// Behaviour if records were deleted before they were read.
    pub on_gap: OnGap,
}

/// Default consumer group.
const GROUP: &str = "souk";

impl LogConfig {
    /// An error if both files and topics are given, or neither.
    pub fn check(&self) -> Result<()> {
        match (self.paths.is_empty(), self.brokers.is_empty()) {
            (true, true) => {
                Err(Error::config("log", "no source: give --from FILE, or --kafka HOST:PORT with --topic NAME"))
            }
            (false, false) => Err(Error::config("log", "has both files and Kafka brokers: remove one of them")),
            (true, false) if self.topics.is_empty() => {
                Err(Error::config("log.topics", "has no topic: give --topic NAME"))
            }
            _ => Ok(()),
        }
    }

    /// Opens the files or the topics.
    pub fn open(&self, resume: Resume) -> Result<Box<dyn LogSource>> {
        self.check()?;
        if self.brokers.is_empty() {
            let (paths, follow, on_gap) = (self.paths.clone(), self.follow, self.on_gap);
            return Ok(Box::new(FileSource::open(FileSettings { paths, follow, on_gap }, resume)?));
        }
        Ok(Box::new(KafkaSource::open(&self.kafka_settings()?, resume)?))
    }

    /// The same log, to be read once to its present end. A consumer group of its own, `GROUP-NAME`, leaves the partitions to the
    /// group that ingests.
    pub fn once(&self, name: &str) -> Self {
        let group = Some(format!("{}-{name}", self.group.as_deref().unwrap_or(GROUP)));
        Self { group, dead_letter_topic: None, follow: false, ..self.clone() }
    }

    /// Settings of the Kafka source; an error without brokers.
    pub fn kafka_settings(&self) -> Result<KafkaSettings> {
        if self.brokers.is_empty() {
            return Err(Error::config("log.brokers", "has no broker: give HOST:PORT"));
        }
        Ok(KafkaSettings {
            brokers: self.brokers.clone(),
            topics: self.topics.clone(),
            group: self.group.clone().unwrap_or_else(|| GROUP.into()),
            dead_letter_topic: self.dead_letter_topic.clone(),
            follow: self.follow,
            on_gap: self.on_gap,
            properties: self.properties.clone(),
        })
    }
}
