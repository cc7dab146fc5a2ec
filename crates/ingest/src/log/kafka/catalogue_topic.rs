//! The catalogue stream in a Kafka topic with one partition and compaction. The key of a record is the item's id, with the
//! names of the fields after a NUL if it updates only those; the value is the mutation's JSON. Deletions have a value too:
//! a record without one is understood, but compaction removes it after a day, and whoever was away longer would miss it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, ProducerContext};
use rdkafka::{ClientContext, Message, Offset, TopicPartitionList};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{KafkaSettings, config_error, upstream};
use souk_io::catalogue_stream::{CatalogueStream, Mutation, StreamPage, lost_stream};
use souk_io::error::{Answer, Error, Result};

/// Time limit for the broker's answer to a question.
const ANSWER: Duration = Duration::from_secs(3);
/// Time limit for records to be written; a request waits longer.
const WRITE_MS: &str = "4000";
const POLICY: &str = "cleanup.policy";

/// A compacted topic with the catalogue's changes; the position of a record is its offset plus one.
pub struct CatalogueTopic(Arc<Clients>);

struct Clients {
    settings: KafkaSettings,
    topic: String,
    /// Set once the topic was found fit, or created.
    checked: OnceCell<()>,
    /// One call at a time writes, so the records of a call stay together.
    producer: Mutex<BaseProducer<Deliveries>>,
    reader: Mutex<Reader>,
}

struct Reader {
    consumer: BaseConsumer,
    /// Offset that the next record read has at least; None before the partition is assigned.
    next: Option<u64>,
}

/// The records of one call that the broker has not confirmed yet.
#[derive(Default)]
struct Call {
    num_pending: usize,
    last_offset: i64,
    failure: Option<KafkaError>,
}

/// Receives the broker's confirmations.
struct Deliveries;

impl ClientContext for Deliveries {
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(reason, "Kafka producer: {error}");
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Arc<Mutex<Call>>;

    fn delivery(&self, result: &DeliveryResult<'_>, call: Self::DeliveryOpaque) {
        let mut call = lock(&call);
        call.num_pending -= 1;
        match result {
            Ok(message) => call.last_offset = call.last_offset.max(message.offset()),
            Err((error, _)) => drop(call.failure.get_or_insert_with(|| error.clone())),
        }
    }
}

impl CatalogueTopic {
    /// Does not connect yet. `settings` has the brokers and their properties.
    pub fn new(settings: KafkaSettings, topic: &str) -> Result<Self> {
        let mut client = settings.client();
        client.set("enable.idempotence", "true").set("message.timeout.ms", WRITE_MS).set("linger.ms", "1");
        let producer = Mutex::new(client.create_with_context(Deliveries).map_err(config_error)?);
        let mut client = settings.client();
        client.set("group.id", "souk-catalogue").set("enable.auto.commit", "false");
        client.set("auto.offset.reset", "error").set("fetch.wait.max.ms", "100");
        let reader = Mutex::new(Reader { consumer: client.create().map_err(config_error)?, next: None });
        let (topic, checked) = (topic.to_owned(), OnceCell::new());
        Ok(Self(Arc::new(Clients { settings, topic, checked, producer, reader })))
    }
}

impl CatalogueStream for CatalogueTopic {
    /// A topic that was deleted and created again under its name is not told apart.
    fn id(&self) -> Answer<'_, String> {
        Box::pin(async move { Ok(format!("topic {}", self.0.topic)) })
    }

    fn append<'a>(&'a self, mutations: &'a [Mutation]) -> Answer<'a, u64> {
        Box::pin(async move {
            mutations.iter().try_for_each(Mutation::check)?;
            self.0.check().await?;
            let (clients, mutations) = (self.0.clone(), mutations.to_vec());
            spawn_blocking(move || clients.append(&mutations)).await.map_err(interrupted)?
        })
    }

    fn read(&self, after: u64, limit: usize, patience: Duration) -> Answer<'_, StreamPage> {
        Box::pin(async move {
            self.0.check().await?;
            let clients = self.0.clone();
            spawn_blocking(move || clients.read(after, limit, patience)).await.map_err(interrupted)?
        })
    }
}

