//! `souk produce`: a search log into a Kafka topic.

use std::io::{BufRead, stdin};

use clap::Args;
use souk::config::Change;
use souk::error::Error;
use souk::log::kafka::Topic;

use crate::Shared;
use crate::output::print;

/// Sent at a time; the broker has them before the next are read.
const AT_ONCE: usize = 10_000;

/// Write a search log from standard input to a Kafka topic
///
/// One JSON object of UBI 1.3 a line. A query and its events get the same key, so that they stay in their order whatever the
/// number of partitions.
///
/// Example: souk produce --kafka localhost:9092 --topic ubi --partitions 4 < SHOP/logs.ndjson
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Produce {
    /// Kafka's brokers
    #[arg(long, value_name = "HOST:PORT,...")]
    kafka: Option<String>,
    /// The topic
    #[arg(long, value_name = "NAME")]
    topic: String,
    /// Make the topic with so many partitions, where it is not there
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    partitions: Option<i32>,
}

impl Produce {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let flag = self.kafka.iter().map(|brokers| Change::text("log.brokers", "--kafka", brokers));
        let config = shared.load(flag.collect())?;
        let settings = config.log.kafka_settings()?;
        if let Some(partitions) = self.partitions {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(Topic::create(&settings, &self.topic, partitions))?;
        }
        let topic = Topic::open(&settings, &self.topic)?;
        let (mut lines, mut num) = (Vec::with_capacity(AT_ONCE), 0);
        for (number, line) in stdin().lock().split(b'\n').enumerate() {
            let line = line?;
            if line.is_empty() {
                continue;
            }
            let json: serde_json::Value = serde_json::from_slice(&line)
                .map_err(|e| Error::input(format!("line {} is not JSON", number + 1)).because(e))?;
            let key = match &json["query_id"] {
                serde_json::Value::String(id) => id.clone(),
                serde_json::Value::Null => String::new(),
                other => other.to_string(),
            };
            lines.push((key, line));
            if lines.len() == AT_ONCE {
                topic.send(&lines)?;
                num += lines.len();
                lines.clear();
            }
        }
        topic.send(&lines)?;
        num += lines.len();
        print(shared, &serde_json::json!({"messages": num}), &format!("{num} messages are in `{}`", self.topic))
    }
}
