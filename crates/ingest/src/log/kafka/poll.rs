//! The thread that polls a broker, and what it does when partitions come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Message};

use super::super::{Batch, Lane, Resume, Signal, Token};
use super::{KafkaSettings, upstream};
use souk_io::error::Result;

/// A batch is handed on when it has this many bytes, or when its first message has waited so long.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_WAIT: Duration = Duration::from_millis(50);
/// Messages between two looks at the clock.
const CHECK_EVERY: usize = 512;
/// How long a busy consumer is waited for, of the time that the group waits for this member to poll, before partitions are
/// paused and polled on. Pausing throws away what was fetched ahead.
const BUSY_SHARE: u32 = 4;
/// librdkafka's default.
const POLL_INTERVAL: Duration = Duration::from_secs(300);
/// How long a lane that goes to another member may take to be finished.
const HANDOVER: Duration = Duration::from_secs(60);

const KAFKA: &str = "Kafka";

pub enum Command {
    Commit(i32, Vec<(String, u64)>),
    Leave,
}

/// What this member of the group does when the group changes.
pub struct Member {
    lanes: String,
    topics: Arc<[String]>,
    signals: SyncSender<Result<Signal>>,
    resume: Resume,
    lag: Arc<AtomicU64>,
    assigned: Mutex<Assigned>,
}

#[derive(Default)]
struct Assigned {
    /// Counts changes.
    generation: u64,
    partitions: Option<BTreeSet<i32>>,
}

impl Member {
    pub fn new(
        (lanes, topics): (String, Arc<[String]>),
        signals: SyncSender<Result<Signal>>,
        resume: Resume,
        lag: Arc<AtomicU64>,
    ) -> Self {
        Self { lanes, topics, signals, resume, lag, assigned: Mutex::default() }
    }

    fn lane(&self, partition: i32) -> Lane {
        Lane::new(&format!("{}-{partition:04}", self.lanes))
    }

    fn assign(&self, consumer: &BaseConsumer<Self>, given: &TopicPartitionList) -> Result<()> {
        let mut list = TopicPartitionList::new();
        let mut positions = BTreeMap::new();
        for element in given.elements() {
            let partition = element.partition();
            if let std::collections::btree_map::Entry::Vacant(place) = positions.entry(partition) {
                place.insert((self.resume)(&self.lane(partition))?.unwrap_or_default());
            }
            let next = positions[&partition].0.get(element.topic()).map_or(Offset::Beginning, |next| {
                // Kafka's own offsets are i64
                Offset::Offset(i64::try_from(*next).unwrap_or(i64::MAX))
            });
            let added = list.add_partition_offset(element.topic(), partition, next);
            added.map_err(|e| upstream(KAFKA.into(), "librdkafka refuses an offset", e))?;
        }
        consumer.assign(&list).map_err(|e| upstream(KAFKA.into(), "librdkafka refuses an assignment", e))?;
        tracing::info!(lanes = self.lanes, ?positions, "partitions came");
        self.change(Some(positions.keys().copied().collect()));
        for (partition, position) in positions {
            self.tell(Ok(Signal::Opened(self.lane(partition), position)));
        }
        Ok(())
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>) -> Result<()> {
        let partitions = self.change(None).unwrap_or_default();
        tracing::info!(lanes = self.lanes, ?partitions, "partitions go");
        let deadline = Instant::now() + HANDOVER;
        // all are told before any is waited for
        let mut waiting = Vec::new();
        for partition in partitions {
            let (token, done) = sync_channel(0);
            self.tell(Ok(Signal::Closed(self.lane(partition), Token(token))));
            waiting.push(done);
        }
        for done in waiting {
            // the token's drop is the message; if it does not come in time, the dataset refuses the late writer
            let _late = done.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err();
        }
        consumer.unassign().map_err(|e| upstream(KAFKA.into(), "librdkafka refuses an assignment", e))
    }

