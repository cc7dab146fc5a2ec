//! Join of events to their queries, in one lane, in log order.
//!
//! Takes raw messages and gives examples, queries and dead letters. Drops repeated records; an event that comes before
//! its query waits for it. Memory is bounded by a time window and by counts. The output depends only on the messages and
//! when they were logged, never on the batching, so re-reading a part of the log gives the same output.

mod seen;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::seen::SeenKeys;
use super::strength::Strength;
use crate::log::{DeadLetter, Lane, Message};
use souk_io::fnv;
use souk_io::time;
use souk_io::ubi::{Action, EventRecord, QueryRecord, Record, RecordReader};

/// Upper bound of the remembered query texts.
const MAX_QUERY_BYTES: usize = 64 << 20;
/// Upper bound of the waiting events.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Records whose median is one look at the log's clock.
const TICK_RECORDS: usize = 255;
/// Looks at the log's clock whose median is the log time.
const NUM_TICKS: usize = 3;
/// Bytes kept of an unusable message.
const MAX_PAYLOAD_BYTES: usize = 64 << 10;

/// Bounds of a lane's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Window {
    /// Maximum distance in minutes of log time between a query and its events, in either direction.
    pub minutes: u32,
    /// Maximum time in minutes by which a record may be ahead of the clock. The default is more than any time zone is ahead of UTC.
    pub ahead_minutes: u32,
    /// Maximum number of remembered queries.
    pub queries: usize,
    /// Maximum number of events waiting for their query.
    pub waiting: usize,
    /// Maximum number of events remembered for deduplication.
    pub seen: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { minutes: 24 * 60, ahead_minutes: 15 * 60, queries: 1 << 18, waiting: 1 << 16, seen: 1 << 20 }
    }
}

/// Number of messages by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinCounts {
    pub messages: u64,
    pub queries: u64,
    pub impressions: u64,
    /// Clicks, cart additions and purchases; each gives an example.
    pub examples: u64,
    pub repeated: u64,
    /// Events without an item, bulk lines and empty messages.
    pub passed_over: u64,
    pub dead: u64,
}

impl JoinCounts {
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.queries += other.queries;
        self.impressions += other.impressions;
        self.examples += other.examples;
        self.repeated += other.repeated;
        self.passed_over += other.passed_over;
        self.dead += other.dead;
    }
}

/// Item chosen after a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JoinedExample<'a> {
    pub query: &'a str,
    pub item: &'a str,
    pub action: Action,
    pub strength: f32,
    pub time: i64,
    pub part: &'a str,
    pub offset: u64,
}

/// Receiver of the joiner's output.
pub trait Sink {
    fn example(&mut self, example: JoinedExample<'_>);
    fn query(&mut self, query: &QueryRecord<'_>);
    fn seen(&mut self, key: u64);
    fn dead(&mut self, letter: DeadLetter);
}

/// Event whose query has not come yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingEvent {
    pub part: String,
    pub offset: u64,
    pub time: i64,
    pub payload: String,
}

/// Persistent state, in addition to the queries and keys given to the sink and the waiting events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinerState {
    /// Log time: the median of many records, so that a client with a wrong clock does not move it.
    pub now: i64,
    /// Times of the records since the last look at the clock.
    pub times: Vec<i64>,
    /// The last looks at the clock, oldest first.
    #[serde(default)]
    pub ticks: VecDeque<i64>,
    /// Number of latest queries remembered.
    pub queries: u64,
    /// Number of latest event keys remembered.
    pub seen: u64,
}

/// Origin of a message: its part and offset.
#[derive(Clone, Copy)]
struct MessageOrigin<'a> {
    part: &'a str,
    offset: u64,
}

impl<'a> MessageOrigin<'a> {
    fn of(message: &Message<'a>) -> Self {
        Self { part: message.part, offset: message.offset }
    }
}

pub struct Joiner {
    lane: Lane,
    reader: RecordReader,
    window: Window,
    strength: Strength,
    now: i64,
    times: Vec<i64>,
    ticks: VecDeque<i64>,
    queries: HashMap<u64, RememberedQuery, KeyHasherBuilder>,
    /// Keys and times of the remembered queries, in arrival order.
    order: VecDeque<(u64, i64)>,
    seen: SeenKeys,
    /// Bytes of the remembered query texts.
    query_bytes: usize,
    /// Waiting events with their query's key, by arrival number.
    waiting: BTreeMap<u64, (u64, WaitingEvent)>,
    /// Arrival numbers of each query's events.
    by_query: HashMap<u64, VecDeque<u64>, KeyHasherBuilder>,
    waiting_bytes: usize,
    arrivals: u64,
    latest_search: LatestSearch,
    pub counts: JoinCounts,
}

