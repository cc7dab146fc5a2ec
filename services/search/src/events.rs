//! Searches, what followed them, and votes, written down in UBI 1.3 for the trainer to learn from: to a file, or to the
//! topic that the trainer reads. Written beside the requests; what cannot be kept is counted, and keeps nobody waiting.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

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

use crate::Service;
use crate::hits::{MAX_NAME, check_text};
use crate::shapes::{ActionName, Assigned, EventShape, EventsAnswer, EventsRequest, HitShape, Refusals, SearchRequest};

const MAX_WAITING: usize = 10_000;
const MAX_POSITION: usize = 1_000_000;
const MAX_AT_ONCE: usize = 1000;
/// How long the end of the process waits for what was taken to be written.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);
/// Who gives no name.
const NOBODY: &str = "unknown";

/// A key, whose lines stay in their order, and a line.
type Entry = (String, Vec<u8>);

/// Writes lines on a thread of its own; one without a place to write to writes nothing.
#[derive(Default)]
pub struct Scribe {
    /// To the thread, until it is told to end.
    queue: RwLock<Option<Sender<Vec<Entry>>>>,
    /// Lines that were taken and are not written yet.
    num_waiting: Arc<AtomicUsize>,
    writer: Mutex<Option<JoinHandle<()>>>,
    application: String,
}

enum Place {
    File(Lines),
    Topic(Topic),
}

/// A file of lines, written at its end.
struct Lines {
    file: File,
    /// Whether its last line may be half of one.
    is_torn: bool,
}

impl Scribe {
    pub fn open(events: &Events, log: &LogConfig) -> Result<Self> {
        let place = match (&events.path, &events.topic) {
            (None, None) => return Ok(Self::default()),
            (Some(path), _) => Place::File(Lines::open(path).map_err(Error::store(path, "open the log of events"))?),
            (None, Some(name)) => Place::Topic(Topic::open(&log.kafka_settings()?, name)?),
        };
        let (queue, taken) = channel();
        let num_waiting: Arc<AtomicUsize> = Arc::default();
        let num = num_waiting.clone();
        let start = std::thread::Builder::new().name("souk-events".into());
        let writer = start.spawn(move || write_all(place, &taken, &num));
        let writer = writer.map_err(|e| Error::device("cannot start the thread that writes events").because(e))?;
        let application = if events.application.is_empty() { "souk" } else { &events.application };
        Ok(Self {
            queue: RwLock::new(Some(queue)),
            num_waiting,
            writer: Mutex::new(Some(writer)),
            application: application.into(),
        })
    }

