//! Searches and what followed them, written down in UBI 1.3 for the trainer to learn from: to a file, or to the topic that
//! the trainer reads. Written beside the requests; what cannot be kept is counted, and keeps nobody waiting.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use souk::config::LogConfig;
use souk::log::kafka::Topic;
use souk::log::ubi::{Action, EventRecord, QueryRecord};
use souk::search::Events;
use souk::telemetry::SEARCH;
use souk::{Error, Result};
use souk_http::{Fault, json_body, read};

use crate::Service;
use crate::hits::{LONGEST_NAME, check_text};
use crate::shapes::{ActionName, Assigned, EventShape, EventsAnswer, EventsRequest, HitShape, Refusals, SearchRequest};

const MOST_WAITING: usize = 10_000;
const MOST_POSITION: usize = 1_000_000;
const MOST_AT_ONCE: usize = 1000;
/// Who gives no name.
const NOBODY: &str = "unknown";

/// A key, whose lines stay in their order, and a line.
type Entry = (String, Vec<u8>);

/// Writes lines on a thread of its own; one without a place to write to writes nothing.
#[derive(Clone, Default)]
pub struct Scribe {
    queue: Option<SyncSender<Entry>>,
    application: Arc<str>,
}

enum Place {
    File(File),
    Topic(Topic),
}

impl Scribe {
    pub fn open(events: &Events, log: &LogConfig) -> Result<Self> {
        let place = match (&events.path, &events.topic) {
            (None, None) => return Ok(Self::default()),
            (Some(path), _) => {
                let file = File::options().create(true).append(true).open(path);
                Place::File(file.map_err(Error::store(path, "open the log of events"))?)
            }
            (None, Some(name)) => Place::Topic(Topic::open(&log.kafka_settings()?, name)?),
        };
        let (queue, waiting) = sync_channel(MOST_WAITING);
        let start = std::thread::Builder::new().name("souk-events".into());
        let started = start.spawn(move || write_all(place, &waiting));
        started.map_err(|e| Error::device("cannot start the thread that writes events").because(e))?;
        let application = if events.application.is_empty() { "souk" } else { &events.application };
        Ok(Self { queue: Some(queue), application: application.into() })
    }

    fn is_open(&self) -> bool {
        self.queue.is_some()
    }

    fn write(&self, key: &str, line: Vec<u8>) {
        if let Some(queue) = &self.queue
            && queue.try_send((key.to_owned(), line)).is_err()
        {
            SEARCH.events_dropped.inc();
        }
    }
}

fn write_all(mut place: Place, waiting: &Receiver<Entry>) {
    while let Ok(first) = waiting.recv() {
        let lines: Vec<Entry> = std::iter::once(first).chain(waiting.try_iter().take(MOST_AT_ONCE)).collect();
        let written = match &mut place {
            Place::Topic(topic) => topic.send(&lines).map_err(|e| e.to_string()),
            Place::File(file) => {
                let bytes: Vec<u8> = lines.iter().flat_map(|(_, line)| line.iter().copied().chain([b'\n'])).collect();
                file.write_all(&bytes).map_err(|e| e.to_string())
            }
        };
        if let Err(error) = written {
            tracing::error!(error, lines = lines.len(), "events could not be written");
            SEARCH.events_dropped.inc_by(lines.len() as u64);
        }
    }
}

/// Unlike any other, and not to be guessed.
pub fn fresh_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let part = || RandomState::new().hash_one((NEXT.fetch_add(1, Ordering::Relaxed), now()));
    format!("{:016x}{:016x}", part(), part())
}

/// Milliseconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// Writes a search down, with what was shown and why.
pub fn searched(
    service: &Service,
    asked: &SearchRequest,
    (query_id, version): (&str, &str),
    experiment: Option<&Assigned>,
    hits: &[HitShape],
) {
    let (Some(query), true) = (&asked.query, service.scribe.is_open()) else { return };
    let record = QueryRecord {
        query_id: query_id.into(),
        client_id: asked.client_id.as_deref().unwrap_or(NOBODY).into(),
        text: query.as_str().into(),
        time: now(),
        hits: hits.iter().map(|hit| hit.id.as_str().into()).collect(),
    };
    let mut line = Vec::new();
    record.write(&service.scribe.application, &mut line);
    let mut attributes =
        Map::from_iter([("model".to_owned(), json!(version)), ("offset".to_owned(), json!(asked.offset))]);
    if let Some(Assigned { name, arm }) = experiment {
        attributes.extend([("experiment".to_owned(), json!(name)), ("arm".to_owned(), json!(arm))]);
        let sides: Vec<Value> = hits.iter().filter_map(|hit| hit.side.map(|side| json!(side))).collect();
        attributes.insert("sides".into(), Value::Array(sides));
    }
    // one more field of the object that was just written
    line.pop();
    line.extend(b",\"query_attributes\":");
    line.extend(Value::Object(attributes).to_string().into_bytes());
    line.push(b'}');
    service.scribe.write(query_id, line);
}

/// Tell what a shopper did with what was found
#[utoipa::path(post, path = "/events", tag = "events", request_body = EventsRequest,
    responses((status = 200, body = EventsAnswer), Refusals), security(("key" = [])))]
pub async fn tell(State(service): State<Arc<Service>>, request: Request) -> std::result::Result<Response, Fault> {
    let EventsRequest { events } = read(&service.front, request).await?;
    let most = service.settings().bounds.most_items;
    if events.len() > most {
        let problem = format!("holds {}, and one request may have {most}: send several", events.len());
        return Err(Fault::unprocessable("events", problem));
    }
    if !service.scribe.is_open() {
        return Err(Fault::conflict("events are not written here: set search.events.path or search.events.topic"));
    }
    for (at, event) in events.iter().enumerate() {
        let place = |name| format!("events[{at}].{name}");
        check_text(&place("query_id"), &event.query_id, 1, LONGEST_NAME)?;
        check_text(&place("client_id"), &event.client_id, 0, LONGEST_NAME)?;
        check_text(&place("item"), &event.item, 1, LONGEST_NAME)?;
        if event.position.is_some_and(|position| !(1..=MOST_POSITION).contains(&position)) {
            return Err(Fault::unprocessable(place("position"), format!("is 1 to {MOST_POSITION}")));
        }
    }
    let taken = events.len();
    for event in events {
        let EventShape { action_name, query_id, client_id, item, position } = event;
        let action = match action_name {
            ActionName::Impression => Action::Impression,
            ActionName::Click => Action::Click,
            ActionName::AddToCart => Action::AddToCart,
            ActionName::Purchase => Action::Purchase,
        };
        let client = if client_id.is_empty() { NOBODY } else { &client_id };
        let record = EventRecord {
            action,
            query_id: query_id.as_str().into(),
            client_id: client.into(),
            item: item.into(),
            position: position.map(|position| position as u32),
            time: now(),
            text: None,
        };
        let mut line = Vec::new();
        record.write(&service.scribe.application, &mut line);
        service.scribe.write(&query_id, line);
    }
    Ok(json_body(&EventsAnswer { taken }))
}
