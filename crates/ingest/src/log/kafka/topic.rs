//! Topics that are written to: dead letters, as they came, with where they came from and why in their headers; and searches
//! and clicks.
//!
//! A letter is sent at least once; `souk.topic`, `souk.lane` and `souk.offset` together tell a repetition.

use std::sync::Mutex;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders, ToBytes};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::super::DeadLetter;
use super::{KafkaSettings, refused, upstream};
use souk_io::error::{Error, Result};

const PATIENCE: Duration = Duration::from_secs(30);

pub struct Topic {
    producer: BaseProducer<Deliveries>,
    name: String,
    service: String,
}

/// Keeps the first failure until it is asked for.
#[derive(Default)]
struct Deliveries {
    failure: Mutex<Option<KafkaError>>,
}

impl ClientContext for Deliveries {
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(reason, "Kafka, writing: {error}");
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            self.failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_with(|| error.clone());
        }
    }
}

impl Topic {
    pub fn open(settings: &KafkaSettings, name: &str) -> Result<Self> {
        let mut client = settings.client();
        client.set("enable.idempotence", "true").set("message.timeout.ms", "20000");
        let producer = client.create_with_context(Deliveries::default()).map_err(refused)?;
        Ok(Self { producer, name: name.into(), service: settings.service() })
    }

    /// Makes a topic where there is none, with as many copies as the brokers keep by default.
    pub async fn make(settings: &KafkaSettings, name: &str, partitions: i32) -> Result<()> {
        let failed = |error: KafkaError| upstream(settings.service(), &format!("`{name}` cannot be made"), error);
        let admin: AdminClient<DefaultClientContext> = settings.client().create().map_err(refused)?;
        let new = NewTopic::new(name, partitions, TopicReplication::Fixed(-1));
        let made = admin.create_topics(&[new], &AdminOptions::new()).await.map_err(failed)?;
        match made.into_iter().next() {
            None | Some(Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(()),
            Some(Err((_, code))) => Err(failed(KafkaError::AdminOp(code))),
        }
    }

    /// Returns when the broker has all letters.
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
        self.settle()
    }

    /// Returns when the broker has all lines; those of one key stay in their order.
    pub fn send(&self, lines: &[(String, Vec<u8>)]) -> Result<()> {
        for (key, line) in lines {
            self.queue(BaseRecord::to(&self.name).key(key.as_str()).payload(line.as_slice()))?;
        }
        self.settle()
    }

    fn queue<P: ToBytes + ?Sized>(&self, mut record: BaseRecord<'_, str, P>) -> Result<()> {
        while let Err((error, again)) = self.producer.send(record) {
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(self.failed(error));
            }
            self.producer.poll(Duration::from_millis(100));
            record = again;
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.producer.flush(PATIENCE).map_err(|error| self.failed(error))?;
        let failure = self.producer.context().failure.lock().unwrap_or_else(|e| e.into_inner()).take();
        failure.map_or(Ok(()), |error| Err(self.failed(error)))
    }

    fn failed(&self, error: KafkaError) -> Error {
        upstream(self.service.clone(), &format!("messages do not reach `{}`", self.name), error)
    }
}