    fn is_open(&self) -> bool {
        self.queue.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Takes all lines, or none where too many wait already.
    fn write(&self, lines: Vec<Entry>) -> bool {
        let queue = self.queue.read().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = &*queue else { return false };
        let num = lines.len();
        let taken = self.num_waiting.fetch_add(num, Ordering::Relaxed) < MAX_WAITING && queue.send(lines).is_ok();
        if !taken {
            self.num_waiting.fetch_sub(num, Ordering::Relaxed);
        }
        taken
    }

    /// As `write`, for what nobody can send again.
    fn write_or_count(&self, lines: Vec<Entry>) {
        let num = lines.len();
        if !self.write(lines) {
            SEARCH.events_dropped.inc_by(num as u64);
        }
    }

    /// Takes nothing more, and returns when what was taken is written, or has had its time.
    pub async fn close(&self) {
        drop(self.queue.write().unwrap_or_else(PoisonError::into_inner).take());
        let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let began = Instant::now();
        while !writer.is_finished() {
            if began.elapsed() > PATIENCE {
                let lines = self.num_waiting.load(Ordering::Relaxed);
                tracing::error!(lines, "events could not be written before the end");
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Until the queue is closed, and everything in it written.
fn write_all(mut place: Place, taken: &Receiver<Vec<Entry>>, num_waiting: &AtomicUsize) {
    while let Ok(mut lines) = taken.recv() {
        while lines.len() < MAX_AT_ONCE
            && let Ok(more) = taken.try_recv()
        {
            lines.extend(more);
        }
        let written = match &mut place {
            Place::Topic(topic) => topic.send(&lines).map_err(|e| e.to_string()),
            Place::File(file) => file.write(&lines).map_err(|e| e.to_string()),
        };
        if let Err(error) = written {
            tracing::error!(error, lines = lines.len(), "events could not be written");
            SEARCH.events_dropped.inc_by(lines.len() as u64);
        }
        num_waiting.fetch_sub(lines.len(), Ordering::Relaxed);
    }
}

impl Lines {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { file, is_torn: is_torn(path)? })
    }

    /// What was left of a line is ended first, so that it spoils no other.
    fn write(&mut self, lines: &[Entry]) -> io::Result<()> {
        let before = self.is_torn.then_some(b'\n');
        let lines = lines.iter().flat_map(|(_, line)| line.iter().copied().chain([b'\n']));
        let bytes: Vec<u8> = before.into_iter().chain(lines).collect();
        self.is_torn = true;
        self.file.write_all(&bytes)?;
        self.is_torn = false;
        Ok(())
    }
}

/// Whether a process that was killed left half a line. A pipe is never asked.
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
    service.scribe.write_or_count(vec![(query_id.to_owned(), line)]);
}

/// Writes a vote down: an event of the verdict, and one of each grade. Who learns from clicks passes these over.
pub fn voted(service: &Service, vote: &Vote) {
    if !service.scribe.is_open() {
        return;
    }
    let event = |action: &str, attributes: Value| {
        let event = json!({
            "application": service.scribe.application,
            "action_name": action,
            "query_id": vote.id,
            "client_id": if vote.voter.is_empty() { NOBODY } else { &vote.voter },
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
    service.scribe.write_or_count(std::iter::once(verdict).chain(grades).collect());
}

/// Tell what a shopper did with what was found
#[utoipa::path(post, path = "/events", tag = "events", request_body = EventsRequest,
    responses((status = 200, body = EventsAnswer), Refusals), security(("key" = [])))]
pub async fn tell(State(service): State<Arc<Service>>, request: Request) -> std::result::Result<Response, Fault> {
    let EventsRequest { events } = read(&service.front, request).await?;
    let most = service.settings().bounds.max_items;
    if events.len() > most {
        let problem = format!("holds {}, and one request may have {most}: send several", events.len());
        return Err(Fault::unprocessable("events", problem));
    }
    if !service.scribe.is_open() {
        return Err(Fault::conflict("events are not written here: set search.events.path or search.events.topic"));
    }
    for (at, event) in events.iter().enumerate() {
        let place = |name| format!("events[{at}].{name}");
        check_text(&place("query_id"), &event.query_id, 1, MAX_NAME)?;
        check_text(&place("client_id"), &event.client_id, 0, MAX_NAME)?;
        check_text(&place("item"), &event.item, 1, MAX_NAME)?;
        if event.position.is_some_and(|position| !(1..=MAX_POSITION).contains(&position)) {
            return Err(Fault::unprocessable(place("position"), format!("is 1 to {MAX_POSITION}")));
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
        lines.push((query_id, line));
    }
    if !service.scribe.write(lines) {
        return Err(Fault::busy("more events wait than can be written: none of these was taken, send them again"));
    }
    Ok(json_body(&EventsAnswer { taken }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str) -> Entry {
        ("key".into(), line.into())
    }

    #[test]
    fn half_a_line_is_glued_to_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("events.ndjson");
        fs::write(&path, "{\"whole\":1}\n{\"ha").unwrap();
        let mut lines = Lines::open(&path).unwrap();
        lines.write(&[entry("1")]).unwrap();
        // to a file that is open to read alone, nothing can be written
        let writable = std::mem::replace(&mut lines.file, File::open(&path).unwrap());
        lines.write(&[entry("2")]).unwrap_err();
        lines.file = writable;
        lines.write(&[entry("3")]).unwrap();
        lines.write(&[entry("4")]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"whole\":1}\n{\"ha\n1\n\n3\n4\n");
        assert!(!Lines::open(&path).unwrap().is_torn);
    }

    #[tokio::test]
    async fn what_was_taken_is_written_before_the_end_and_nothing_is_taken_after() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("events.ndjson");
        let events = Events { path: Some(path.clone()), ..Events::default() };
        let scribe = Scribe::open(&events, &LogConfig::default()).unwrap();
        let num = (0..200).filter(|number| scribe.write(vec![entry(&number.to_string()); 20])).count();
        scribe.close().await;
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 20 * num);
        assert!(!scribe.write(vec![entry("late")]) && !scribe.is_open());
        scribe.close().await;
    }

    #[test]
    fn where_too_many_wait_all_lines_are_refused() {
        let (queue, taken) = channel();
        let scribe = Scribe { queue: RwLock::new(Some(queue)), ..Scribe::default() };
        assert!(scribe.write(vec![entry("1"); MAX_WAITING - 1]));
        assert!(scribe.write(vec![entry("2"); 2]), "there is room for one");
        assert!(!scribe.write(vec![entry("3"); 1]));
        assert_eq!(taken.try_iter().map(|lines| lines.len()).sum::<usize>(), MAX_WAITING + 1);
        assert_eq!(scribe.num_waiting.load(Ordering::Relaxed), MAX_WAITING + 1);
    }
}
