//! Kafka logs: a consumer group whose members share the partitions of one or more topics.
//!
//! A dedicated thread polls the broker, so a slow consumer does not lose its group membership. Never auto-commits
//! offsets: a partition resumes where `Resume` says, and offsets committed to the broker only make progress visible
//! there. Topics of one source are read together: partition 3 of each is one lane, so records with the same key must
//! share a partition (for example, both keyed by the query id).

mod catalogue_topic;
mod feed;
mod member;
mod poll;
mod topic;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

pub use self::catalogue_topic::CatalogueTopic;
pub use self::feed::save_feed;
use self::member::GroupMember;
use self::poll::{Command, Poller};
pub use self::topic::Topic;
use super::{DeadLetter, Lane, LogSource, OnGap, Position, Resume, Signal};
use souk_io::error::{Error, Result};

/// Timeout for the broker's first answer.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Batches read ahead of the consumer.
const MAX_QUEUED: usize = 8;

/// Kafka topics and how to read them.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    /// `host:port,host:port`
    pub brokers: String,
    pub topics: Vec<String>,
    pub group: String,
    /// Topic that also receives dead letters; they are always stored with the dataset.
    pub dead_letter_topic: Option<String>,
    /// Wait for more messages at the end.
    pub follow: bool,
    pub on_gap: OnGap,
    /// librdkafka properties, for security and tuning.
    pub properties: BTreeMap<String, String>,
}

impl KafkaSettings {
    fn service(&self) -> String {
        format!("Kafka at {}", self.brokers)
    }

    /// Sorts topics, so equal sets make equal lanes, and rejects settings that would break offset tracking.
    fn checked(&self) -> Result<Self> {
        let mut topics = self.topics.clone();
        topics.sort();
        topics.dedup();
        if let Some(dead) = self.dead_letter_topic.as_ref().filter(|dead| topics.contains(dead)) {
            let problem = format!("the dead-letter topic is also a source topic (`{dead}`): choose another topic");
            return Err(Error::config("log.dead_letter_topic", problem));
        }
        let reserved = ["group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset"];
        let reserved =
            reserved.into_iter().chain(["enable.partition.eof", "partition.assignment.strategy", "bootstrap.servers"]);
        if let Some(name) = reserved.into_iter().find(|name| self.properties.contains_key(*name)) {
            return Err(Error::config("log.properties", format!("`{name}` is set by Souk: remove it")));
        }
        Ok(Self { topics, ..self.clone() })
    }

    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.brokers).set("client.id", "souk");
        for (name, value) in &self.properties {
            client.set(name, value);
        }
        client
    }

    fn consumer(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        // partition N of every topic must go to the same member
        client.set("partition.assignment.strategy", "range").set("statistics.interval.ms", "1000");
        // by default, fetching pauses for a full second once the queue is full, even if it drains sooner
        client.set("fetch.queue.backoff.ms", "10");
        if !self.follow {
            // the broker tells the end of a partition in its answer to a fetch, which it delays if there is no message
            client.set("fetch.wait.max.ms", "10");
        }
        for (name, value) in self.client().config_map() {
            client.set(name.to_owned(), value.to_owned());
        }
        let reset = if self.on_gap == OnGap::Skip { "earliest" } else { "error" };
        client
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", reset);
        client
    }
}

pub struct KafkaSource {
    lanes: String,
    topics: Arc<[String]>,
    signals: Option<Receiver<Result<Signal>>>,
    commands: Sender<Command>,
    lag: Arc<AtomicU64>,
    dead_letters: Option<Topic>,
    thread: Option<JoinHandle<()>>,
}