struct RememberedQuery {
    text: Box<str>,
    time: i64,
}

impl Joiner {
    pub fn new(lane: Lane, window: Window, strength: Strength) -> Self {
        Self {
            lane,
            reader: RecordReader::default(),
            window,
            strength,
            now: i64::MIN,
            times: Vec::with_capacity(TICK_RECORDS),
            ticks: VecDeque::with_capacity(NUM_TICKS),
            queries: HashMap::default(),
            order: VecDeque::new(),
            seen: SeenKeys::default(),
            query_bytes: 0,
            waiting: BTreeMap::new(),
            by_query: HashMap::default(),
            waiting_bytes: 0,
            arrivals: 0,
            latest_search: LatestSearch::default(),
            counts: JoinCounts::default(),
        }
    }

    /// Restores a saved state. `queries` (id, text, time) and `keys` are the latest given to the sink, in order, at
    /// least as many as were remembered.
    pub fn restore(
        &mut self,
        state: &JoinerState,
        queries: &[(String, String, i64)],
        keys: &[u64],
        waiting: &[WaitingEvent],
    ) {
        (self.now, self.times, self.ticks) = (state.now, state.times.clone(), state.ticks.clone());
        for (id, text, time) in &queries[queries.len().saturating_sub(state.queries as usize)..] {
            self.remember_query(id, text, *time);
        }
        keys[keys.len().saturating_sub(state.seen as usize)..].iter().for_each(|key| {
            self.seen.insert(*key);
        });
        for event in waiting {
            if let Ok(Record::Event(record)) = Record::parse(event.payload.as_bytes()) {
                self.wait(key(&[record.query_id.as_bytes()]), event.clone());
            }
        }
    }

    /// Log time; none before the first records.
    pub fn log_time(&self) -> Option<i64> {
        Some(self.now).filter(|now| *now > i64::MIN)
    }

    /// State that `restore` needs to continue from here.
    pub fn state(&self) -> JoinerState {
        let (queries, seen) = (self.order.len() as u64, self.seen.len() as u64);
        JoinerState { now: self.now, times: self.times.clone(), ticks: self.ticks.clone(), queries, seen }
    }

    fn remember_query(&mut self, query_id: &str, text: &str, time: i64) {
        let query = key(&[query_id.as_bytes()]);
        if let std::collections::hash_map::Entry::Vacant(place) = self.queries.entry(query) {
            place.insert(RememberedQuery { text: text.into(), time });
            self.query_bytes += text.len();
            self.order.push_back((query, time));
        }
    }

    pub fn strength(&self) -> &Strength {
        &self.strength
    }

