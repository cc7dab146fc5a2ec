//! Logs in Kafka: a consumer group whose members share the partitions of one or more topics.
//!
//! A thread of its own polls the broker, so that however long a step takes, the group does not take this member for dead.
//! Offsets are never committed by themselves: a partition goes on where `Resume` says, and what is committed to the broker
//! only shows others how far it is. Topics of one source are read together: partition 3 of each is one lane, so records
//! that share a key must share a partition (both written with the query's id as the key, say).

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

use self::poll::{Command, Member, Poller};
pub use self::topic::Topic;
use super::{DeadLetter, Lane, LogSource, OnGap, Position, Resume, Signal};
use souk_io::error::{Error, Result};

/// How long a broker may take to answer at the start.
const PATIENCE: Duration = Duration::from_secs(10);
/// Batches read ahead of whoever consumes them.
const AHEAD: usize = 8;

/// Which topics, and how they are read.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    /// `host:port,host:port`
    pub brokers: String,
    pub topics: Vec<String>,
    pub group: String,
    /// Where dead letters are sent as well; they are kept with the dataset in any case.
    pub dead_letter_topic: Option<String>,
    /// Wait for more at the end.
    pub follow: bool,
    pub on_gap: OnGap,
    /// Any of librdkafka's properties, for security and tuning.
    pub properties: BTreeMap<String, String>,
}

impl KafkaSettings {
    fn service(&self) -> String {
        format!("Kafka at {}", self.brokers)
    }

    /// Topics in one order, so that the same ones make the same lanes, and nothing that would defeat the bookkeeping.
    fn checked(&self) -> Result<Self> {
        let mut topics = self.topics.clone();
        topics.sort();
        topics.dedup();
        if let Some(dead) = self.dead_letter_topic.as_ref().filter(|dead| topics.contains(dead)) {
            let problem = format!("is `{dead}`, a topic that is read: letters would come back for ever");
            return Err(Error::config("log.dead_letter_topic", problem));
        }
        let ours = ["group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset"];
        let ours =
            ours.into_iter().chain(["enable.partition.eof", "partition.assignment.strategy", "bootstrap.servers"]);
        if let Some(name) = ours.into_iter().find(|name| self.properties.contains_key(*name)) {
            return Err(Error::config("log.properties", format!("`{name}` is Souk's to set: leave it out")));
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
        // partition N of every topic must come to the same member
        client.set("partition.assignment.strategy", "range").set("statistics.interval.ms", "1000");
        // by default nothing is fetched for a whole second once enough lies ready, however soon that is used up
        client.set("fetch.queue.backoff.ms", "10");
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
    dead: Option<Topic>,
    thread: Option<JoinHandle<()>>,
}

impl KafkaSource {
    /// Joins the group. A broker that does not answer, or a topic that is not there, is an error here and now.
    pub fn open(settings: &KafkaSettings, resume: Resume) -> Result<Self> {
        let settings = &settings.checked()?;
        let (send, signals) = sync_channel(AHEAD);
        let (commands, received) = channel();
        let lag = Arc::new(AtomicU64::new(0));
        let topics: Arc<[String]> = settings.topics.clone().into();
        let lanes = format!("kafka-{}", settings.topics.join("+"));
        let member = Member::new((lanes.clone(), topics.clone()), send, resume, lag.clone());
        let consumer: BaseConsumer<Member> = settings.consumer().create_with_context(member).map_err(refused)?;
        check_topics(settings, &consumer)?;
        let dead = settings.dead_letter_topic.as_ref().map(|topic| Topic::open(settings, topic)).transpose()?;
        let names: Vec<&str> = settings.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&names).map_err(|e| upstream(settings.service(), "cannot subscribe", e))?;
        let poller = Poller::new(consumer, received, settings);
        let thread = std::thread::Builder::new().name("souk-kafka".into()).spawn(move || poller.run());
        let thread = thread.map_err(|e| Error::device("no thread for Kafka").because(e))?;
        Ok(Self { lanes, topics, signals: Some(signals), commands, lag, dead, thread: Some(thread) })
    }
}

impl LogSource for KafkaSource {
    fn next(&mut self, wait: Duration) -> Result<Option<Signal>> {
        let signals = self.signals.as_ref().expect("taken only when the source is dropped");
        match signals.recv_timeout(wait) {
            Ok(signal) => signal.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::device("the thread that reads Kafka has ended")),
        }
    }

    fn commit(&mut self, lane: &Lane, position: &Position) -> Result<()> {
        let partition = lane
            .name()
            .strip_prefix(Lane::new(&self.lanes).name())
            .and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        let partition = partition.ok_or_else(|| Error::input(format!("{lane} is no lane of {}", self.lanes)))?;
        let offsets = self.topics.iter().filter_map(|topic| Some((topic.clone(), *position.0.get(topic)?)));
        // a thread that has ended says so at the next read
        drop(self.commands.send(Command::Commit(partition, offsets.collect())));
        Ok(())
    }

    fn bury(&mut self, letters: &[DeadLetter]) -> Result<()> {
        self.dead.as_ref().map_or(Ok(()), |topic| topic.send_letters(letters))
    }

    fn lag(&self) -> u64 {
        self.lag.load(Ordering::Relaxed)
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        // nobody listens any more, so that a handover waits for nobody
        self.signals = None;
        drop(self.commands.send(Command::Leave));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn check_topics(settings: &KafkaSettings, consumer: &BaseConsumer<Member>) -> Result<()> {
    let mut partitions = Vec::new();
    for topic in &settings.topics {
        let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).map_err(|e| {
            let problem =
                format!("no answer within {} s: is it running, and is `log.brokers` right?", PATIENCE.as_secs());
            upstream(settings.service(), &problem, e)
        })?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        if found.is_none_or(|found| found.error().is_some() || found.partitions().is_empty()) {
            let all = consumer.fetch_metadata(None, PATIENCE);
            let mut names: Vec<String> = all
                .map_or_else(|_| Vec::new(), |all| all.topics().iter().map(|topic| topic.name().to_owned()).collect());
            names.retain(|name| !name.starts_with("__"));
            let there =
                if names.is_empty() { "there are none".into() } else { format!("there are {}", names.join(", ")) };
            return Err(Error::config("log.topics", format!("no topic `{topic}` at {}: {there}", settings.brokers)));
        }
        partitions.push(found.map_or(0, |found| found.partitions().len()));
    }
    if partitions.windows(2).any(|pair| pair[0] != pair[1]) {
        let problem = "topics that are read together must have as many partitions each: partition N of all is one lane";
        return Err(Error::config("log.topics", format!("{problem}; here they have {partitions:?}")));
    }
    Ok(())
}

fn refused(cause: KafkaError) -> Error {
    let hint = if cfg!(feature = "kafka-tls") { "" } else { " (TLS and SASL need a build with --features kafka-tls)" };
    Error::config("log.properties", format!("librdkafka refuses this configuration{hint}")).because(cause)
}

fn upstream(service: String, problem: &str, cause: KafkaError) -> Error {
    let never = [RDKafkaErrorCode::TopicAuthorizationFailed, RDKafkaErrorCode::GroupAuthorizationFailed];
    let retryable = cause.rdkafka_error_code().is_none_or(|code| !never.contains(&code));
    Error::Upstream { service, problem: problem.into(), retryable, source: None }.because(cause)
}
