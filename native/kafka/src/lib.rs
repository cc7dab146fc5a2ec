//! Reads messages of a Kafka consumer in batches. The safe interface of rdkafka reads one at a time, and each read takes a
//! lock, an allocation and three looks at the clock.
//!
//! Takes a consumer and partitions, gives messages in place. Never serves the consumer's own events: keep polling it for
//! rebalances, errors and statistics.
#![deny(missing_docs)]

use std::ffi::{CStr, CString};
use std::os::raw::c_void;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::bindings as rd;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{IsError, RDKafkaErrorCode};

/// Upper bound of the messages taken at once.
const BATCH: usize = 1024;

/// Queue with the messages of chosen partitions of one consumer, in the order of each partition.
pub struct FetchQueue<C: ConsumerContext + 'static> {
    queue: NonNull<rd::rd_kafka_queue_t>,
    batch: Vec<*mut rd::rd_kafka_message_t>,
    /// Outlives the queue, which is a part of it.
    consumer: Arc<BaseConsumer<C>>,
}

// SAFETY: librdkafka's queues may be used from any thread; `batch` is empty between calls, and the consumer is Send and Sync.
unsafe impl<C: ConsumerContext + 'static> Send for FetchQueue<C> {}

/// Message, or error of a partition, in librdkafka's memory.
pub struct Fetched<'a> {
    message: &'a rd::rd_kafka_message_t,
}

impl<C: ConsumerContext + 'static> FetchQueue<C> {
    /// Makes a queue without partitions.
    pub fn new(consumer: Arc<BaseConsumer<C>>) -> Self {
        // SAFETY: the consumer is alive.
        let queue = unsafe { rd::rd_kafka_queue_new(consumer.client().native_ptr()) };
        let queue = NonNull::new(queue).expect("librdkafka aborts if it has no memory");
        Self { queue, batch: Vec::with_capacity(BATCH), consumer }
    }

    /// Sends the partition's messages to this queue instead of the consumer. Call it before each assignment of the
    /// partition, so that none goes to the consumer. Returns false if the topic's name is invalid.
    pub fn redirect(&self, topic: &str, partition: i32) -> bool {
        let Ok(topic) = CString::new(topic) else { return false };
        let client = self.consumer.client().native_ptr();
        // SAFETY: the consumer is alive, and the name ends with a zero byte.
        let Some(source) = NonNull::new(unsafe { rd::rd_kafka_queue_get_partition(client, topic.as_ptr(), partition) })
        else {
            return false;
        };
        // SAFETY: both queues are alive; librdkafka keeps the target alive as long as it forwards to it.
        unsafe {
            rd::rd_kafka_queue_forward(source.as_ptr(), self.queue.as_ptr());
            rd::rd_kafka_queue_destroy(source.as_ptr());
        }
        true
    }

    /// Calls `take` with each message that is ready, or waits for one. Messages fetched before a partition was revoked are
    /// dropped. Returns how many there were.
    pub fn consume(&mut self, wait: Duration, mut take: impl FnMut(Fetched<'_>)) -> usize {
        let mut ready = Taken(&mut self.batch);
        ready.fill(self.queue, Duration::ZERO, BATCH);
        if ready.0.is_empty() {
            ready.fill(self.queue, wait, 1);
        }
        for message in ready.0.iter() {
            // SAFETY: librdkafka returned a valid message, which lives until `ready` is dropped.
            take(Fetched { message: unsafe { &**message } });
        }
        ready.0.len()
    }
}

impl<C: ConsumerContext + 'static> Drop for FetchQueue<C> {
    fn drop(&mut self) {
        // SAFETY: made by `rd_kafka_queue_new` and not used again.
        unsafe { rd::rd_kafka_queue_destroy(self.queue.as_ptr()) }
    }
}

/// Messages to be released, even if a caller's function panics.
struct Taken<'a>(&'a mut Vec<*mut rd::rd_kafka_message_t>);

impl Taken<'_> {
    fn fill(&mut self, queue: NonNull<rd::rd_kafka_queue_t>, wait: Duration, size: usize) {
        let millis = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the queue is alive, and the vector has room for `size` pointers.
        let num = unsafe { rd::rd_kafka_consume_batch_queue(queue.as_ptr(), millis, self.0.as_mut_ptr(), size) };
        // SAFETY: librdkafka wrote that many pointers; it returns -1 only for other kinds of queues.
        unsafe { self.0.set_len(usize::try_from(num).unwrap_or_default().min(size)) }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for message in self.0.drain(..) {
            // SAFETY: each message is released once, and nothing refers to it any more.
            unsafe { rd::rd_kafka_message_destroy(message) }
        }
    }
}

