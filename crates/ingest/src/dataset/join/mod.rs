//! Joins events to the query they followed, in one lane, in the order of the log.
//!
//! Takes raw messages and gives examples, queries and dead letters. Repeated records are dropped, an event that comes before
//! its query waits for it, and what is remembered is bounded: by the window in time and by counts. The outcome depends on the
//! messages alone, never on the clock or on how they were batched, so that reading a stretch again gives the same again.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use serde::{Deserialize, Serialize};

use super::strength::Strength;
use crate::log::{DeadLetter, Lane, Message};
use souk_io::ubi::{Action, EventRecord, QueryRecord, Record};

/// Of the texts of the queries remembered.
const MAX_QUERY_BYTES: usize = 64 << 20;
/// Of the events that wait.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// The log's time moves on after so many records.
const TICK: usize = 255;
/// Of a message that cannot be used, the beginning is kept.
const KEPT_OF_DEAD: usize = 64 << 10;

/// What is remembered of a lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Window {
    /// How long after a query its events may come, and before it by mistake; in minutes of the log's own time.
    pub minutes: u32,
    /// The most queries remembered.
    pub queries: usize,
    /// The most events that wait for their query.
    pub waiting: usize,
    /// The most events remembered, to know a repetition.
    pub seen: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { minutes: 24 * 60, queries: 1 << 18, waiting: 1 << 16, seen: 1 << 20 }
    }
}

/// What became of the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub messages: u64,
    pub queries: u64,
    pub impressions: u64,
    /// Clicks, carts and purchases: each gives an example.
    pub examples: u64,
    pub repeated: u64,
    /// Events that say nothing of an item, bulk lines and empty messages.
    pub passed_over: u64,
    pub dead: u64,
}

impl Counts {
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

/// A shopper chose an item after a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joined<'a> {
    pub query: &'a str,
    pub item: &'a str,
    pub action: Action,
    pub strength: f32,
    pub time: i64,
    pub part: &'a str,
    pub offset: u64,
}

/// Takes what the joiner gives.
pub trait Sink {
    fn example(&mut self, example: Joined<'_>);
    fn query(&mut self, query: &QueryRecord<'_>);
    fn seen(&mut self, key: u64);
    fn dead(&mut self, letter: DeadLetter);
}

/// An event whose query has not come yet, as it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub part: String,
    pub offset: u64,
    pub time: i64,
    pub payload: String,
}

/// What has to outlive the process, beside the queries and keys that the sink was given and the events that wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The log's time: the middle one of many records, so that a client whose clock is wrong moves nothing.
    pub now: i64,
    /// The times of the records since.
    pub times: Vec<i64>,
    /// How many of the latest queries are remembered, and how many of the latest keys.
    pub queries: u64,
    pub seen: u64,
}

pub struct Joiner {
    lane: Lane,
    window: Window,
    strength: Strength,
    now: i64,
    times: Vec<i64>,
    queries: HashMap<u64, Known, Ready>,
    order: VecDeque<u64>,
    seen: HashSet<u64, Ready>,
    seen_order: VecDeque<u64>,
    /// Bytes of their texts.
    query_bytes: usize,
    /// By arrival, each with its query's key.
    waiting: BTreeMap<u64, (u64, Waiting)>,
    /// The arrivals of one query's events.
    by_query: HashMap<u64, VecDeque<u64>, Ready>,
    waiting_bytes: usize,
    arrivals: u64,
    pub counts: Counts,
}

struct Known {
    text: Box<str>,
    time: i64,
}

impl Joiner {
    pub fn new(lane: Lane, window: Window, strength: Strength) -> Self {
        Self {
            lane,
            window,
            strength,
            now: i64::MIN,
            times: Vec::with_capacity(TICK),
            queries: HashMap::default(),
            order: VecDeque::new(),
            seen: HashSet::default(),
            seen_order: VecDeque::new(),
            query_bytes: 0,
            waiting: BTreeMap::new(),
            by_query: HashMap::default(),
            waiting_bytes: 0,
            arrivals: 0,
            counts: Counts::default(),
        }
    }