    /// Waiting events, in arrival order.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &WaitingEvent> {
        self.waiting.values().map(|(_, event)| event)
    }

    /// Processes one message.
    pub fn take(&mut self, message: &Message<'_>, sink: &mut impl Sink) {
        self.counts.messages += 1;
        if message.payload.is_empty() {
            self.counts.passed_over += 1;
            return;
        }
        let latest = message.logged_at.saturating_add_unsigned(millis(self.window.ahead_minutes));
        match self.reader.read(message.payload) {
            Ok(Record::Query(QueryRecord { time, .. }) | Record::Event(EventRecord { time, .. })) if time > latest => {
                let reason = ahead(time, message.logged_at);
                self.reject(MessageOrigin::of(message), reason, payload_text(message.payload), sink);
            }
            Ok(Record::Query(query)) => self.take_query(&query, sink),
            Ok(Record::Event(event)) => self.take_event(&event, message, sink),
            Ok(Record::Other | Record::Bulk) => self.counts.passed_over += 1,
            Err(reason) => {
                self.reject(MessageOrigin::of(message), reason, payload_text(message.payload), sink);
            }
        }
    }

    fn take_query(&mut self, query: &QueryRecord<'_>, sink: &mut impl Sink) {
        let id = key(&[query.query_id.as_bytes()]);
        if self.queries.contains_key(&id) {
            self.counts.repeated += 1;
            return;
        }
        self.counts.queries += 1;
        self.remember_query(&query.query_id, &query.text, query.time);
        sink.query(query);
        self.tick(query.time, sink);
        for arrival in self.by_query.remove(&id).unwrap_or_default() {
            let Some((_, event)) = self.waiting.remove(&arrival) else { continue };
            self.waiting_bytes -= event.payload.len();
            // it was parsed before, when it arrived
            if let Ok(Record::Event(record)) = Record::parse(event.payload.as_bytes()) {
                let origin = MessageOrigin { part: &event.part, offset: event.offset };
                if self.is_in_window(event.time, query.time) {
                    self.accept(&record, &query.text, origin, sink);
                } else {
                    self.reject(origin, self.too_far(), event.payload, sink);
                }
            }
        }
    }

    fn take_event(&mut self, event: &EventRecord<'_>, message: &Message<'_>, sink: &mut impl Sink) {
        let time = event.time.to_le_bytes();
        let text = event.text.as_deref().filter(|_| event.query_id.is_empty()).unwrap_or_default().as_bytes();
        let search = self.latest_search.keys(&event.query_id, &event.client_id);
        let id = extended(search.with_client, &[event.item.as_bytes(), &time, text]) ^ (event.action as u64 + 1);
        if !self.seen.insert(id) {
            self.counts.repeated += 1;
            return;
        }
        sink.seen(id);
        self.tick(event.time, sink);
        if event.action == Action::Impression {
            self.counts.impressions += 1;
            return;
        }
        let origin = MessageOrigin::of(message);
        if let Some(query) = &event.text {
            return self.accept(event, query, origin, sink);
        }
        let query = search.query;
        match self.queries.get(&query).map(|known| (known.text.clone(), known.time)) {
            Some((text, time)) if self.is_in_window(event.time, time) => self.accept(event, &text, origin, sink),
            Some(_) => self.reject(origin, self.too_far(), payload_text(message.payload), sink),
            None if message.payload.len() > MAX_PAYLOAD_BYTES => {
                let reason = "event precedes its query and is too long to buffer";
                self.reject(origin, reason.into(), payload_text(message.payload), sink);
            }
            None => {
                let (part, offset) = (message.part.to_owned(), message.offset);
                self.wait(
                    query,
                    WaitingEvent { part, offset, time: event.time, payload: payload_text(message.payload) },
                );
                self.evict(sink);
            }
        }
    }

    fn accept(&mut self, event: &EventRecord<'_>, query: &str, origin: MessageOrigin<'_>, sink: &mut impl Sink) {
        self.counts.examples += 1;
        let strength = self.strength.of_event(event.action, event.position);
        let (item, action, time) = (&*event.item, event.action, event.time);
        let MessageOrigin { part, offset } = origin;
        sink.example(JoinedExample { query, item, action, strength, time, part, offset });
    }

    fn wait(&mut self, query: u64, event: WaitingEvent) {
        self.by_query.entry(query).or_default().push_back(self.arrivals);
        self.waiting_bytes += event.payload.len();
        self.waiting.insert(self.arrivals, (query, event));
        self.arrivals += 1;
    }

    /// Gives the sink a dead letter.
    fn reject(&mut self, origin: MessageOrigin<'_>, reason: Cow<'static, str>, payload: String, sink: &mut impl Sink) {
        self.counts.dead += 1;
        let (lane, part) = (self.lane.name().to_owned(), origin.part.to_owned());
        sink.dead(DeadLetter { lane, part, offset: origin.offset, reason: reason.into_owned(), payload });
    }

    /// Moves the log time. It also moves back, so that records with a wrong time do not move it for good.
    fn tick(&mut self, time: i64, sink: &mut impl Sink) {
        self.times.push(time);
        if self.times.len() == TICK_RECORDS {
            let (_, middle, _) = self.times.select_nth_unstable(TICK_RECORDS / 2);
            if self.ticks.len() == NUM_TICKS {
                self.ticks.pop_front();
            }
            self.ticks.push_back(*middle);
            self.times.clear();
            let mut sorted: Vec<i64> = self.ticks.iter().copied().collect();
            sorted.sort_unstable();
            // the earlier one of two in the middle: it forgets less
            self.now = sorted[(sorted.len() - 1) / 2];
        }
        self.evict(sink);
    }

    fn is_in_window(&self, event: i64, query: i64) -> bool {
        event.abs_diff(query) <= self.window_millis()
    }

    fn too_far(&self) -> Cow<'static, str> {
        format!("event is more than {} minutes from its query", self.window.minutes).into()
    }

    fn window_millis(&self) -> u64 {
        millis(self.window.minutes)
    }

    /// Drops everything outside the window. A waiting event that is dropped becomes a dead letter.
    fn evict(&mut self, sink: &mut impl Sink) {
        let oldest = self.now.saturating_sub_unsigned(self.window_millis());
        while let Some((first, time)) = self.order.front() {
            if *time >= oldest && self.order.len() <= self.window.queries && self.query_bytes <= MAX_QUERY_BYTES {
                break;
            }
            if let Some(query) = self.queries.remove(first) {
                self.query_bytes -= query.text.len();
            }
            self.order.pop_front();
        }
        self.seen.truncate(self.window.seen);
        while let Some((_, (_, first))) = self.waiting.first_key_value() {
            let is_full = self.waiting.len() > self.window.waiting || self.waiting_bytes > MAX_WAITING_BYTES;
            if first.time >= oldest && !is_full {
                break;
            }
            let Some((arrival, (query, event))) = self.waiting.pop_first() else { break };
            self.waiting_bytes -= event.payload.len();
            if let Some(arrivals) = self.by_query.get_mut(&query) {
                // events of one query are evicted in arrival order
                debug_assert_eq!(arrivals.front(), Some(&arrival));
                arrivals.pop_front();
                if arrivals.is_empty() {
                    self.by_query.remove(&query);
                }
            }
            let reason = "no query within the window".into();
            let origin = MessageOrigin { part: &event.part, offset: event.offset };
            self.reject(origin, reason, event.payload, sink);
        }
    }
}

