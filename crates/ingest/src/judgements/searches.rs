//! Reads a log into memory: the searches with their queries and times, and what each search showed and what of it was chosen.
//! Repeated records count once. Events whose search is missing from the log, and items that the catalogue lacks, are counted.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use std::time::Duration;

use serde::Serialize;

use crate::log::{LogSource, Signal};
use souk_io::catalogue::Catalogue;
use souk_io::domain::normalized_query;
use souk_io::error::{Error, Result};
use souk_io::ubi::{Action, EventRecord, QueryRecord, Record, RecordReader};

/// Time limit of waiting for the next lines.
const WAIT: Duration = Duration::from_secs(1);
/// Events that name their query's text instead of a search belong together if they are in the same half hour.
const SEARCH_MILLIS: i64 = 30 * 60 * 1000;

/// Counts of the log's lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogCounts {
    pub lines: u64,
    pub searches: u64,
    /// Items shown for a search, each once.
    pub shown: u64,
    /// Items chosen after a search, each once.
    pub chosen: u64,
    /// Events whose query is missing from the log.
    pub without_query: u64,
    /// Events on items that the catalogue lacks.
    pub unknown_items: u64,
    /// Lines that are neither a query nor an event on an item.
    pub skipped: u64,
    /// Lines that cannot be read.
    pub unreadable: u64,
}

/// Stands for a missing position while the log is read.
const NO_POSITION: u16 = u16::MAX;
/// Query of a search that only events name; no row refers to it.
const NO_QUERY: u32 = u32::MAX;

/// A search: its query and when it happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Index in `SearchLog::queries`.
    pub query: u32,
    /// Milliseconds since 1970.
    pub time: i64,
}

/// An item in a search: where it was shown, and the strongest thing that was done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    pub search: u32,
    pub item: u32,
    /// From 1; 0 if the log has none.
    pub position: u16,
    pub action: Action,
}

pub struct SearchLog {
    /// Text of each query as first written. Queries that differ only in case and spaces are one.
    pub queries: Vec<String>,
    pub searches: Vec<Search>,
    /// One row for each item of a search, in the order of searches.
    pub shown: Vec<Shown>,
    /// Whether the log says what was shown, not only what was chosen.
    pub has_impressions: bool,
    pub counts: LogCounts,
}

impl SearchLog {
    /// Reads a source to its end, which must not follow its log. `name` is for errors.
    pub fn read(
        source: &mut dyn LogSource,
        name: &str,
        catalogue: &Catalogue,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let mut reading = Reading::default();
        let mut reader = RecordReader::default();
        loop {
            let batch = match source.next(WAIT)? {
                Some(Signal::Batch(batch)) => batch,
                Some(Signal::Ended) => break,
                // nothing is committed, so a lane can move at once
                Some(Signal::Opened(..) | Signal::Closed(..)) | None => continue,
            };
            for message in batch.messages() {
                reading.counts.lines += 1;
                match reader.read(message.payload) {
                    Ok(Record::Query(query)) => reading.query(&query, catalogue),
                    Ok(Record::Event(event)) => reading.event(&event, catalogue),
                    Ok(Record::Other | Record::Bulk) => reading.counts.skipped += 1,
                    Err(_) => reading.counts.unreadable += 1,
                }
            }
            progress(batch.len() as u64);
        }
        reading.finish().map_err(|problem| Error::input(format!("{name}: {problem}")))
    }

    pub fn search_times(&self) -> impl Iterator<Item = i64> {
        self.searches.iter().filter(|search| search.query != NO_QUERY).map(|search| search.time)
    }
}

/// The log so far. Events may come before their query.
#[derive(Default)]
struct Reading {
    texts: HashMap<String, u32>,
    queries: Vec<String>,
    /// Index of each search, by the hash of its identifier.
    keys: HashMap<u64, u32>,
    /// Query, if known, and time.
    searches: Vec<(Option<u32>, i64)>,
    /// Positions counted from 1.
    hits: Vec<Shown>,
    /// Positions as logged, from 0 or from 1.
    events: Vec<Shown>,
    has_impressions: bool,
    counts: LogCounts,
}

impl Reading {
    fn query(&mut self, query: &QueryRecord<'_>, catalogue: &Catalogue) {
        let text = self.text(&query.text);
        let search = self.search(hash(&query.query_id), query.time);
        self.searches[search as usize] = (Some(text), query.time);
        self.has_impressions |= !query.hits.is_empty();
        for (hit, position) in query.hits.iter().zip(1_u16..) {
            match catalogue.row(hit) {
                Some(item) => self.hits.push(Shown { search, item, position, action: Action::Impression }),
                None => self.counts.unknown_items += 1,
            }
        }
    }

    fn event(&mut self, event: &EventRecord<'_>, catalogue: &Catalogue) {
        let search = match &event.text {
            Some(text) if event.query_id.is_empty() => {
                let query = self.text(text);
                let search = self.search(hash(&(&event.client_id, query, event.time / SEARCH_MILLIS)), event.time);
                self.searches[search as usize].0 = Some(query);
                search
            }
            _ => self.search(hash(&event.query_id), event.time),
        };
        let Some(item) = catalogue.row(&event.item) else {
            self.counts.unknown_items += 1;
            return;
        };
        self.has_impressions |= event.action == Action::Impression;
        let position = event.position.map_or(NO_POSITION, |at| u16::try_from(at).unwrap_or(NO_POSITION - 1));
        self.events.push(Shown { search, item, position, action: event.action });
    }

    fn text(&mut self, text: &str) -> u32 {
        let next = self.queries.len() as u32;
        let query = *self.texts.entry(normalized_query(text)).or_insert(next);
        if query == next {
            self.queries.push(text.trim().to_owned());
        }
        query
    }