    /// Back to where a stretch ended. `queries` (id, text, time) and `keys` are the latest that the sink was given, at least
    /// as many as were remembered, in their order.
    pub fn restore(&mut self, state: &State, queries: &[(String, String, i64)], keys: &[u64], waiting: &[Waiting]) {
        (self.now, self.times) = (state.now, state.times.clone());
        for (id, text, time) in &queries[queries.len().saturating_sub(state.queries as usize)..] {
            self.remember_query(id, text, *time);
        }
        keys[keys.len().saturating_sub(state.seen as usize)..].iter().for_each(|key| self.remember_event(*key));
        for event in waiting {
            if let Ok(Record::Event(record)) = Record::parse(event.payload.as_bytes()) {
                self.wait(key(&[record.query_id.as_bytes()]), event.clone());
            }
        }
    }

    /// What `restore` needs to go on from here.
    pub fn state(&self) -> State {
        let (queries, seen) = (self.order.len() as u64, self.seen_order.len() as u64);
        State { now: self.now, times: self.times.clone(), queries, seen }
    }

    fn remember_query(&mut self, query_id: &str, text: &str, time: i64) {
        let query = key(&[query_id.as_bytes()]);
        if let std::collections::hash_map::Entry::Vacant(place) = self.queries.entry(query) {
            place.insert(Known { text: text.into(), time });
            self.query_bytes += text.len();
            self.order.push_back(query);
        }
    }

    fn remember_event(&mut self, key: u64) {
        if self.seen.insert(key) {
            self.seen_order.push_back(key);
        }
    }

    pub fn strength(&self) -> &Strength {
        &self.strength
    }

