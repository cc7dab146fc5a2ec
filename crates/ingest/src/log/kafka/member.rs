//! Consumer group member: opens and closes lanes as partitions come and go. Never reads messages or commits offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use souk_native_kafka::FetchQueue;

use super::super::{HandoverToken, Lane, Resume, Signal};
use super::upstream;
use souk_io::error::{Error, Result};

/// Time limit for committing a lane that moves to another member.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);

const KAFKA: &str = "Kafka";

/// Consumer group member; handles rebalances.
pub struct GroupMember {
    lanes: String,
    pub topics: Arc<[String]>,
    pub signals: SyncSender<Result<Signal>>,
    resume: Resume,
    lag: Arc<AtomicU64>,
    assignment: Mutex<Assignment>,
}

#[derive(Default)]
struct Assignment {
    /// Number of changes so far.
    generation: u64,
    partitions: Option<BTreeSet<i32>>,
    /// Partitions that the group gave to this member, and that it has not taken yet.
    offered: Option<TopicPartitionList>,
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

    pub fn lane(&self, partition: i32) -> Lane {
        Lane::new(&format!("{}-{partition:04}", self.lanes))
    }

    /// Takes the partitions that the last poll offered, if any, and sends their messages to `queue`.
    pub fn take_offered(&self, consumer: &BaseConsumer<Self>, queue: &FetchQueue<Self>) -> Result<()> {
        let offered = self.locked().offered.take();
        offered.map_or(Ok(()), |offered| self.assign(consumer, queue, &offered))
    }

    fn assign(
        &self,
        consumer: &BaseConsumer<Self>,
        queue: &FetchQueue<Self>,
        assigned: &TopicPartitionList,
    ) -> Result<()> {
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
            if !queue.redirect(element.topic(), partition) {
                return Err(Error::device(format!("cannot read partition {partition} of {}", element.topic())));
            }
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
        let mut assignment = self.locked();
        assignment.generation += 1;
        assignment.offered = None;
        std::mem::replace(&mut assignment.partitions, partitions)
    }

    fn locked(&self) -> MutexGuard<'_, Assignment> {
        self.assignment.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Number of changes of the assignment so far.
    pub fn generation(&self) -> u64 {
        self.locked().generation
    }

    pub fn has_partitions(&self) -> bool {
        self.locked().partitions.as_ref().is_some_and(|partitions| !partitions.is_empty())
    }

    /// Assigned partitions; `None` before an assignment.
    pub fn partitions(&self) -> Option<BTreeSet<i32>> {
        self.locked().partitions.clone()
    }

    /// Blocks until the signal is queued, because a lost open or close would corrupt the lane. Returns false if the
    /// receiver is gone.
    pub fn send(&self, signal: Result<Signal>) -> bool {
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
        tracing::warn!(lanes = self.lanes, reason, "Kafka: {error}");
    }
}

impl ConsumerContext for GroupMember {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.locked().offered = Some(list.clone());
        } else if let Err(error) = self.revoke(consumer) {
            self.send(Err(error));
        }
    }
}
