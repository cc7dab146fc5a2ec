//! Search logs: UBI 1.3 as JSON lines (with or without OpenSearch's bulk lines), or a table of clicks. Gives
//! `logs.ndjson` in one form, each query text once, and as catalogue what the log names, unless there is a real one.
//! Never joins events to queries.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Map;
use sha2::{Digest, Sha256};

use super::beir::{items, names};
use super::fields::put;
use super::intake::{Intake, Place, Refusal, hash};
use super::lines::each_line;
use super::table::{Shape, Table};
use souk_io::domain::{Item, Query};
use souk_io::error::{Error, Result};
use souk_io::time;
use souk_io::ubi::{Action, EventRecord, QueryRecord, Record};

const ENDINGS: [&str; 4] = ["ndjson", "jsonl", "json", "csv"];

pub fn import(intake: &mut Intake, from: &Path, catalogue: Option<&Path>) -> Result<()> {
    let files = logs(intake, from)?;
    if let Some(catalogue) = catalogue {
        items(intake, catalogue)?;
        beside(intake, catalogue, &files)?;
    }
    let mut log = Log { known_catalogue: catalogue.is_some(), texts: HashMap::new(), unnamed_items: false };
    for file in &files {
        match is_table(file) {
            true => log.clicks(intake, file)?,
            false => log.read(intake, file)?,
        }
    }
    if log.unnamed_items {
        files.iter().filter(|file| !is_table(file)).try_for_each(|file| bare_items(intake, file))?;
    }
    Ok(())
}

/// Of the folder of a catalogue only its items are read: the summary says what lies beside them.
fn beside(intake: &mut Intake, catalogue: &Path, logs: &[PathBuf]) -> Result<()> {
    let folder = catalogue.parent().unwrap_or(Path::new("."));
    let others = names(folder)?.into_iter().map(|name| folder.join(name));
    let unread = others.filter(|path| path != catalogue && !logs.contains(path));
    intake.summary.unread_files.extend(unread.map(|path| path.display().to_string()));
    Ok(())
}

/// Only the lines of a log, for a folder that has its own catalogue and queries.
pub fn records(intake: &mut Intake, file: &Path) -> Result<()> {
    each_line(intake, file, |intake, line, place| record(intake, line, place).map(drop))
}

fn logs(intake: &mut Intake, from: &Path) -> Result<Vec<PathBuf>> {
    if from.is_file() {
        return Ok(vec![from.into()]);
    }
    let ending = |name: &str| Path::new(name.strip_suffix(".gz").unwrap_or(name)).extension().is_some_and(is_log);
    let (logs, others): (Vec<_>, Vec<_>) = names(from)?.into_iter().partition(|name| ending(name));
    if logs.is_empty() {
        let problem = format!("has no logs (.ndjson, .jsonl, .json or .csv); it has: {}", others.join(", "));
        return Err(Error::config(from.display(), problem));
    }
    intake.summary.unread_files = others;
    Ok(logs.into_iter().map(|name| from.join(name)).collect())
}

fn is_log(ending: &std::ffi::OsStr) -> bool {
    ENDINGS.iter().any(|known| ending == *known)
}

fn is_table(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".gz").unwrap_or(&name).ends_with(".csv")
}

/// What a record does not carry on.
#[derive(Default, Deserialize)]
struct Beside {
    #[serde(default)]
    application: Option<String>,
    #[serde(default)]
    action_name: Option<String>,
    #[serde(default)]
    event_attributes: Option<Attributes>,
}

#[derive(Default, Deserialize)]
struct Attributes {
    #[serde(default)]
    object: Option<Object>,
}

#[derive(Default, Deserialize)]
struct Object {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    description: Option<String>,
}

impl Beside {
    fn of(line: &str) -> Self {
        serde_json::from_str(line).unwrap_or_default()
    }

    /// What the log calls the item.
    fn title(self) -> Option<String> {
        let object = self.event_attributes?.object?;
        let said = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        said(object.name).or(said(object.description))
    }
}

/// Writes the line to the log, if it belongs there.
fn record<'a>(intake: &mut Intake, line: &'a str, place: &Place) -> Result<Option<(Record<'a>, Beside)>> {
    let record = match Record::parse(line.as_bytes()) {
        Ok(record) => record,
        Err(refusal) => {
            // what follows the colon is particular to the line
            let (reason, detail) = match refusal.split_once(": ") {
                Some((reason, detail)) => (reason.to_owned(), Some(detail.to_owned())),
                None => (refusal.into_owned(), None),
            };
            intake.reject(place, &Refusal { reason: reason.into(), detail })?;
            return Ok(None);
        }
    };
    let beside = Beside::of(line);
    let application = beside.application.as_deref().unwrap_or_default();
    let mut json = Vec::with_capacity(line.len());
    match &record {
        Record::Query(query) => query.write(application, &mut json),
        Record::Event(event) => event.write(application, &mut json),
        Record::Bulk => intake.leave_out("bulk lines of OpenSearch"),
        Record::Other => {
            let name = beside.action_name.as_deref().unwrap_or_default();
            intake.leave_out(&format!("events `{name}`"));
        }
    }
    if !json.is_empty() {
        intake.log_line(&json, place)?;
    }
    Ok(Some((record, beside)))
}