    /// The events that wait, in the order they came.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.waiting.values().map(|(_, event)| event)
    }

    /// One message.
    pub fn take(&mut self, message: &Message<'_>, sink: &mut impl Sink) {
        self.counts.messages += 1;
        if message.payload.is_empty() {
            self.counts.passed_over += 1;
            return;
        }
        match Record::parse(message.payload) {
            Ok(Record::Query(query)) => self.take_query(&query, sink),
            Ok(Record::Event(event)) => self.take_event(&event, message, sink),
            Ok(Record::Other | Record::Bulk) => self.counts.passed_over += 1,
            Err(reason) => {
                self.bury((message.part, message.offset), reason, text(message.payload), sink);
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
            // it was read once already
            if let Ok(Record::Event(record)) = Record::parse(event.payload.as_bytes()) {
                let from = (event.part.as_str(), event.offset);
                match self.in_window(event.time, query.time) {
                    true => self.accept(&record, &query.text, from, sink),
                    false => self.bury(from, self.too_far(), event.payload, sink),
                }
            }
        }
    }

    fn take_event(&mut self, event: &EventRecord<'_>, message: &Message<'_>, sink: &mut impl Sink) {
        let time = event.time.to_le_bytes();
        let text_of_it = event.text.as_deref().filter(|_| event.query_id.is_empty()).unwrap_or_default().as_bytes();
        let id = [event.query_id.as_bytes(), event.client_id.as_bytes(), event.item.as_bytes(), &time, text_of_it];
        let id = key(&id) ^ (event.action as u64 + 1);
        if self.seen.contains(&id) {
            self.counts.repeated += 1;
            return;
        }
        self.remember_event(id);
        sink.seen(id);
        self.tick(event.time, sink);
        if event.action == Action::Impression {
            self.counts.impressions += 1;
            return;
        }
        let from = (message.part, message.offset);
        if let Some(query) = &event.text {
            return self.accept(event, query, from, sink);
        }
        let query = key(&[event.query_id.as_bytes()]);
        match self.queries.get(&query).map(|known| (known.text.clone(), known.time)) {
            Some((text, time)) if self.in_window(event.time, time) => self.accept(event, &text, from, sink),
            Some(_) => self.bury(from, self.too_far(), text(message.payload), sink),
            None if message.payload.len() > KEPT_OF_DEAD => {
                let reason = "came before its query and is too long to wait for it";
                self.bury(from, reason.into(), text(message.payload), sink);
            }
            None => {
                let (part, offset) = (message.part.to_owned(), message.offset);
                self.wait(query, Waiting { part, offset, time: event.time, payload: text(message.payload) });
                self.forget(sink);
            }
        }
    }

    fn accept(&mut self, event: &EventRecord<'_>, query: &str, (part, offset): (&str, u64), sink: &mut impl Sink) {
        self.counts.examples += 1;
        let strength = self.strength.of(event.action, event.position);
        let (item, action, time) = (&*event.item, event.action, event.time);
        sink.example(Joined { query, item, action, strength, time, part, offset });
    }

    fn wait(&mut self, query: u64, event: Waiting) {
        self.by_query.entry(query).or_default().push_back(self.arrivals);
        self.waiting_bytes += event.payload.len();
        self.waiting.insert(self.arrivals, (query, event));
        self.arrivals += 1;
    }

    fn bury(&mut self, (part, offset): (&str, u64), reason: Cow<'static, str>, payload: String, sink: &mut impl Sink) {
        self.counts.dead += 1;
        let (lane, part) = (self.lane.name().to_owned(), part.to_owned());
        sink.dead(DeadLetter { lane, part, offset, reason: reason.into_owned(), payload });
    }

    fn tick(&mut self, time: i64, sink: &mut impl Sink) {
        self.times.push(time);
        if self.times.len() == TICK {
            let (_, middle, _) = self.times.select_nth_unstable(TICK / 2);
            self.now = self.now.max(*middle);
            self.times.clear();
        }
        self.forget(sink);
    }

    fn in_window(&self, event: i64, query: i64) -> bool {
        event.abs_diff(query) <= self.window_millis()
    }

    fn too_far(&self) -> Cow<'static, str> {
        format!("is more than {} minutes from its query", self.window.minutes).into()
    }

    fn window_millis(&self) -> u64 {
        u64::from(self.window.minutes) * 60_000
    }

    /// Drops what is beyond the window. An event that waited in vain is a dead letter.
    fn forget(&mut self, sink: &mut impl Sink) {
        let oldest = self.now.saturating_sub_unsigned(self.window_millis());
        while let Some(first) = self.order.front() {
            let old = self.queries.get(first).is_none_or(|query| query.time < oldest);
            if !old && self.order.len() <= self.window.queries && self.query_bytes <= MAX_QUERY_BYTES {
                break;
            }
            if let Some(query) = self.queries.remove(first) {
                self.query_bytes -= query.text.len();
            }
            self.order.pop_front();
        }
        while self.seen_order.len() > self.window.seen {
            self.seen_order.pop_front().map(|key| self.seen.remove(&key));
        }
        while let Some((_, (_, first))) = self.waiting.first_key_value() {
            let many = self.waiting.len() > self.window.waiting || self.waiting_bytes > MAX_WAITING_BYTES;
            if first.time >= oldest && !many {
                break;
            }
            let Some((arrival, (query, event))) = self.waiting.pop_first() else { break };
            self.waiting_bytes -= event.payload.len();
            if let Some(arrivals) = self.by_query.get_mut(&query) {
                // events of one query are forgotten in the order they came
                debug_assert_eq!(arrivals.front(), Some(&arrival));
                arrivals.pop_front();
                if arrivals.is_empty() {
                    self.by_query.remove(&query);
                }
            }
            let reason = "its query did not come within the window".into();
            self.bury((&event.part, event.offset), reason, event.payload, sink);
        }
    }
}

/// The beginning of a message, with what is no text replaced.
fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(&payload[..payload.len().min(KEPT_OF_DEAD)]).into_owned()
}

/// FNV-1a over the parts, each ended by a byte that UTF-8 has not: the same in every build, for keys are written to disk.
fn key(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

/// Keys are hashes already.
type Ready = BuildHasherDefault<AsItIs>;

#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, key: u64) {
        // the low bits of FNV-1a are weak, and the table uses them
        self.0 = key ^ (key >> 32);
    }
}

#[cfg(test)]
mod tests;
