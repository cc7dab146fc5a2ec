//! The topic for dead letters: what could not be used, as it came, with where it came from and why in its headers.
//!
//! A letter is sent at least once; `souk.topic`, `souk.lane` and `souk.offset` together tell a repetition.

use std::sync::Mutex;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::super::DeadLetter;
use super::{KafkaSettings, refused, upstream};
use crate::error::Result;

const PATIENCE: Duration = Duration::from_secs(30);

pub struct DeadLetterTopic {
    producer: BaseProducer<Deliveries>,
    topic: String,
    service: String,
}

/// Keeps the first failure until it is asked for.
#[derive(Default)]
struct Deliveries {
    failure: Mutex<Option<KafkaError>>,
}

impl ClientContext for Deliveries {
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(reason, "Kafka, dead letters: {error}");
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

impl DeadLetterTopic {
    pub fn open(settings: &KafkaSettings, topic: &str) -> Result<Self> {
        let mut client = settings.client();
        client.set("enable.idempotence", "true").set("message.timeout.ms", "20000");
        let producer = client.create_with_context(Deliveries::default()).map_err(refused)?;
        Ok(Self { producer, topic: topic.into(), service: settings.service() })
    }

    /// Returns when the broker has them all.
    pub fn send(&self, letters: &[DeadLetter]) -> Result<()> {
        let failed =
            |error| upstream(self.service.clone(), &format!("dead letters do not reach `{}`", self.topic), error);
        for letter in letters {
            let offset = letter.offset.to_string();
            let header = |key, value| Header { key, value: Some(value) };
            let headers = OwnedHeaders::new()
                .insert(header("souk.topic", letter.part.as_str()))
                .insert(header("souk.lane", letter.lane.as_str()))
                .insert(header("souk.offset", offset.as_str()))
                .insert(header("souk.reason", letter.reason.as_str()));
            let mut record: BaseRecord<'_, str, str> =
                BaseRecord::to(&self.topic).payload(letter.payload.as_str()).headers(headers);
            while let Err((error, again)) = self.producer.send(record) {
                if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                    return Err(failed(error));
                }
                self.producer.poll(Duration::from_millis(100));
                record = again;
            }
        }
        self.producer.flush(PATIENCE).map_err(failed)?;
        let failure = self.producer.context().failure.lock().unwrap_or_else(|e| e.into_inner()).take();
        failure.map_or(Ok(()), |error| Err(failed(error)))
    }
}