struct Log {
    known_catalogue: bool,
    /// The number of each text.
    texts: HashMap<u64, u64>,
    /// Some items came without a name: they may get one later in the log, and are written at the end if not.
    unnamed_items: bool,
}

impl Log {
    fn read(&mut self, intake: &mut Intake, file: &Path) -> Result<()> {
        each_line(intake, file, |intake, line, place| match record(intake, line, place)? {
            Some((Record::Query(query), _)) => {
                self.unnamed_items |= !self.known_catalogue && !query.hits.is_empty();
                self.text(intake, &query.text, place)
            }
            Some((Record::Event(event), beside)) => {
                self.item(intake, &event.item, beside.title(), place)?;
                event.text.as_deref().map_or(Ok(()), |text| self.text(intake, text, place))
            }
            _ => Ok(()),
        })
    }

    fn text(&mut self, intake: &mut Intake, text: &str, place: &Place) -> Result<()> {
        let next = self.texts.len() as u64 + 1;
        let text = text.trim();
        if self.texts.contains_key(&hash(text)) {
            return Ok(());
        }
        self.texts.insert(hash(text), next);
        intake.query(Ok(Query { id: format!("q{next}"), text: text.into() }), place)
    }

    fn item(&mut self, intake: &mut Intake, id: &str, title: Option<String>, place: &Place) -> Result<()> {
        match title {
            _ if intake.has_item(id) => Ok(()),
            _ if self.known_catalogue => {
                intake.note("events on items that the catalogue does not have");
                Ok(())
            }
            None => {
                self.unnamed_items = true;
                Ok(())
            }
            Some(title) => intake.item(Ok(bare(id, title.trim())), place),
        }
    }

    /// A table of clicks, each with the search it belongs to: one shopper's query at one time is one search.
    fn clicks(&mut self, intake: &mut Intake, file: &Path) -> Result<()> {
        let shape = Shape { separator: Some(b','), header: true };
        let mut table = Table::open(file, shape, intake)?;
        let needed = ["user", "sku", "query", "click_time", "query_time"];
        let mut columns = [0; 5];
        for (column, name) in columns.iter_mut().zip(needed) {
            *column = table.needed_column(name)?;
        }
        let category = table.column("category");
        let mut searches = HashMap::new();
        while let Some(row) = table.next(intake)? {
            let place = row.place(file);
            let [user, item, text, clicked, asked] = columns.map(|at| row.cell(at));
            let (click, query) = match search([user, item, text, clicked, asked]) {
                Ok(search) => search,
                Err(refusal) => {
                    intake.reject(&place, &refusal)?;
                    continue;
                }
            };
            if !self.known_catalogue && !intake.has_item(item) {
                let mut item = bare(item, "");
                put(&mut item.fields, "category", category.map_or("", |at| row.cell(at)));
                intake.item(Ok(item), &place)?;
            } else {
                self.item(intake, item, None, &place)?;
            }
            let mut json = Vec::new();
            if searches.insert(hash(&*query.query_id), ()).is_none() {
                query.write("", &mut json);
                intake.log_line(&json, &place)?;
                json.clear();
                self.text(intake, text, &place)?;
            }
            click.write("", &mut json);
            intake.log_line(&json, &place)?;
        }
        Ok(())
    }
}

/// A row of clicks as two records; the search's id is the hash of who asked what when.
fn search(
    [user, item, text, clicked, asked]: [&str; 5],
) -> std::result::Result<(EventRecord<'_>, QueryRecord<'_>), Refusal> {
    if [user, item, text].iter().any(|cell| cell.trim().is_empty()) {
        return Err("a click without user, sku or query".into());
    }
    let time = |text: &str| time::parse(text).ok_or_else(|| Refusal::with("a time that cannot be read", text));
    let (clicked, time) = (time(clicked)?, time(asked)?);
    let digest = Sha256::digest(format!("{user}\0{text}\0{asked}"));
    let id: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let click = EventRecord {
        action: Action::Click,
        query_id: id.clone().into(),
        client_id: user.into(),
        item: item.into(),
        position: None,
        time: clicked,
        text: None,
    };
    let query = QueryRecord { query_id: id.into(), client_id: user.into(), text: text.into(), time, hits: Vec::new() };
    Ok((click, query))
}

fn bare(id: &str, title: &str) -> Item {
    Item { id: id.into(), title: title.into(), text: String::new(), fields: Map::new() }
}

/// Another time through the log: items that it names nowhere but by their id.
fn bare_items(intake: &mut Intake, file: &Path) -> Result<()> {
    let mut lines = super::lines::Lines::open(file)?;
    while let Some(line) = lines.next()? {
        let Ok(text) = intake.decode_again(&line.bytes) else { continue };
        let ids = match Record::parse(text.trim_end().as_bytes()) {
            Ok(Record::Query(query)) => query.hits,
            Ok(Record::Event(event)) => vec![event.item],
            _ => Vec::new(),
        };
        let place = Place { file, row: line.number, start: &line.bytes };
        for id in ids.iter().filter(|id| !id.trim().is_empty()) {
            if !intake.has_item(id) {
                intake.item(Ok(bare(id, "")), &place)?;
            }
        }
    }
    Ok(())
}
