//! Columns of a search log with a meaning: the query, item, time and events of a row.

use std::borrow::Cow;

use crate::import::event_names::{EventKind, EventName, event_kind};
use crate::import::guess::{FLAGS, Guess, flag};
use crate::import::rows::{ColumnPlace, Row};
use crate::import::times::DayOrder;
use souk_io::error::{Error, Result};
use souk_io::ubi::Action;

/// Columns of a log with a meaning, and how to read them.
pub struct LogColumns<'a> {
    pub query: ColumnPlace,
    pub item: ColumnPlace,
    /// Several columns, such as a date and a time of day, are joined.
    pub time: Vec<ColumnPlace>,
    pub query_time: Option<ColumnPlace>,
    pub session: Option<ColumnPlace>,
    pub event: Option<ColumnPlace>,
    pub position: Option<ColumnPlace>,
    pub title: Option<ColumnPlace>,
    /// Columns with 0 and 1 for an action.
    flags: Vec<(Action, ColumnPlace)>,
    pub order: DayOrder,
    events: &'a [EventName],
}

impl<'a> LogColumns<'a> {
    pub fn of(guess: &Guess, order: DayOrder, events: &'a [EventName]) -> Result<Self> {
        let all = |field: &str| -> Vec<ColumnPlace> {
            guess.places().filter(|(name, _)| *name == field).map(|(_, place)| place.clone()).collect()
        };
        let one = |field: &str| all(field).into_iter().next();
        let needed = |field: &str| {
            one(field).ok_or_else(|| Error::data(&guess.file, None, format!("has no column for the {field}")))
        };
        let flags = FLAGS.into_iter().filter_map(|name| {
            let action = Action::ALL.into_iter().find(|action| action.name() == name)?;
            Some((action, one(name)?))
        });
        Ok(Self {
            query: needed("query")?,
            item: needed("item")?,
            time: all("time"),
            query_time: one("query_time"),
            session: one("session"),
            event: one("event"),
            position: one("position"),
            title: one("item_title"),
            flags: flags.collect(),
            order,
            events,
        })
    }

    pub fn time_text<'r>(&self, row: &'r Row) -> Cow<'r, str> {
        match self.time.as_slice() {
            [only] => row.text(only),
            several => several.iter().map(|place| row.text(place)).collect::<Vec<_>>().join(" ").into(),
        }
    }

    /// Events that a row reports; the error is the name of an unknown one.
    pub fn kinds<'r>(&self, row: &'r Row) -> std::result::Result<Vec<EventKind>, Cow<'r, str>> {
        if let Some(event) = &self.event {
            let name = row.text(event);
            let given = self.events.iter().find(|event| event.name == name.trim()).map(|event| event.kind);
            return given.or_else(|| event_kind(&name)).map(|kind| vec![kind]).ok_or(name);
        }
        if self.flags.is_empty() {
            return Ok(vec![EventKind::Action(Action::Click)]);
        }
        let set =
            self.flags.iter().filter(|(_, place)| flag(&row.text(place)) == Some(true)).map(|(action, _)| *action);
        Ok([Action::Impression].into_iter().chain(set).map(EventKind::Action).collect())
    }
}