    fn search(&mut self, key: u64, time: i64) -> u32 {
        let next = self.searches.len() as u32;
        let search = *self.keys.entry(key).or_insert(next);
        if search == next {
            self.searches.push((None, time));
        }
        search
    }

    fn finish(mut self) -> std::result::Result<SearchLog, String> {
        let mut shown = std::mem::take(&mut self.hits);
        let mut events = std::mem::take(&mut self.events);
        let shift = u16::from(events.iter().any(|event| event.position == 0));
        for event in &mut events {
            event.position = if event.position == NO_POSITION { 0 } else { event.position + shift };
        }
        shown.append(&mut events);
        let before = shown.len();
        shown.retain(|shown| self.searches[shown.search as usize].0.is_some());
        self.counts.without_query = (before - shown.len()) as u64;
        if shown.is_empty() {
            return Err(self.nothing());
        }
        // one row for each item of a search: its first position and strongest action
        shown.sort_unstable();
        shown.dedup_by(|again, kept| {
            let is_same = (again.search, again.item) == (kept.search, kept.item);
            if is_same {
                kept.action = kept.action.max(again.action);
                kept.position = if kept.position == 0 { again.position } else { kept.position };
            }
            is_same
        });
        let searches =
            self.searches.iter().map(|(query, time)| Search { query: query.unwrap_or(NO_QUERY), time: *time });
        self.counts.searches = self.searches.iter().filter(|(query, _)| query.is_some()).count() as u64;
        self.counts.shown = shown.len() as u64;
        self.counts.chosen = shown.iter().filter(|shown| shown.action > Action::Impression).count() as u64;
        Ok(SearchLog {
            searches: searches.collect(),
            queries: self.queries,
            shown,
            has_impressions: self.has_impressions,
            counts: self.counts,
        })
    }

    fn nothing(&self) -> String {
        let counts = &self.counts;
        if counts.unknown_items > 0 && counts.without_query == 0 {
            return format!(
                "all {} events are on items that the catalogue lacks: do log and catalogue use the same ids?",
                counts.unknown_items
            );
        }
        format!(
            "no event on an item of the catalogue has a query: {} lines, {} unreadable, {} events without their query, {} \
             on unknown items",
            counts.lines, counts.unreadable, counts.without_query, counts.unknown_items
        )
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::log::file::{FileSettings, FileSource};
    use crate::log::{Lane, OnGap};
    use souk_io::beir::DataFolder;

    fn read(log: &str) -> Result<SearchLog> {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("corpus.jsonl"), "{\"_id\":\"a\"}\n{\"_id\":\"b\"}\n{\"_id\":\"c\"}\n").unwrap();
        let file = home.path().join("logs.ndjson");
        fs::write(&file, log).unwrap();
        let catalogue = Catalogue::open(&DataFolder::open(home.path()).unwrap()).unwrap();
        let settings = FileSettings { paths: vec![file], follow: false, on_gap: OnGap::Stop };
        let mut source = FileSource::open(settings, Arc::new(|_: &Lane| Ok(None)))?;
        SearchLog::read(&mut source, "logs.ndjson", &catalogue, &mut |_| ())
    }

    fn query(id: &str, text: &str, hits: &str) -> String {
        format!(
            "{{\"query_id\":\"{id}\",\"user_query\":\"{text}\",\"timestamp\":1000,\"query_response_hit_ids\":[{hits}]}}\n"
        )
    }

    fn event(id: &str, item: &str, action: &str, position: u32) -> String {
        format!(
            "{{\"action_name\":\"{action}\",\"query_id\":\"{id}\",\"timestamp\":2000,\"event_attributes\":{{\"object\":\
             {{\"object_id\":\"{item}\"}},\"position\":{{\"ordinal\":{position}}}}}}}\n"
        )
    }

    #[test]
    fn an_item_of_a_search_is_one_row_with_its_strongest_action() {
        let log = [
            // before its query, and twice
            event("s1", "b", "click", 1),
            event("s1", "b", "click", 1),
            query("s1", "Oak  desk", "\"a\", \"b\", \"gone\""),
            event("s1", "b", "purchase", 1),
            query("s2", "oak desk", "\"b\""),
            event("s3", "a", "click", 0),
            "nonsense\n".into(),
        ];
        let found = read(&log.concat()).unwrap();
        assert_eq!(found.queries, ["Oak  desk"], "case and spaces do not make another query");
        let rows: Vec<_> = found.shown.iter().map(|row| (row.search, row.item, row.position, row.action)).collect();
        // the events count from 0, the hits from 1
        assert_eq!(rows, [(0, 0, 1, Action::Impression), (0, 1, 2, Action::Purchase), (1, 1, 1, Action::Impression)]);
        let counts = &found.counts;
        assert_eq!((counts.lines, counts.searches, counts.shown, counts.chosen), (7, 2, 3, 1));
        assert_eq!((counts.without_query, counts.unknown_items, counts.unreadable), (1, 1, 1));
        assert_eq!(found.search_times().collect::<Vec<_>>(), [1000, 1000]);
    }

    #[test]
    fn a_log_without_a_usable_event_says_why() {
        let unknown = [query("s1", "desk", ""), event("s1", "x7", "click", 1)].concat();
        let error = read(&unknown).err().unwrap().to_string();
        assert!(error.contains("do log and catalogue use the same ids"), "{error}");
        let error = read(&event("s1", "a", "click", 1)).err().unwrap().to_string();
        assert!(error.contains("1 events without their query"), "{error}");
    }
}
