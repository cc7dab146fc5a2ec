//! `souk produce`: writes a search log from standard input to a Kafka topic.

use std::io::{BufRead, stdin};

use clap::Args;
use souk::config::Change;
use souk::error::Error;
use souk::log::kafka::Topic;

use crate::GlobalArgs;
use crate::output::print;

/// Messages per send; the broker acknowledges each batch before the next is read.
const BATCH: usize = 10_000;

/// Write a search log from standard input to a Kafka topic
///
/// Input: UBI 1.3, one JSON object per line. The message key is the query_id, so a query and its
/// events stay in order whatever the number of partitions.
///
/// Example: souk produce --kafka localhost:9092 --topic ubi --partitions 4 < SHOP/logs.ndjson
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct ProduceCommand {
    /// Kafka brokers
    #[arg(long, value_name = "HOST:PORT,...")]
    kafka: Option<String>,
    /// Kafka topic
    #[arg(long, value_name = "NAME")]
    topic: String,
    /// Create the topic with N partitions if it does not exist
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    partitions: Option<i32>,
}

impl ProduceCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let flag = self.kafka.iter().map(|brokers| Change::text("log.brokers", "--kafka", brokers));
        let config = globals.load(flag.collect())?;
        let settings = config.log.kafka_settings()?;
        if let Some(partitions) = self.partitions {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(Topic::create(&settings, &self.topic, partitions))?;
        }
        let topic = Topic::open(&settings, &self.topic)?;
        let (mut lines, mut num_sent) = (Vec::with_capacity(BATCH), 0);
        for (number, line) in stdin().lock().split(b'\n').enumerate() {
            let line = line?;
            if line.is_empty() {
                continue;
            }
            let json: serde_json::Value = serde_json::from_slice(&line)
                .map_err(|e| Error::input(format!("standard input, line {}: not JSON", number + 1)).because(e))?;
            let key = match &json["query_id"] {
                serde_json::Value::String(id) => id.clone(),
                serde_json::Value::Null => String::new(),
                other => other.to_string(),
            };
            lines.push((key, line));
            if lines.len() == BATCH {
                topic.send(&lines)?;
                num_sent += lines.len();
                lines.clear();
            }
        }
        topic.send(&lines)?;
        num_sent += lines.len();
        print(
            globals,
            &serde_json::json!({"messages": num_sent}),
            &format!("sent {num_sent} messages to `{}`", self.topic),
        )
    }
}