    fn change(&self, partitions: Option<BTreeSet<i32>>) -> Option<BTreeSet<i32>> {
        let mut assigned = self.assigned.lock().unwrap_or_else(|e| e.into_inner());
        assigned.generation += 1;
        std::mem::replace(&mut assigned.partitions, partitions)
    }

    fn generation(&self) -> u64 {
        self.assigned.lock().unwrap_or_else(|e| e.into_inner()).generation
    }

    /// Waits until it is heard: a lane that comes or goes unheard would be read wrongly. False when nobody listens any more.
    fn tell(&self, signal: Result<Signal>) -> bool {
        let mut signal = signal;
        loop {
            signal = match self.signals.try_send(signal) {
                Ok(()) => return true,
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(signal)) => signal,
            };
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl ClientContext for Member {
    fn stats(&self, statistics: Statistics) {
        let partitions = statistics.topics.values().flat_map(|topic| topic.partitions.values());
        let lags =
            partitions.filter(|partition| partition.partition >= 0 && partition.hi_offset >= 0).map(|partition| {
                let read = if partition.app_offset < 0 { partition.next_offset } else { partition.app_offset };
                let next = read.max(partition.lo_offset).max(0);
                (partition.hi_offset - next).max(0) as u64
            });
        self.lag.store(lags.sum(), Ordering::Relaxed);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        tracing::warn!(lanes = self.lanes, reason, "Kafka: {error}");
    }
}

impl ConsumerContext for Member {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let outcome = match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assign(consumer, list),
            _ => self.revoke(consumer),
        };
        if let Err(error) = outcome {
            self.tell(Err(error));
        }
    }
}

pub struct Poller {
    consumer: BaseConsumer<Member>,
    commands: Receiver<Command>,
    service: String,
    follow: bool,
    busy: Duration,
    generation: u64,
    /// By partition.
    filling: BTreeMap<i32, Batch>,
    oldest: Option<Instant>,
    ends: BTreeMap<i32, usize>,
    ended: bool,
}

impl Poller {
    pub fn new(consumer: BaseConsumer<Member>, commands: Receiver<Command>, settings: &KafkaSettings) -> Self {
        let (service, follow) = (settings.service(), settings.follow);
        let (filling, ends) = (BTreeMap::new(), BTreeMap::new());
        let interval = settings.properties.get("max.poll.interval.ms").and_then(|millis| millis.parse().ok());
        let busy = interval.map_or(POLL_INTERVAL, Duration::from_millis) / BUSY_SHARE;
        Self { consumer, commands, service, follow, busy, generation: 0, filling, oldest: None, ends, ended: false }
    }

    pub fn run(mut self) {
        if let Err(error) = self.serve() {
            self.consumer.context().tell(Err(error));
        }
    }

    fn serve(&mut self) -> Result<()> {
        let mut since_check = 0;
        loop {
            let came = self.poll(BATCH_WAIT)?;
            since_check += 1;
            if !came || since_check == CHECK_EVERY {
                since_check = 0;
                if !self.obey() || !self.hand_on()? {
                    return Ok(());
                }
                self.look_for_end();
            }
        }
    }

