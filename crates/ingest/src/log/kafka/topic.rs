//! Kafka producer for dead letters (original payload, with origin and reason in headers) and for searches and clicks.
//!
//! Delivery is at least once; `souk.topic`, `souk.lane` and `souk.offset` together identify a duplicate.

use std::sync::Mutex;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders, ToBytes};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::super::DeadLetter;
use super::{KafkaSettings, config_error, upstream};
use souk_io::error::{Error, Result};

const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// Kafka topic to write to.
pub struct Topic {
    producer: BaseProducer<Deliveries>,
    name: String,
    service: String,
}

/// Delivery callback; keeps the first failure until it is taken.
#[derive(Default)]
struct Deliveries {
    failure: Mutex<Option<KafkaError>>,
}

impl ClientContext for Deliveries {
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(reason, "Kafka producer: {error}");
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _opaque: ()) {
        if let Err((error, _)) = result {
            self.failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_with(|| error.clone());
        }
    }
}

impl Topic {
    pub fn open(settings: &KafkaSettings, name: &str) -> Result<Self> {
        let mut client = settings.client();
        client.set("enable.idempotence", "true").set("message.timeout.ms", "20000");
        let producer = client.create_with_context(Deliveries::default()).map_err(config_error)?;
        Ok(Self { producer, name: name.into(), service: settings.service() })
    }

    /// Creates the topic unless it exists, with the brokers' default replication.
    pub async fn create(settings: &KafkaSettings, name: &str, partitions: i32) -> Result<()> {
        let failed = |error: KafkaError| upstream(settings.service(), &format!("cannot create topic `{name}`"), error);
        let admin: AdminClient<DefaultClientContext> = settings.client().create().map_err(config_error)?;
        let new = NewTopic::new(name, partitions, TopicReplication::Fixed(-1));
        let created = admin.create_topics(&[new], &AdminOptions::new()).await.map_err(failed)?;
        match created.into_iter().next() {
            None | Some(Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(()),
            Some(Err((_, code))) => Err(failed(KafkaError::AdminOp(code))),
        }
    }

    /// Sends dead letters; returns once the broker has all of them.
    pub fn send_letters(&self, letters: &[DeadLetter]) -> Result<()> {
        for letter in letters {
            let offset = letter.offset.to_string();
            let header = |key, value| Header { key, value: Some(value) };
            let headers = OwnedHeaders::new()
                .insert(header("souk.topic", letter.part.as_str()))
                .insert(header("souk.lane", letter.lane.as_str()))
                .insert(header("souk.offset", offset.as_str()))
                .insert(header("souk.reason", letter.reason.as_str()));
            self.queue(BaseRecord::to(&self.name).payload(letter.payload.as_str()).headers(headers))?;
        }
        self.flush()
    }

    /// Sends (key, line) pairs; returns once the broker has all of them. Lines of one key stay in order.
    pub fn send(&self, lines: &[(String, Vec<u8>)]) -> Result<()> {
        for (key, line) in lines {
            self.queue(BaseRecord::to(&self.name).key(key.as_str()).payload(line.as_slice()))?;
        }
        self.flush()
    }

    fn queue<P: ToBytes + ?Sized>(&self, mut record: BaseRecord<'_, str, P>) -> Result<()> {
        while let Err((error, unsent)) = self.producer.send(record) {
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(self.failed(error));
            }
            self.producer.poll(Duration::from_millis(100));
            record = unsent;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.producer.flush(FLUSH_TIMEOUT).map_err(|error| self.failed(error))?;
        let failure = self.producer.context().failure.lock().unwrap_or_else(|e| e.into_inner()).take();
        failure.map_or(Ok(()), |error| Err(self.failed(error)))
    }

    fn failed(&self, error: KafkaError) -> Error {
        upstream(self.service.clone(), &format!("cannot send messages to topic `{}`", self.name), error)
    }
}
