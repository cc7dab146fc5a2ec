//! Rows of a log in memory, with each text once. Takes the rows of its files, rejects those without an item or with an
//! unreadable time, counts and skips those without a query and those whose event has an unknown name.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::rc::Rc;

use super::log_columns::LogColumns;
use crate::import::event_names::EventKind;
use crate::import::guess::{Guess, whole_number};
use crate::import::import_writer::ImportWriter;
use crate::import::log_output::{LogOutput, item_with_title};
use crate::import::rejection::{Rejection, RowLocation};
use crate::import::rows::{Row, RowFile};
use crate::import::times;
use souk_io::error::Result;

/// Examples kept of times that cannot be read.
const MAX_EXAMPLES: usize = 3;
/// Different names of events that are counted.
const MAX_NAMES: usize = 100;

/// Distinct texts with their numbers.
#[derive(Default)]
pub struct Texts {
    numbers: HashMap<Rc<str>, u32>,
    texts: Vec<Rc<str>>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let (text, number): (Rc<str>, u32) = (text.into(), self.texts.len() as u32);
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        number
    }

    pub fn text(&self, number: u32) -> &str {
        &self.texts[number as usize]
    }
}

/// One event of the log.
pub struct LoggedRow {
    pub session: u32,
    pub query: u32,
    /// `None` for a search.
    pub item: Option<u32>,
    pub kind: EventKind,
    pub time: i64,
    pub query_time: Option<i64>,
    /// As logged, from 0 or from 1.
    pub position: Option<u32>,
    pub file: u32,
    pub number: u64,
}

#[derive(Default)]
pub struct LoggedRows {
    pub rows: Vec<LoggedRow>,
    pub sessions: Texts,
    pub queries: Texts,
    pub items: Texts,
    pub files: Vec<PathBuf>,
    /// Rows with a time, and those whose time cannot be read.
    pub num_timed: u64,
    pub num_unreadable: u64,
    /// Examples of such times.
    pub unreadable: Vec<String>,
    pub known_events: BTreeMap<String, u64>,
    pub unknown_events: BTreeMap<String, u64>,
}

/// Why a row is not kept.
enum Unusable {
    /// It is out of scope.
    Skipped(Cow<'static, str>),
    Rejected(Rejection),
}

impl LoggedRows {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn num_events(&self, kind: EventKind) -> usize {
        self.rows.iter().filter(|row| row.kind == kind).count()
    }

    pub fn location(&self, row: &LoggedRow) -> RowLocation<'_> {
        RowLocation { file: &self.files[row.file as usize], row: row.number, start: &[] }
    }

    /// Reads a file.
    pub fn read(
        &mut self,
        writer: &mut ImportWriter,
        guess: &Guess,
        columns: &LogColumns,
        output: &mut LogOutput,
    ) -> Result<()> {
        let Some(format) = guess.format() else { return Ok(()) };
        let mut rows = RowFile::open(&guess.file, format)?;
        self.files.push(guess.file.clone());
        while let Some(row) = rows.next(writer)? {
            match self.add(&row, columns, writer) {
                Ok(()) => self.write_texts(&row, columns, writer, output)?,
                Err(Unusable::Skipped(kind)) => writer.skip(&kind),
                Err(Unusable::Rejected(rejection)) => row.reject(&guess.file, &rejection, writer)?,
            }
        }
        Ok(())
    }

