//! A product feed in a topic: of several records with one key, the last counts, and an empty one deletes. Reads to the present end.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::{Message, Offset, TopicPartitionList};
use serde_json::Value;

use super::{KafkaSettings, config_error, upstream};
use souk_io::error::{Error, Result};

/// Time limit for the broker's answer to a question.
const ANSWER: Duration = Duration::from_secs(10);
/// Time without any record after which the broker counts as silent.
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// Place of a record: partition and offset.
type Place = (i32, i64);

/// Writes the last record of each key as a line of JSON; returns their number. Reads the topic twice, so that only keys are in memory.
pub fn save_feed(settings: &KafkaSettings, topic: &str, path: &Path) -> Result<u64> {
    let mut last: HashMap<Vec<u8>, Place> = HashMap::new();
    read_all(settings, topic, &mut |record| {
        let place = (record.partition(), record.offset());
        let key =
            record.key().ok_or_else(|| problem(topic, place, "has no key: records of a feed need the item's id"))?;
        match record.payload() {
            Some(_) => drop(last.insert(key.to_vec(), place)),
            None => drop(last.remove(key)),
        }
        Ok(())
    })?;
    let mut out = BufWriter::new(File::create(path).map_err(Error::store(path, "create it"))?);
    let mut num = 0;
    read_all(settings, topic, &mut |record| {
        let place = (record.partition(), record.offset());
        let (Some(key), Some(payload)) = (record.key(), record.payload()) else { return Ok(()) };
        if last.get(key) != Some(&place) {
            return Ok(());
        }
        let json: Value =
            serde_json::from_slice(payload).map_err(|e| problem(topic, place, "is not JSON").because(e))?;
        num += 1;
        writeln!(out, "{json}").map_err(Error::store(path, "write it"))
    })?;
    out.flush().map_err(Error::store(path, "write it"))?;
    Ok(num)
}

fn problem(topic: &str, place: Place, problem: &str) -> Error {
    let (partition, offset) = place;
    Error::data(Path::new(topic), None, format!("the record at offset {offset} of partition {partition} {problem}"))
}

/// Visits the records of all partitions, from the first to the present end.
fn read_all(
    settings: &KafkaSettings,
    topic: &str,
    visit: &mut dyn FnMut(&BorrowedMessage<'_>) -> Result<()>,
) -> Result<()> {
    let failed = |action: &str, e| upstream(settings.service(), &format!("topic `{topic}`: cannot {action}"), e);
    let mut client = settings.client();
    client.set("group.id", "souk-feed").set("enable.auto.commit", "false").set("enable.partition.eof", "true");
    client.set("auto.offset.reset", "earliest").set("fetch.wait.max.ms", "100");
    let consumer: BaseConsumer = client.create().map_err(config_error)?;
    let found = consumer.fetch_metadata(Some(topic), ANSWER).map_err(|e| failed("find it", e))?;
    let partitions: Vec<i32> =
        found.topics().iter().flat_map(|topic| topic.partitions()).map(|partition| partition.id()).collect();
    if partitions.is_empty() {
        return Err(Error::config("--topic", format!("is `{topic}`, which does not exist: check its name")));
    }
    let mut list = TopicPartitionList::new();
    for partition in &partitions {
        let added = list.add_partition_offset(topic, *partition, Offset::Beginning);
        added.map_err(|e| failed("read it", e))?;
    }
    consumer.assign(&list).map_err(|e| failed("read it", e))?;
    let (mut num_open, mut heard) = (partitions.len(), Instant::now());
    while num_open > 0 {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(record)) => visit(&record)?,
            Some(Err(KafkaError::PartitionEOF(_))) => num_open -= 1,
            Some(Err(error)) => return Err(failed("read it", error)),
            None if heard.elapsed() > MAX_SILENCE => {
                let problem = format!("topic `{topic}`: no answer for {} s", MAX_SILENCE.as_secs());
                return Err(Error::Upstream { service: settings.service(), problem, retryable: true, source: None });
            }
            None => continue,
        }
        heard = Instant::now();
    }
    Ok(())
}