impl<'a> Fetched<'a> {
    /// Why there is no message; `PartitionEOF` at the end of the partition.
    pub fn error(&self) -> Option<RDKafkaErrorCode> {
        self.message.err.is_error().then(|| self.message.err.into())
    }

    /// Number of the partition.
    pub fn partition(&self) -> i32 {
        self.message.partition
    }

    /// Position in the partition.
    pub fn offset(&self) -> i64 {
        self.message.offset
    }

    /// Name of the topic; empty for an error without one.
    pub fn topic(&self) -> &'a str {
        if self.message.rkt.is_null() {
            return "";
        }
        // SAFETY: the message keeps its topic alive, whose name ends with a zero byte.
        let name = unsafe { CStr::from_ptr(rd::rd_kafka_topic_name(self.message.rkt)) };
        name.to_str().unwrap_or_default()
    }

    /// Time at which the broker appended the message, in milliseconds since 1970, if the topic keeps that instead of the producer's time.
    pub fn append_time(&self) -> Option<i64> {
        let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is valid, and the function writes the kind of its time.
        let time = unsafe { rd::rd_kafka_message_timestamp(self.message, &raw mut kind) };
        (kind == rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME).then_some(time)
    }

    /// The message; empty if it has no payload.
    pub fn payload(&self) -> &'a [u8] {
        let (start, length): (*const c_void, usize) = (self.message.payload, self.message.len);
        if start.is_null() || length == 0 {
            return &[];
        }
        // SAFETY: librdkafka keeps `len` bytes alive with the message.
        unsafe { slice::from_raw_parts(start.cast(), length) }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    use rdkafka::{ClientConfig, Offset, TopicPartitionList};

    use super::*;

    const NUM: i64 = 3000;
    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Consumer of a topic with `NUM` messages in each of two partitions, and a queue that it has assigned to both.
    fn fetching(address: &str) -> (Arc<BaseConsumer>, FetchQueue<rdkafka::consumer::DefaultConsumerContext>) {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", address);
        let producer: BaseProducer = client.create().unwrap();
        for number in 0..2 * NUM {
            let payload = (number / 2).to_string();
            let record = BaseRecord::<(), _>::to("log").partition((number % 2) as i32).payload(&payload);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(TIMEOUT).unwrap();
        client.set("group.id", "test").set("enable.partition.eof", "true").set("enable.auto.commit", "false");
        let consumer: Arc<BaseConsumer> = Arc::new(client.create().unwrap());
        let queue = FetchQueue::new(consumer.clone());
        let mut list = TopicPartitionList::new();
        for partition in 0..2 {
            list.add_partition_offset("log", partition, Offset::Beginning).unwrap();
            assert!(queue.redirect("log", partition));
        }
        consumer.assign(&list).unwrap();
        (consumer, queue)
    }

    #[test]
    fn gives_each_partition_in_order_and_nothing_to_the_consumer() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("log", 2, 1).unwrap();
        let (consumer, mut queue) = fetching(&cluster.bootstrap_servers());
        let (mut next, mut num_ends) = ([0; 2], 0);
        let begin = std::time::Instant::now();
        while num_ends < 2 && begin.elapsed() < TIMEOUT {
            assert!(consumer.poll(Duration::ZERO).is_none());
            queue.consume(Duration::from_millis(50), |fetched| match fetched.error() {
                None => {
                    let next = &mut next[fetched.partition() as usize];
                    assert_eq!((fetched.topic(), fetched.offset()), ("log", *next));
                    assert_eq!(fetched.payload(), next.to_string().as_bytes());
                    *next += 1;
                }
                Some(error) => {
                    assert_eq!(error, RDKafkaErrorCode::PartitionEOF);
                    num_ends += 1;
                }
            });
        }
        assert_eq!((next, num_ends), ([NUM; 2], 2));
        assert!(!queue.redirect("a\0b", 0));
    }

    #[test]
    fn can_be_dropped_with_messages_before_and_after_the_consumer() {
        for is_queue_first in [true, false] {
            let cluster = MockCluster::new(1).unwrap();
            cluster.create_topic("log", 2, 1).unwrap();
            let (consumer, mut queue) = fetching(&cluster.bootstrap_servers());
            while queue.consume(Duration::from_millis(50), |_| {}) == 0 {}
            if is_queue_first {
                drop(queue);
                drop(consumer);
            } else {
                drop(consumer);
                drop(queue);
            }
        }
    }
}