impl KafkaSource {
    /// Joins the group. Fails if the broker does not answer or a topic does not exist.
    pub fn open(settings: &KafkaSettings, resume: Resume) -> Result<Self> {
        let settings = &settings.checked()?;
        let (send, signals) = sync_channel(MAX_QUEUED);
        let (commands, received) = channel();
        let lag = Arc::new(AtomicU64::new(0));
        let topics: Arc<[String]> = settings.topics.clone().into();
        let lanes = format!("kafka-{}", settings.topics.join("+"));
        let member = GroupMember::new(lanes.clone(), topics.clone(), send, resume, lag.clone());
        let consumer: BaseConsumer<GroupMember> =
            settings.consumer().create_with_context(member).map_err(config_error)?;
        check_topics(settings, &consumer)?;
        let dead_letters = settings.dead_letter_topic.as_ref().map(|topic| Topic::open(settings, topic)).transpose()?;
        let names: Vec<&str> = settings.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&names).map_err(|e| upstream(settings.service(), "cannot subscribe", e))?;
        let poller = Poller::new(consumer, received, settings);
        let thread = std::thread::Builder::new().name("souk-kafka".into()).spawn(move || poller.run());
        let thread = thread.map_err(|e| Error::device("cannot start the Kafka thread").because(e))?;
        Ok(Self { lanes, topics, signals: Some(signals), commands, lag, dead_letters, thread: Some(thread) })
    }
}

impl LogSource for KafkaSource {
    fn next(&mut self, wait: Duration) -> Result<Option<Signal>> {
        let signals = self.signals.as_ref().expect("taken only when the source is dropped");
        match signals.recv_timeout(wait) {
            Ok(signal) => signal.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::device("the Kafka reader thread has ended")),
        }
    }

    fn commit(&mut self, lane: &Lane, position: &Position) -> Result<()> {
        let partition = lane
            .name()
            .strip_prefix(Lane::new(&self.lanes).name())
            .and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        let partition = partition.ok_or_else(|| Error::input(format!("{lane} is not a lane of {}", self.lanes)))?;
        let offsets = self.topics.iter().filter_map(|topic| Some((topic.clone(), *position.0.get(topic)?)));
        // if the thread has ended, the next read returns its error
        drop(self.commands.send(Command::Commit(partition, offsets.collect())));
        Ok(())
    }

    fn send_dead_letters(&mut self, letters: &[DeadLetter]) -> Result<()> {
        self.dead_letters.as_ref().map_or(Ok(()), |topic| topic.send_letters(letters))
    }

    fn lag(&self) -> u64 {
        self.lag.load(Ordering::Relaxed)
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        // disconnect the channel, so a handover does not wait
        self.signals = None;
        drop(self.commands.send(Command::Leave));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn check_topics(settings: &KafkaSettings, consumer: &BaseConsumer<GroupMember>) -> Result<()> {
    let mut partitions = Vec::new();
    for topic in &settings.topics {
        let metadata = consumer.fetch_metadata(Some(topic), START_TIMEOUT).map_err(|e| {
            let problem =
                format!("no answer within {} s: check that it runs and `log.brokers`", START_TIMEOUT.as_secs());
            upstream(settings.service(), &problem, e)
        })?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        if found.is_none_or(|found| found.error().is_some() || found.partitions().is_empty()) {
            let all = consumer.fetch_metadata(None, START_TIMEOUT);
            let mut names: Vec<String> = all
                .map_or_else(|_| Vec::new(), |all| all.topics().iter().map(|topic| topic.name().to_owned()).collect());
            names.retain(|name| !name.starts_with("__"));
            let existing = if names.is_empty() { "it has none".into() } else { format!("it has {}", names.join(", ")) };
            return Err(Error::config("log.topics", format!("no topic `{topic}` at {}: {existing}", settings.brokers)));
        }
        partitions.push(found.map_or(0, |found| found.partitions().len()));
    }
    if partitions.windows(2).any(|pair| pair[0] != pair[1]) {
        let problem = "topics of one source must have as many partitions each, because partition N of all is one lane";
        return Err(Error::config("log.topics", format!("{problem}; they have {partitions:?}")));
    }
    Ok(())
}

fn config_error(cause: KafkaError) -> Error {
    let hint = if cfg!(feature = "kafka-tls") { "" } else { " (TLS and SASL need a build with --features kafka-tls)" };
    Error::config("log.properties", format!("librdkafka rejects this configuration{hint}")).because(cause)
}

fn upstream(service: String, problem: &str, cause: KafkaError) -> Error {
    let permanent = [RDKafkaErrorCode::TopicAuthorizationFailed, RDKafkaErrorCode::GroupAuthorizationFailed];
    let retryable = cause.rdkafka_error_code().is_none_or(|code| !permanent.contains(&code));
    Error::Upstream { service, problem: problem.into(), retryable, source: None }.because(cause)
}