impl Clients {
    /// Creates the topic unless it exists, and checks that it has one partition and keeps the last record of each key.
    async fn check(self: &Arc<Self>) -> Result<()> {
        let check = async || {
            let admin: AdminClient<DefaultClientContext> = self.settings.client().create().map_err(config_error)?;
            let options = AdminOptions::new().request_timeout(Some(ANSWER));
            if self.num_partitions().await? == 0 {
                let new = NewTopic::new(&self.topic, 1, TopicReplication::Fixed(-1)).set(POLICY, "compact");
                let created = admin.create_topics(&[new], &options).await.map_err(|e| self.failed("create it", e))?;
                match created.into_iter().next() {
                    None | Some(Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => {}
                    Some(Err((_, code))) => return Err(self.failed("create it", KafkaError::AdminOp(code))),
                }
            }
            let (began, mut num) = (Instant::now(), self.num_partitions().await?);
            // the broker may have created it without telling others yet
            while num == 0 && began.elapsed() < ANSWER {
                sleep(Duration::from_millis(100)).await;
                num = self.num_partitions().await?;
            }
            if num != 1 {
                let problem = format!(
                    "topic `{}` has {num} partitions, which have no common order: create it with one",
                    self.topic
                );
                return Err(Error::config("catalogue.topic", problem));
            }
            let found = admin.describe_configs(&[ResourceSpecifier::Topic(&self.topic)], &options).await;
            let found = found.map_err(|e| self.failed("read its settings", e))?;
            let policy = found.iter().flatten().find_map(|found| found.get(POLICY)?.value.clone());
            if policy.as_deref() != Some("compact") {
                let policy = policy.unwrap_or_default();
                let problem = format!(
                    "topic `{}` has {POLICY}={policy}, which deletes the catalogue: set it to compact",
                    self.topic
                );
                return Err(Error::config("catalogue.topic", problem));
            }
            Ok(())
        };
        self.checked.get_or_try_init(check).await.copied()
    }

    /// 0 if there is no such topic, or not yet.
    async fn num_partitions(self: &Arc<Self>) -> Result<usize> {
        let clients = self.clone();
        let find = move || {
            let found = lock(&clients.reader).consumer.fetch_metadata(Some(&clients.topic), ANSWER);
            let found = found.map_err(|e| clients.failed("find it", e))?;
            Ok(found.topics().first().map_or(0, |topic| topic.partitions().len()))
        };
        spawn_blocking(find).await.map_err(interrupted)?
    }

    fn append(&self, mutations: &[Mutation]) -> Result<u64> {
        let producer = lock(&self.producer);
        let call = Arc::new(Mutex::new(Call { num_pending: mutations.len(), ..Call::default() }));
        for (at, mutation) in mutations.iter().enumerate() {
            let (key, value) = (key(mutation), mutation.to_json());
            let record = BaseRecord::with_opaque_to(&self.topic, call.clone()).partition(0).key(&key).payload(&value);
            if let Err((error, _)) = producer.send(record) {
                let mut call = lock(&call);
                call.num_pending -= mutations.len() - at;
                call.failure = Some(error);
                break;
            }
        }
        while lock(&call).num_pending > 0 {
            producer.poll(Duration::from_millis(50));
        }
        let call = lock(&call);
        match &call.failure {
            None => Ok(u64::try_from(call.last_offset).unwrap_or_default() + 1),
            Some(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge) => Err(
                Error::input("an item is larger than the Kafka broker accepts: raise max.message.bytes of the topic"),
            ),
            Some(error) => Err(self.failed("write to it", error.clone())),
        }
    }

    fn read(&self, after: u64, limit: usize, patience: Duration) -> Result<StreamPage> {
        let mut reader = lock(&self.reader);
        if reader.next != Some(after) {
            let (first, end) = self.watermarks(&reader)?;
            if after < first {
                let problem = format!("the topic `{}` has lost the changes from {} to {first}", self.topic, after + 1);
                return Err(lost_stream("catalogue.topic", after, &problem));
            }
            if end < after {
                return Ok(StreamPage { mutations: Vec::new(), reached: end, end });
            }
            self.assign(&mut reader, after)?;
        }
        let page = self.poll(&mut reader, after, limit, Instant::now() + patience);
        if page.is_err() {
            // what was read until then is read again
            reader.next = None;
        }
        page
    }

    fn poll(&self, reader: &mut Reader, after: u64, limit: usize, deadline: Instant) -> Result<StreamPage> {
        let (mut mutations, mut reached) = (Vec::new(), after);
        while mutations.len() < limit {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(message) = reader.consumer.poll(if reached == after { left } else { Duration::ZERO }) else {
                break;
            };
            let message = message.map_err(|e| self.failed("read it", e))?;
            reached = u64::try_from(message.offset()).unwrap_or_default() + 1;
            match read_record(message.key(), message.payload(), &self.topic, reached) {
                Ok(mutation) => mutations.push((reached, mutation)),
                Err(error) => tracing::error!(?error, "skipping a record of the catalogue topic"),
            }
        }
        reader.next = Some(reached);
        // without news, this question also finds out whether the broker is there
        let end = self.watermarks(reader)?.1.max(reached);
        Ok(StreamPage { mutations, reached, end })
    }

    fn assign(&self, reader: &mut Reader, after: u64) -> Result<()> {
        let mut list = TopicPartitionList::new();
        let offset = Offset::Offset(i64::try_from(after).unwrap_or(i64::MAX));
        let assigned = list.add_partition_offset(&self.topic, 0, offset).and_then(|()| reader.consumer.assign(&list));
        assigned.map_err(|e| self.failed("read it", e))?;
        reader.next = Some(after);
        Ok(())
    }

    /// First offset that the topic still has, and the offset of the next record.
    fn watermarks(&self, reader: &Reader) -> Result<(u64, u64)> {
        let found = reader.consumer.fetch_watermarks(&self.topic, 0, ANSWER);
        let (first, end) = found.map_err(|e| self.failed("find its end", e))?;
        Ok((u64::try_from(first).unwrap_or_default(), u64::try_from(end).unwrap_or_default()))
    }

    fn failed(&self, action: &str, error: KafkaError) -> Error {
        upstream(self.settings.service(), &format!("topic `{}`: cannot {action}", self.topic), error)
    }
}

/// Key that compaction keeps the last record of.
fn key(mutation: &Mutation) -> String {
    match mutation {
        Mutation::Update(id, _) => format!("{id}\0{}", mutation.updated_fields()),
        Mutation::Put(_) | Mutation::Delete(_) => mutation.id().to_owned(),
    }
}

fn read_record(key: Option<&[u8]>, value: Option<&[u8]>, topic: &str, position: u64) -> Result<Mutation> {
    let place = Path::new(topic);
    match (key.and_then(|key| str::from_utf8(key).ok()), value) {
        (_, Some(value)) => Mutation::parse(value, place, position),
        (Some(id), None) if !id.is_empty() && !id.contains('\0') => Ok(Mutation::Delete(id.into())),
        (_, None) => Err(Error::data(place, Some(position), "has neither a value nor an item's id as its key")),
    }
}

fn interrupted(error: tokio::task::JoinError) -> Error {
    Error::device("the catalogue topic's task ended without a result").because(error)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
