//! Kafka polling thread and its handling of partition rebalances. Takes commands, gives signals; never commits offsets
//! unasked.

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

use super::super::{HandoverToken, Lane, MessageBatch, Resume, Signal};
use super::{KafkaSettings, upstream};
use souk_io::error::Result;

/// Batches are delivered at this size, or once their first message has waited this long.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_WAIT: Duration = Duration::from_millis(50);
/// Messages between two clock checks.
const CHECK_EVERY: usize = 512;
/// Divisor of the group's poll interval: the time to wait for a busy consumer before pausing the partitions and polling
/// again. Pausing discards prefetched messages.
const BUSY_DIVISOR: u32 = 4;
/// librdkafka's default.
const POLL_INTERVAL: Duration = Duration::from_secs(300);
/// Time limit for committing a lane that moves to another member.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);

const KAFKA: &str = "Kafka";

pub enum Command {
    Commit(i32, Vec<(String, u64)>),
    Leave,
}

/// Consumer group member; handles rebalances.
pub struct GroupMember {
    lanes: String,
    topics: Arc<[String]>,
    signals: SyncSender<Result<Signal>>,
    resume: Resume,
    lag: Arc<AtomicU64>,
    assignment: Mutex<Assignment>,
}

#[derive(Default)]
struct Assignment {
    /// Number of changes so far.
    generation: u64,
    partitions: Option<BTreeSet<i32>>,
}

impl GroupMember {
    pub fn new(
        lanes: String,
        topics: Arc<[String]>,
        signals: SyncSender<Result<Signal>>,
        resume: Resume,
        lag: Arc<AtomicU64>,
    ) -> Self {
        Self { lanes, topics, signals, resume, lag, assignment: Mutex::default() }
    }

    fn lane(&self, partition: i32) -> Lane {
        Lane::new(&format!("{}-{partition:04}", self.lanes))
    }

    fn assign(&self, consumer: &BaseConsumer<Self>, assigned: &TopicPartitionList) -> Result<()> {
        let mut list = TopicPartitionList::new();
        let mut positions = BTreeMap::new();
        for element in assigned.elements() {
            let partition = element.partition();
            if let std::collections::btree_map::Entry::Vacant(place) = positions.entry(partition) {
                place.insert((self.resume)(&self.lane(partition))?.unwrap_or_default());
            }
            let next = positions[&partition].0.get(element.topic()).map_or(Offset::Beginning, |next| {
                // Kafka offsets are i64
                Offset::Offset(i64::try_from(*next).unwrap_or(i64::MAX))
            });
            let added = list.add_partition_offset(element.topic(), partition, next);
            added.map_err(|e| upstream(KAFKA.into(), "librdkafka rejects an offset", e))?;
        }
        consumer.assign(&list).map_err(|e| upstream(KAFKA.into(), "librdkafka rejects an assignment", e))?;
        tracing::info!(lanes = self.lanes, ?positions, "partitions assigned");
        self.set_partitions(Some(positions.keys().copied().collect()));
        for (partition, position) in positions {
            self.send(Ok(Signal::Opened(self.lane(partition), position)));
        }
        Ok(())
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>) -> Result<()> {
        let partitions = self.set_partitions(None).unwrap_or_default();
        tracing::info!(lanes = self.lanes, ?partitions, "partitions revoked");
        let deadline = Instant::now() + HANDOVER_TIMEOUT;
        // notify all lanes before waiting for any
        let mut waiting = Vec::new();
        for partition in partitions {
            let (token, done) = sync_channel(0);
            self.send(Ok(Signal::Closed(self.lane(partition), HandoverToken(token))));
            waiting.push(done);
        }
        for done in waiting {
            // dropping the token ends the wait; after the timeout, the dataset rejects the late writer
            let _late = done.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err();
        }
        consumer.unassign().map_err(|e| upstream(KAFKA.into(), "librdkafka rejects an assignment", e))
    }

    fn set_partitions(&self, partitions: Option<BTreeSet<i32>>) -> Option<BTreeSet<i32>> {
        let mut assignment = self.assignment.lock().unwrap_or_else(|e| e.into_inner());
        assignment.generation += 1;
        std::mem::replace(&mut assignment.partitions, partitions)
    }

    fn generation(&self) -> u64 {
        self.assignment.lock().unwrap_or_else(|e| e.into_inner()).generation
    }

    /// Blocks until the signal is queued, because a lost open or close would corrupt the lane. Returns false if the
    /// receiver is gone.
    fn send(&self, signal: Result<Signal>) -> bool {
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

impl ClientContext for GroupMember {
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

impl ConsumerContext for GroupMember {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let outcome = match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assign(consumer, list),
            _ => self.revoke(consumer),
        };
        if let Err(error) = outcome {
            self.send(Err(error));
        }
    }
}

pub struct Poller {
    consumer: BaseConsumer<GroupMember>,
    commands: Receiver<Command>,
    service: String,
    follow: bool,
    busy_timeout: Duration,
    generation: u64,
    /// Batches being filled, by partition.
    filling: BTreeMap<i32, MessageBatch>,
    oldest: Option<Instant>,
    ends: BTreeMap<i32, usize>,
    ended: bool,
}

impl Poller {
    pub fn new(consumer: BaseConsumer<GroupMember>, commands: Receiver<Command>, settings: &KafkaSettings) -> Self {
        let (service, follow) = (settings.service(), settings.follow);
        let (filling, ends) = (BTreeMap::new(), BTreeMap::new());
        let interval = settings.properties.get("max.poll.interval.ms").and_then(|millis| millis.parse().ok());
        let busy_timeout = interval.map_or(POLL_INTERVAL, Duration::from_millis) / BUSY_DIVISOR;
        Self {
            consumer,
            commands,
            service,
            follow,
            busy_timeout,
            generation: 0,
            filling,
            oldest: None,
            ends,
            ended: false,
        }
    }

