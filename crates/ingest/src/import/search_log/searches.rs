//! Searches of a log. Takes its rows, groups them by session and query, and writes each search with the items shown, then
//! its events, in the order of time. A gap of more than 30 minutes starts a new search, unless the log says when each
//! search was.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use super::logged_rows::{LoggedRow, LoggedRows};
use crate::import::event_names::EventKind;
use crate::import::import_writer::ImportWriter;
use crate::import::log_output::search_id;
use souk_io::error::Result;
use souk_io::time;
use souk_io::ubi::{Action, EventRecord, QueryRecord};

/// Longest time between two rows of a search, in milliseconds.
const MAX_GAP: i64 = 30 * 60_000;

/// Rows of a search, as a range of the sorted rows.
struct Search {
    rows: Range<usize>,
    time: i64,
}

/// How the log numbers the positions of hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbering {
    FromZero,
    FromOne,
}

pub fn write(mut logged: LoggedRows, writer: &mut ImportWriter) -> Result<()> {
    let numbering = numbering(&logged.rows);
    let rank = |row: &LoggedRow| position(row, numbering).unwrap_or(u32::MAX);
    // events at one time in the order of a purchase, hits from the top
    logged.rows.sort_by_key(|row| {
        (row.session, row.query, row.query_time, row.time, order(row.kind), rank(row), row.file, row.number)
    });
    let mut searches = searches(&logged.rows);
    searches.sort_by_key(|search| (search.time, search.rows.start));
    for search in &searches {
        write_search(&logged, search, numbering, writer)?;
    }
    writer.summary.searches += searches.len() as u64;
    if numbering == Numbering::FromOne && logged.rows.iter().any(|row| row.position == Some(0)) {
        writer.note("positions of 0 in a log that counts from 1, left out");
    }
    Ok(())
}

fn order(kind: EventKind) -> usize {
    match kind {
        EventKind::Search => 0,
        EventKind::Action(action) => action as usize + 1,
    }
}

/// Positions count from 0 if zeros are common: the first place is shown and clicked as often as the second.
fn numbering(rows: &[LoggedRow]) -> Numbering {
    let count = |position| rows.iter().filter(|row| row.position == Some(position)).count();
    let (zeros, ones) = (count(0), count(1));
    if zeros > 0 && 2 * zeros >= ones { Numbering::FromZero } else { Numbering::FromOne }
}

/// Position from 1.
fn position(row: &LoggedRow, numbering: Numbering) -> Option<u32> {
    match numbering {
        Numbering::FromZero => row.position.map(|position| position + 1),
        Numbering::FromOne => row.position.filter(|position| *position > 0),
    }
}

/// Cuts the sorted rows into searches.
fn searches(rows: &[LoggedRow]) -> Vec<Search> {
    let mut searches: Vec<Search> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let is_next = |before: &LoggedRow| {
            let is_near = row.query_time.is_some() || row.time - before.time <= MAX_GAP;
            let key = |row: &LoggedRow| (row.session, row.query, row.query_time);
            key(row) == key(before) && is_near
        };
        match searches.last_mut() {
            Some(search) if is_next(&rows[at - 1]) => search.rows.end = at + 1,
            _ => searches.push(Search { rows: at..at + 1, time: row.query_time.unwrap_or(row.time) }),
        }
    }
    searches
}

fn write_search(logged: &LoggedRows, search: &Search, numbering: Numbering, writer: &mut ImportWriter) -> Result<()> {
    let rows = &logged.rows[search.rows.clone()];
    let Some(first) = rows.first() else { return Ok(()) };
    let (client, text) = (logged.sessions.text(first.session), logged.queries.text(first.query));
    let id = search_id(&format!("{client}\0{text}\0{}", time::format(search.time)));
    let query = QueryRecord {
        query_id: id.as_str().into(),
        client_id: client.into(),
        text: text.into(),
        time: search.time,
        hits: hits(logged, rows, numbering),
    };
    let mut json = Vec::new();
    query.write("", &mut json);
    writer.add_log_line(&json, &logged.location(first))?;
    for row in rows {
        let (EventKind::Action(action), Some(item)) = (row.kind, row.item) else { continue };
        let event = EventRecord {
            action,
            query_id: id.as_str().into(),
            client_id: client.into(),
            item: logged.items.text(item).into(),
            position: position(row, numbering),
            time: row.time,
            text: None,
        };
        json.clear();
        event.write("", &mut json);
        writer.add_log_line(&json, &logged.location(row))?;
        *writer.summary.events.entry(action.name()).or_default() += 1;
    }
    Ok(())
}

/// Items shown, from the top; those without a position follow in the order of time.
fn hits<'a>(logged: &'a LoggedRows, rows: &[LoggedRow], numbering: Numbering) -> Vec<Cow<'a, str>> {
    let mut shown: Vec<&LoggedRow> =
        rows.iter().filter(|row| row.kind == EventKind::Action(Action::Impression)).collect();
    shown.sort_by_key(|row| position(row, numbering).unwrap_or(u32::MAX));
    let mut seen = HashSet::new();
    let items = shown.into_iter().filter_map(|row| row.item).filter(|item| seen.insert(*item));
    items.map(|item| logged.items.text(item).into()).collect()
}