    /// Keeps the events of a row.
    fn add(&mut self, row: &Row, columns: &LogColumns, writer: &mut ImportWriter) -> std::result::Result<(), Unusable> {
        let kinds = match columns.kinds(row) {
            Ok(kinds) => kinds,
            Err(name) => {
                count(&mut self.unknown_events, &name);
                return Err(Unusable::Skipped(format!("events `{name}`").into()));
            }
        };
        if let Some(event) = &columns.event {
            count(&mut self.known_events, &row.text(event));
        }
        let query = row.text(&columns.query);
        if query.trim().is_empty() {
            return Err(Unusable::Skipped("rows without a query".into()));
        }
        let item = known_item(&row.text(&columns.item), writer);
        if item.is_none() && kinds.iter().any(|kind| *kind != EventKind::Search) {
            return Err(Unusable::Rejected("missing item".into()));
        }
        let time = self.time(row, columns)?;
        let query_time = columns.query_time.as_ref().and_then(|place| times::parse(&row.text(place), columns.order));
        let session = columns.session.as_ref().map_or(Cow::Borrowed(""), |place| row.text(place));
        let (session, query) = (self.sessions.number(session.trim()), self.queries.number(query.trim()));
        let item = item.map(|item| self.items.number(&item));
        let position = columns.position.as_ref().and_then(|place| position(&row.text(place), writer));
        let (file, number) = (self.files.len() as u32 - 1, row.number());
        for kind in kinds {
            let item = item.filter(|_| kind != EventKind::Search);
            self.rows.push(LoggedRow { session, query, item, kind, time, query_time, position, file, number });
        }
        Ok(())
    }

    /// Time of a row. Without a column for it, the rows are a millisecond apart.
    fn time(&mut self, row: &Row, columns: &LogColumns) -> std::result::Result<i64, Unusable> {
        if columns.time.is_empty() {
            return Ok(self.rows.len() as i64);
        }
        let text = columns.time_text(row);
        if text.trim().is_empty() {
            return Err(Unusable::Rejected("missing time".into()));
        }
        self.num_timed += 1;
        times::parse(&text, columns.order).ok_or_else(|| {
            self.num_unreadable += 1;
            if self.unreadable.len() < MAX_EXAMPLES {
                self.unreadable.push(text.trim().to_owned());
            }
            Unusable::Rejected(Rejection::with("unreadable time", text.trim()))
        })
    }

    /// Writes the query of the row just kept and notes its item.
    fn write_texts(
        &self,
        row: &Row,
        columns: &LogColumns,
        writer: &mut ImportWriter,
        output: &mut LogOutput,
    ) -> Result<()> {
        let Some(kept) = self.rows.last() else { return Ok(()) };
        let location = self.location(kept);
        output.add_query(writer, self.queries.text(kept.query), &location)?;
        let Some(item) = kept.item else { return Ok(()) };
        let title = columns.title.as_ref().map(|place| row.text(place).into_owned());
        let title = title.filter(|title| !title.trim().is_empty());
        output.add_item(writer, self.items.text(item), title, &location)
    }

    /// Writes the items that never came with a title.
    pub fn write_untitled_items(&self, writer: &mut ImportWriter, output: &LogOutput) -> Result<()> {
        if output.has_catalogue {
            return Ok(());
        }
        let mut is_seen = vec![false; self.items.texts.len()];
        for row in &self.rows {
            let Some(item) = row.item.filter(|item| !std::mem::replace(&mut is_seen[*item as usize], true)) else {
                continue;
            };
            let id = self.items.text(item);
            if !writer.has_item(id) {
                writer.add_item(Ok(item_with_title(id, "")), &self.location(row))?;
            }
        }
        Ok(())
    }
}

/// Counts a name, unless there are already very many.
fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    if counts.len() < MAX_NAMES || counts.contains_key(name) {
        *counts.entry(name.trim().to_owned()).or_default() += 1;
    }
}

/// Item of a row; `None` if it has none. `7.0` is item `7` if the catalogue has that one alone: some tools write whole
/// numbers as floats where a column has gaps.
fn known_item(text: &str, writer: &mut ImportWriter) -> Option<String> {
    let item = text.trim();
    match item.strip_suffix(".0").filter(|whole| writer.has_item(whole) && !writer.has_item(item)) {
        Some(whole) => {
            writer.note("item ids such as `7.0` read as `7`");
            Some(whole.to_owned())
        }
        None => (!item.is_empty()).then(|| item.to_owned()),
    }
}

fn position(text: &str, writer: &mut ImportWriter) -> Option<u32> {
    let position = whole_number(text).and_then(|number| u32::try_from(number).ok()).filter(|number| *number < u32::MAX);
    if position.is_none() && !text.trim().is_empty() {
        writer.note("positions that are not whole numbers, left out");
    }
    position
}
