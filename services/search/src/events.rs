//! Event log for the trainer: searches, clicks and votes in UBI 1.3, written to a file or a Kafka topic. Written on a
//! separate thread; events that cannot be written are counted and never delay a request.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use souk::config::LogConfig;
use souk::log::kafka::Topic;
use souk::search::Events;
use souk::store::{Grade, Side, Vote};
use souk::telemetry::SEARCH;
use souk::time;
use souk::ubi::{Action, EventRecord, QueryRecord};
use souk::{Error, Result};
use souk_http::{Fault, json_body, read};

use crate::SearchService;
use crate::limits::{MAX_NAME, check_text};
use crate::shapes::{
    ActionName, ErrorResponses, EventShape, EventsAnswer, EventsRequest, ExperimentArm, HitShape, SearchRequest,
};

const MAX_PENDING: usize = 10_000;
const MAX_POSITION: usize = 1_000_000;
const MAX_BATCH: usize = 1000;
/// How long shutdown waits for accepted events to be written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
/// Client id of anonymous shoppers.
const UNKNOWN_CLIENT: &str = "unknown";

/// Key (lines of one key stay in order) and line.
type KeyedLine = (String, Vec<u8>);

/// Writer of lines on its own thread; without a file or topic, it discards them.
#[derive(Default)]
pub struct EventWriter {
    /// Channel to the thread; None once closed.
    queue: RwLock<Option<Sender<Vec<KeyedLine>>>>,
    /// Lines accepted and not yet written.
    num_pending: Arc<AtomicUsize>,
    writer: Mutex<Option<JoinHandle<()>>>,
    application: String,
}

enum EventSink {
    File(LineFile),
    Topic(Topic),
}

/// Append-only file of lines.
struct LineFile {
    file: File,
    /// Whether the last line may be incomplete.
    is_torn: bool,
}

impl EventWriter {
    pub fn open(events: &Events, log: &LogConfig) -> Result<Self> {
        let sink = match (&events.path, &events.topic) {
            (None, None) => return Ok(Self::default()),
            (Some(path), _) => EventSink::File(LineFile::open(path).map_err(Error::store(path, "open the event log"))?),
            (None, Some(name)) => EventSink::Topic(Topic::open(&log.kafka_settings()?, name)?),
        };
        let (queue, receiver) = channel();
        let num_pending: Arc<AtomicUsize> = Arc::default();
        let num = num_pending.clone();
        let start = std::thread::Builder::new().name("souk-events".into());
        let writer = start.spawn(move || write_all(sink, &receiver, &num));
        let writer = writer.map_err(|e| Error::device("cannot start the thread that writes events").because(e))?;
        let application = if events.application.is_empty() { "souk" } else { &events.application };
        Ok(Self {
            queue: RwLock::new(Some(queue)),
            num_pending,
            writer: Mutex::new(Some(writer)),
            application: application.into(),
        })
    }