fn millis(minutes: u32) -> u64 {
    u64::from(minutes) * 60_000
}

#[cold]
fn ahead(time: i64, logged_at: i64) -> Cow<'static, str> {
    let (hours, logged_at) = (time.abs_diff(logged_at) / 3_600_000, time::format(logged_at));
    format!("its time is {hours} hours after {logged_at}, when it was logged: the clock of whoever wrote it is wrong")
        .into()
}

/// Beginning of a message, with invalid UTF-8 replaced.
fn payload_text(payload: &[u8]) -> String {
    String::from_utf8_lossy(&payload[..payload.len().min(MAX_PAYLOAD_BYTES)]).into_owned()
}

/// FNV-1a over the parts, each ended by a byte that never occurs in UTF-8. Stable across builds, because keys are
/// stored.
fn key(parts: &[&[u8]]) -> u64 {
    extended(fnv::START, parts)
}

/// Key of the parts that `hash` stands for and of these.
fn extended(hash: u64, parts: &[&[u8]]) -> u64 {
    parts.iter().fold(hash, |hash, part| fnv::extended(hash, part.iter().chain(&[0xff]).copied()))
}

/// Keys of the latest event's search. Events of one search mostly come together.
#[derive(Default)]
struct LatestSearch {
    query_id: String,
    client_id: String,
    keys: Option<SearchKeys>,
}

#[derive(Clone, Copy)]
struct SearchKeys {
    query: u64,
    /// Beginning of the keys of the search's events.
    with_client: u64,
}

impl LatestSearch {
    fn keys(&mut self, query_id: &str, client_id: &str) -> SearchKeys {
        match self.keys {
            Some(keys) if self.query_id == query_id && self.client_id == client_id => keys,
            _ => {
                let query = key(&[query_id.as_bytes()]);
                let keys = SearchKeys { query, with_client: extended(query, &[client_id.as_bytes()]) };
                query_id.clone_into(&mut self.query_id);
                client_id.clone_into(&mut self.client_id);
                *self.keys.insert(keys)
            }
        }
    }
}

type KeyHasherBuilder = BuildHasherDefault<KeyHasher>;

/// Hasher for keys that are already hashes.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, key: u64) {
        // the hash table uses the low bits, which are weak in FNV-1a
        self.0 = key ^ (key >> 32);
    }
}

#[cfg(test)]
mod tests;
