//! Kafka polling thread. Takes commands, gives batches; never commits offsets unasked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, TrySendError};
use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use souk_native_kafka::FetchQueue;

use super::super::{MessageBatch, Signal};
use super::member::GroupMember;
use super::{KafkaSettings, upstream};
use souk_io::error::{Error, Result};

/// Batches are delivered at this size, or once their first message has waited this long.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_WAIT: Duration = Duration::from_millis(50);
/// Room for a batch and for what comes with its last message.
const BATCH_CAPACITY: usize = BATCH_BYTES + BATCH_BYTES / 8;
/// Divisor of the group's poll interval: the time to wait for a busy consumer before pausing the partitions and polling
/// again. Pausing discards prefetched messages.
const BUSY_DIVISOR: u32 = 4;
/// librdkafka's default.
const POLL_INTERVAL: Duration = Duration::from_secs(300);

pub enum Command {
    Commit(i32, Vec<(String, u64)>),
    Leave,
}

pub struct Poller {
    queue: FetchQueue<GroupMember>,
    consumer: Arc<BaseConsumer<GroupMember>>,
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
        let interval = settings.properties.get("max.poll.interval.ms").and_then(|millis| millis.parse().ok());
        let consumer = Arc::new(consumer);
        Self {
            queue: FetchQueue::new(consumer.clone()),
            consumer,
            commands,
            service: settings.service(),
            follow: settings.follow,
            busy_timeout: interval.map_or(POLL_INTERVAL, Duration::from_millis) / BUSY_DIVISOR,
            generation: 0,
            filling: BTreeMap::new(),
            oldest: None,
            ends: BTreeMap::new(),
            ended: false,
        }
    }

    pub fn run(mut self) {
        if let Err(error) = self.serve() {
            self.consumer.context().send(Err(error));
        }
    }

    fn serve(&mut self) -> Result<()> {
        loop {
            self.poll(BATCH_WAIT)?;
            if !self.run_commands() || !self.deliver_due()? {
                return Ok(());
            }
            self.check_end();
        }
    }

    /// Serves the group's events and adds messages to the batches being filled.
    fn poll(&mut self, wait: Duration) -> Result<()> {
        // with partitions, `fetch` waits
        match self.consumer.poll(if self.consumer.context().has_partitions() { Duration::ZERO } else { wait }) {
            None => {}
            Some(Err(error)) => self.check_error(error)?,
            // every partition is redirected before it is read
            Some(Ok(message)) => {
                let place = format!("{} {} {}", message.topic(), message.partition(), message.offset());
                return Err(Error::device(format!("a message came past its queue: {place}")));
            }
        }
        self.consumer.context().take_offered(&self.consumer, &self.queue)?;
        let now = self.consumer.context().generation();
        if now != self.generation {
            // undelivered messages belong to the lanes' next readers
            self.generation = now;
            self.filling.clear();
            self.ends.clear();
        }
        if self.consumer.context().has_partitions() { self.fetch(wait) } else { Ok(()) }
    }

    fn fetch(&mut self, wait: Duration) -> Result<()> {
        let Self { queue, consumer, filling, ends, .. } = self;
        let member = consumer.context();
        let mut failures = Vec::new();
        queue.consume(wait, |fetched| {
            let partition = fetched.partition();
            match fetched.error() {
                None => {}
                Some(RDKafkaErrorCode::PartitionEOF) => return *ends.entry(partition).or_default() += 1,
                Some(code) => return failures.push(KafkaError::MessageConsumption(code)),
            }
            let batch = filling
                .entry(partition)
                .or_insert_with(|| MessageBatch::with_capacity(member.lane(partition), &member.topics, BATCH_CAPACITY));
            let part = match &*member.topics {
                [_] => 0,
                topics => topics.iter().position(|topic| topic == fetched.topic()).unwrap_or_default(),
            };
            let offset = u64::try_from(fetched.offset()).unwrap_or_default();
            batch.push(fetched.payload(), part, offset, fetched.append_time());
        });
        if !self.filling.is_empty() {
            self.oldest.get_or_insert_with(Instant::now);
        }
        failures.into_iter().try_for_each(|error| self.check_error(error))
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
        let due = |partition: &i32, batch: &MessageBatch| {
            old || batch.num_bytes() >= BATCH_BYTES || (!self.follow && self.is_at_end(*partition))
        };
        let partitions: Vec<i32> = self
            .filling
            .iter()
            .filter(|(partition, batch)| due(partition, batch))
            .map(|(partition, _)| *partition)
            .collect();
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
        if self.follow || self.ended || !self.filling.is_empty() {
            return;
        }
        let member = self.consumer.context();
        if member.partitions().is_some_and(|partitions| partitions.iter().all(|partition| self.is_at_end(*partition))) {
            self.ended = member.send(Ok(Signal::Ended));
        }
    }

    /// Whether all topics are read to the end that this partition had.
    fn is_at_end(&self, partition: i32) -> bool {
        self.ends.get(&partition).is_some_and(|ends| *ends >= self.consumer.context().topics.len())
    }
}