    /// Whether a message came.
    fn poll(&mut self, wait: Duration) -> Result<bool> {
        let polled = self.consumer.poll(wait);
        let now = self.consumer.context().generation();
        if now != self.generation {
            // what was not handed on belongs to the lanes' next reader
            self.generation = now;
            self.filling.clear();
            self.ends.clear();
        }
        match polled {
            None => Ok(false),
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                *self.ends.entry(partition).or_default() += 1;
                Ok(false)
            }
            Some(Err(error)) => self.judge(error).map(|()| false),
            Some(Ok(message)) => {
                let member = self.consumer.context();
                let part = member.topics.iter().position(|topic| topic == message.topic()).unwrap_or_default();
                let partition = message.partition();
                let batch = self
                    .filling
                    .entry(partition)
                    .or_insert_with(|| Batch::new(member.lane(partition), member.topics.clone()));
                let offset = u64::try_from(message.offset()).unwrap_or_default();
                batch.push(message.payload().unwrap_or_default(), (part, offset, offset + 1));
                let full = batch.num_bytes() >= BATCH_BYTES;
                self.oldest.get_or_insert_with(Instant::now);
                Ok(!full)
            }
        }
    }

    fn judge(&self, error: KafkaError) -> Result<()> {
        use RDKafkaErrorCode as Code;
        let fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
        let problem = match error.rdkafka_error_code() {
            Some(Code::AutoOffsetReset | Code::OffsetOutOfRange) => {
                "messages that were not read yet are gone, deleted by the topic's retention; to go on with what is left: \
                 --set log.on_gap=skip"
            }
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => "a topic has vanished",
            Some(Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed | Code::SaslAuthenticationFailed) => {
                "access is denied: check the user and its rights (log.properties)"
            }
            _ if fatal => "the consumer cannot go on",
            _ => {
                // librdkafka reconnects by itself
                tracing::warn!(service = self.service, "{error}");
                return Ok(());
            }
        };
        Err(upstream(self.service.clone(), problem, error))
    }

    /// Whether to go on.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Commit(partition, offsets)) => {
                    let mut list = TopicPartitionList::new();
                    for (topic, next) in offsets {
                        let next = Offset::Offset(i64::try_from(next).unwrap_or(i64::MAX));
                        // an offset that is refused is only not shown
                        drop(list.add_partition_offset(&topic, partition, next));
                    }
                    if let Err(error) = self.consumer.commit(&list, CommitMode::Async) {
                        tracing::debug!("offsets are not shown at the broker: {error}");
                    }
                }
                Ok(Command::Leave) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Hands on what is full or old enough. Whether to go on.
    fn hand_on(&mut self) -> Result<bool> {
        let old = self.oldest.is_some_and(|oldest| oldest.elapsed() >= BATCH_WAIT);
        let due = |batch: &Batch| old || batch.num_bytes() >= BATCH_BYTES;
        let partitions: Vec<i32> = self.filling.iter().filter(|(_, batch)| due(batch)).map(|(p, _)| *p).collect();
        if old {
            self.oldest = None;
        }
        for partition in partitions {
            if let Some(batch) = self.filling.remove(&partition)
                && !self.deliver(batch)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for a busy consumer, and when that takes long, pauses and goes on polling, or the group would give this
    /// member's partitions to others.
    fn deliver(&mut self, batch: Batch) -> Result<bool> {
        let generation = self.generation;
        let mut signal = Ok(Signal::Batch(batch));
        let patience = Instant::now() + self.busy;
        let mut paused = None;
        let heard = loop {
            signal = match self.consumer.context().signals.try_send(signal) {
                Ok(()) => break true,
                Err(TrySendError::Disconnected(_)) => break false,
                Err(TrySendError::Full(signal)) => signal,
            };
            if Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            if paused.is_none() {
                paused = self.consumer.assignment().ok();
                drop(paused.as_ref().map(|list| self.consumer.pause(list)));
            }
            self.poll(Duration::from_millis(100))?;
            if !self.obey() {
                break false;
            }
            if self.generation != generation {
                // the lane is another's now, and so is this batch
                break true;
            }
        };
        drop(paused.map(|list| self.consumer.resume(&list)));
        Ok(heard)
    }

    /// A source that does not follow ends when every partition has been read to its end.
    fn look_for_end(&mut self) {
        let member = self.consumer.context();
        if self.follow || self.ended || !self.filling.is_empty() {
            return;
        }
        let assigned = member.assigned.lock().unwrap_or_else(|e| e.into_inner()).partitions.clone();
        let topics = member.topics.len();
        let at_end = |partition: &i32| self.ends.get(partition).is_some_and(|ends| *ends >= topics);
        if assigned.is_some_and(|partitions| partitions.iter().all(at_end)) {
            self.ended = member.tell(Ok(Signal::Ended));
        }
    }
}