    fn is_open(&self) -> bool {
        self.queue.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Accepts all lines, or none if the queue is full.
    fn write(&self, lines: Vec<KeyedLine>) -> bool {
        let queue = self.queue.read().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = &*queue else { return false };
        let num = lines.len();
        let taken = self.num_pending.fetch_add(num, Ordering::Relaxed) < MAX_PENDING && queue.send(lines).is_ok();
        if !taken {
            self.num_pending.fetch_sub(num, Ordering::Relaxed);
        }
        taken
    }

    /// Same as `write`, but counts lines that were dropped, because the caller cannot retry.
    fn write_or_count(&self, lines: Vec<KeyedLine>) {
        let num = lines.len();
        if !self.write(lines) {
            SEARCH.events_dropped.inc_by(num as u64);
        }
    }

    /// Stops accepting lines, and waits until the accepted ones are written or the timeout is over.
    pub async fn close(&self) {
        drop(self.queue.write().unwrap_or_else(PoisonError::into_inner).take());
        let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let began = Instant::now();
        while !writer.is_finished() {
            if began.elapsed() > CLOSE_TIMEOUT {
                let lines = self.num_pending.load(Ordering::Relaxed);
                tracing::error!(lines, "events could not be written before shutdown");
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Writes until the queue is closed and empty.
fn write_all(mut sink: EventSink, receiver: &Receiver<Vec<KeyedLine>>, num_pending: &AtomicUsize) {
    while let Ok(mut lines) = receiver.recv() {
        while lines.len() < MAX_BATCH
            && let Ok(more) = receiver.try_recv()
        {
            lines.extend(more);
        }
        let written = match &mut sink {
            EventSink::Topic(topic) => topic.send(&lines).map_err(|e| e.to_string()),
            EventSink::File(file) => file.write(&lines).map_err(|e| e.to_string()),
        };
        if let Err(error) = written {
            tracing::error!(error, lines = lines.len(), "events could not be written");
            SEARCH.events_dropped.inc_by(lines.len() as u64);
        }
        num_pending.fetch_sub(lines.len(), Ordering::Relaxed);
    }
}

impl LineFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { file, is_torn: is_torn(path)? })
    }

    /// Terminates an incomplete line first, so that it does not spoil the next one.
    fn write(&mut self, lines: &[KeyedLine]) -> io::Result<()> {
        let before = self.is_torn.then_some(b'\n');
        let lines = lines.iter().flat_map(|(_, line)| line.iter().copied().chain([b'\n']));
        let bytes: Vec<u8> = before.into_iter().chain(lines).collect();
        self.is_torn = true;
        self.file.write_all(&bytes)?;
        self.is_torn = false;
        Ok(())
    }
}

/// Whether the file ends in an incomplete line, left by a process that was killed. Never reads a pipe.
fn is_torn(path: &Path) -> io::Result<bool> {
    let found = fs::metadata(path)?;
    if !found.is_file() || found.len() == 0 {
        return Ok(false);
    }
    let (mut file, mut last) = (File::open(path)?, [0]);
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != [b'\n'])
}

/// Random id, hard to guess.
pub fn fresh_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let part = || RandomState::new().hash_one((NEXT.fetch_add(1, Ordering::Relaxed), time::now()));
    format!("{:016x}{:016x}", part(), part())
}

/// Hits of one answer, and what they came from.
#[derive(Clone, Copy)]
pub struct ShownHits<'a> {
    pub query_id: &'a str,
    pub version: &'a str,
    pub experiment: Option<&'a ExperimentArm>,
    pub hits: &'a [HitShape],
}

/// Logs a search with its hits and experiment.
pub fn log_search(service: &SearchService, request: &SearchRequest, shown: &ShownHits<'_>) {
    let ShownHits { query_id, version, experiment, hits } = *shown;
    let (Some(query), true) = (&request.query, service.event_writer.is_open()) else { return };
    let record = QueryRecord {
        query_id: query_id.into(),
        client_id: request.client_id.as_deref().unwrap_or(UNKNOWN_CLIENT).into(),
        text: query.as_str().into(),
        time: time::now(),
        hits: hits.iter().map(|hit| hit.id.as_str().into()).collect(),
    };
    let mut line = Vec::new();
    record.write(&service.event_writer.application, &mut line);
    let mut attributes =
        Map::from_iter([("model".to_owned(), json!(version)), ("offset".to_owned(), json!(request.offset))]);
    if let Some(ExperimentArm { name, arm }) = experiment {
        attributes.extend([("experiment".to_owned(), json!(name)), ("arm".to_owned(), json!(arm))]);
        let sides: Vec<Value> = hits.iter().filter_map(|hit| hit.side.map(|side| json!(side))).collect();
        attributes.insert("sides".into(), Value::Array(sides));
    }
    // add one more field to the JSON object just written
    line.pop();
    line.extend(b",\"query_attributes\":");
    line.extend(Value::Object(attributes).to_string().into_bytes());
    line.push(b'}');
    service.event_writer.write_or_count(vec![(query_id.to_owned(), line)]);
}

/// Logs a vote: one event for the verdict and one per grade. The trainer's click processing skips them.
pub fn log_vote(service: &SearchService, vote: &Vote) {
    if !service.event_writer.is_open() {
        return;
    }
    let event = |action: &str, attributes: Value| {
        let event = json!({
            "application": service.event_writer.application,
            "action_name": action,
            "query_id": vote.id,
            "client_id": if vote.voter.is_empty() { UNKNOWN_CLIENT } else { &vote.voter },
            "user_query": vote.query,
            "timestamp": time::format(vote.cast_at),
            "event_attributes": attributes,
        });
        (vote.id.clone(), event.to_string().into_bytes())
    };
    let verdict = event("vote", json!({"left": vote.left, "right": vote.right, "verdict": vote.verdict}));
    let grades = vote.grades.iter().map(|Grade { side, item, good }| {
        let channel = if *side == Side::Left { &vote.left } else { &vote.right };
        event(
            "grade",
            json!({"object": {"object_id": item, "object_id_field": "_id"}, "channel": channel, "good": good}),
        )
    });
    service.event_writer.write_or_count(std::iter::once(verdict).chain(grades).collect());
}