    pub fn run(mut self) {
        if let Err(error) = self.serve() {
            self.consumer.context().send(Err(error));
        }
    }

    fn serve(&mut self) -> Result<()> {
        let mut since_check = 0;
        loop {
            let is_filling = self.poll(BATCH_WAIT)?;
            since_check += 1;
            if !is_filling || since_check == CHECK_EVERY {
                since_check = 0;
                if !self.run_commands() || !self.deliver_due()? {
                    return Ok(());
                }
                self.check_end();
            }
        }
    }

    /// Returns true if a message came and its batch is not full.
    fn poll(&mut self, wait: Duration) -> Result<bool> {
        let polled = self.consumer.poll(wait);
        let now = self.consumer.context().generation();
        if now != self.generation {
            // undelivered messages belong to the lanes' next readers
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
            Some(Err(error)) => self.check_error(error).map(|()| false),
            Some(Ok(message)) => {
                let member = self.consumer.context();
                let part = member.topics.iter().position(|topic| topic == message.topic()).unwrap_or_default();
                let partition = message.partition();
                let batch = self
                    .filling
                    .entry(partition)
                    .or_insert_with(|| MessageBatch::new(member.lane(partition), member.topics.clone()));
                let offset = u64::try_from(message.offset()).unwrap_or_default();
                batch.push(message.payload().unwrap_or_default(), part, offset, offset + 1);
                let is_full = batch.num_bytes() >= BATCH_BYTES;
                self.oldest.get_or_insert_with(Instant::now);
                Ok(!is_full)
            }
        }
    }

    /// Fails on permanent errors and logs the others.
    fn check_error(&self, error: KafkaError) -> Result<()> {
        use RDKafkaErrorCode as Code;
        let fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
        let problem = match error.rdkafka_error_code() {
            Some(Code::AutoOffsetReset | Code::OffsetOutOfRange) => {
                "unread messages were deleted by the topic's retention; to continue with the remaining messages, pass \
                 --set log.on_gap=skip"
            }
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => "a topic no longer exists",
            Some(Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed | Code::SaslAuthenticationFailed) => {
                "access denied: check the user and its permissions (log.properties)"
            }
            _ if fatal => "the consumer failed permanently: restart it",
            _ => {
                // librdkafka reconnects automatically
                tracing::warn!(service = self.service, "{error}");
                return Ok(());
            }
        };
        Err(upstream(self.service.clone(), problem, error))
    }

    /// Runs pending commands; returns false to stop.
    fn run_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Commit(partition, offsets)) => {
                    let mut list = TopicPartitionList::new();
                    for (topic, next) in offsets {
                        let next = Offset::Offset(i64::try_from(next).unwrap_or(i64::MAX));
                        // a rejected offset only goes unreported
                        drop(list.add_partition_offset(&topic, partition, next));
                    }
                    if let Err(error) = self.consumer.commit(&list, CommitMode::Async) {
                        tracing::debug!("cannot commit offsets to the broker: {error}");
                    }
                }
                Ok(Command::Leave) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Delivers batches that are full or old enough; returns false to stop.
    fn deliver_due(&mut self) -> Result<bool> {
        let old = self.oldest.is_some_and(|oldest| oldest.elapsed() >= BATCH_WAIT);
        let due = |batch: &MessageBatch| old || batch.num_bytes() >= BATCH_BYTES;
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

    /// Waits for a busy consumer. After a timeout, pauses the partitions and keeps polling, or the group would reassign
    /// them. Returns false to stop.
    fn deliver(&mut self, batch: MessageBatch) -> Result<bool> {
        let generation = self.generation;
        let mut signal = Ok(Signal::Batch(batch));
        let deadline = Instant::now() + self.busy_timeout;
        let mut paused = None;
        let is_delivered = loop {
            signal = match self.consumer.context().signals.try_send(signal) {
                Ok(()) => break true,
                Err(TrySendError::Disconnected(_)) => break false,
                Err(TrySendError::Full(signal)) => signal,
            };
            if Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            if paused.is_none() {
                paused = self.consumer.assignment().ok();
                drop(paused.as_ref().map(|list| self.consumer.pause(list)));
            }
            self.poll(Duration::from_millis(100))?;
            if !self.run_commands() {
                break false;
            }
            if self.generation != generation {
                // the lane moved to another member, which rereads this batch
                break true;
            }
        };
        drop(paused.map(|list| self.consumer.resume(&list)));
        Ok(is_delivered)
    }

    /// Sends `Ended` once every partition is read to its end, unless the source follows its log.
    fn check_end(&mut self) {
        let member = self.consumer.context();
        if self.follow || self.ended || !self.filling.is_empty() {
            return;
        }
        let assigned = member.assignment.lock().unwrap_or_else(|e| e.into_inner()).partitions.clone();
        let topics = member.topics.len();
        let at_end = |partition: &i32| self.ends.get(partition).is_some_and(|ends| *ends >= topics);
        if assigned.is_some_and(|partitions| partitions.iter().all(at_end)) {
            self.ended = member.send(Ok(Signal::Ended));
        }
    }
}