/// Report what a shopper did with the hits
#[utoipa::path(post, path = "/events", tag = "events", request_body = EventsRequest,
    responses((status = 200, body = EventsAnswer), ErrorResponses), security(("key" = [])))]
pub async fn tell(State(service): State<Arc<SearchService>>, request: Request) -> std::result::Result<Response, Fault> {
    let EventsRequest { events } = read(request).await?;
    let max = service.settings().bounds.max_items;
    if events.len() > max {
        let problem = format!("has {} events, more than the {max} of one request: send several requests", events.len());
        return Err(Fault::unprocessable("events", problem));
    }
    if !service.event_writer.is_open() {
        return Err(Fault::conflict("this service writes no events: set search.events.path or search.events.topic"));
    }
    for (at, event) in events.iter().enumerate() {
        let place = |name| format!("events[{at}].{name}");
        check_text(&place("query_id"), &event.query_id, 1, MAX_NAME)?;
        check_text(&place("client_id"), &event.client_id, 0, MAX_NAME)?;
        check_text(&place("item"), &event.item, 1, MAX_NAME)?;
        if event.position.is_some_and(|position| !(1..=MAX_POSITION).contains(&position)) {
            return Err(Fault::unprocessable(place("position"), format!("must be 1 to {MAX_POSITION}")));
        }
    }
    let taken = events.len();
    let mut lines = Vec::new();
    for event in events {
        let EventShape { action_name, query_id, client_id, item, position } = event;
        let action = match action_name {
            ActionName::Impression => Action::Impression,
            ActionName::Click => Action::Click,
            ActionName::AddToCart => Action::AddToCart,
            ActionName::Purchase => Action::Purchase,
        };
        let client = if client_id.is_empty() { UNKNOWN_CLIENT } else { &client_id };
        let record = EventRecord {
            action,
            query_id: query_id.as_str().into(),
            client_id: client.into(),
            item: item.into(),
            position: position.map(|position| position as u32),
            time: time::now(),
            text: None,
        };
        let mut line = Vec::new();
        record.write(&service.event_writer.application, &mut line);
        lines.push((query_id, line));
    }
    if !service.event_writer.write(lines) {
        return Err(Fault::busy("the event queue is full: none of these events was accepted, send them again"));
    }
    Ok(json_body(&EventsAnswer { taken }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str) -> KeyedLine {
        ("key".into(), line.into())
    }

    #[test]
    fn terminates_a_torn_line_before_writing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("events.ndjson");
        fs::write(&path, "{\"whole\":1}\n{\"ha").unwrap();
        let mut lines = LineFile::open(&path).unwrap();
        lines.write(&[entry("1")]).unwrap();
        // writing to a read-only file fails
        let writable = std::mem::replace(&mut lines.file, File::open(&path).unwrap());
        lines.write(&[entry("2")]).unwrap_err();
        lines.file = writable;
        lines.write(&[entry("3")]).unwrap();
        lines.write(&[entry("4")]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"whole\":1}\n{\"ha\n1\n\n3\n4\n");
        assert!(!LineFile::open(&path).unwrap().is_torn);
    }

    #[tokio::test]
    async fn close_writes_accepted_lines_and_rejects_new_ones() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("events.ndjson");
        let events = Events { path: Some(path.clone()), ..Events::default() };
        let event_writer = EventWriter::open(&events, &LogConfig::default()).unwrap();
        let num = (0..200).filter(|number| event_writer.write(vec![entry(&number.to_string()); 20])).count();
        event_writer.close().await;
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 20 * num);
        assert!(!event_writer.write(vec![entry("late")]) && !event_writer.is_open());
        event_writer.close().await;
    }

    #[test]
    fn rejects_lines_when_the_queue_is_full() {
        let (queue, receiver) = channel();
        let event_writer = EventWriter { queue: RwLock::new(Some(queue)), ..EventWriter::default() };
        assert!(event_writer.write(vec![entry("1"); MAX_PENDING - 1]));
        assert!(event_writer.write(vec![entry("2"); 2]), "there is room for one");
        assert!(!event_writer.write(vec![entry("3"); 1]));
        assert_eq!(receiver.try_iter().map(|lines| lines.len()).sum::<usize>(), MAX_PENDING + 1);
        assert_eq!(event_writer.num_pending.load(Ordering::Relaxed), MAX_PENDING + 1);
    }
}
