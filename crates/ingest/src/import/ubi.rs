//! Search logs: UBI 1.3 as JSON lines (with or without OpenSearch bulk lines), or a table of clicks. Gives a normalised
//! `logs.ndjson`, each distinct query text once, and, without a catalogue, the items that the log names. Never joins
//! events to queries.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Map;
use sha2::{Digest, Sha256};

use super::corpus::import_items;
use super::fields::put;
use super::folder::file_names;
use super::import_writer::{ImportWriter, hash};
use super::lines::{Lines, each_line};
use super::rejection::{Rejection, RowLocation};
use super::table::{Table, TableFormat};
use souk_io::domain::{Item, Query};
use souk_io::error::{Error, Result};
use souk_io::time;
use souk_io::ubi::{Action, EventRecord, QueryRecord, Record};

const EXTENSIONS: [&str; 4] = ["ndjson", "jsonl", "json", "csv"];

pub fn import(writer: &mut ImportWriter, from: &Path, catalogue: Option<&Path>) -> Result<()> {
    let files = log_files(writer, from)?;
    if let Some(catalogue) = catalogue {
        import_items(writer, catalogue)?;
        note_unread_files(writer, catalogue, &files)?;
    }
    let mut log = LogImporter { has_catalogue: catalogue.is_some(), texts: HashMap::new(), has_untitled_items: false };
    for file in &files {
        if is_table(file) {
            log.import_clicks(writer, file)?;
        } else {
            log.import_records(writer, file)?;
        }
    }
    if log.has_untitled_items {
        files.iter().filter(|file| !is_table(file)).try_for_each(|file| add_untitled_items(writer, file))?;
    }
    Ok(())
}

/// Lists the other files of the catalogue's folder as unread.
fn note_unread_files(writer: &mut ImportWriter, catalogue: &Path, logs: &[PathBuf]) -> Result<()> {
    let folder = catalogue.parent().unwrap_or(Path::new("."));
    let others = file_names(folder)?.into_iter().map(|name| folder.join(name));
    let unread = others.filter(|path| path != catalogue && !logs.contains(path));
    writer.summary.unread_files.extend(unread.map(|path| path.display().to_string()));
    Ok(())
}

/// Imports only the log lines, for a folder with its own catalogue and queries.
pub fn records(writer: &mut ImportWriter, file: &Path) -> Result<()> {
    each_line(writer, file, |writer, line, location| import_line(writer, line, location).map(drop))
}

fn log_files(writer: &mut ImportWriter, from: &Path) -> Result<Vec<PathBuf>> {
    if from.is_file() {
        return Ok(vec![from.into()]);
    }
    let is_log = |name: &str| Path::new(name.strip_suffix(".gz").unwrap_or(name)).extension().is_some_and(is_known);
    let (logs, others): (Vec<_>, Vec<_>) = file_names(from)?.into_iter().partition(|name| is_log(name));
    if logs.is_empty() {
        let problem = format!("has no logs (.ndjson, .jsonl, .json or .csv); it has: {}", others.join(", "));
        return Err(Error::config(from.display(), problem));
    }
    writer.summary.unread_files = others;
    Ok(logs.into_iter().map(|name| from.join(name)).collect())
}

fn is_known(extension: &std::ffi::OsStr) -> bool {
    EXTENSIONS.iter().any(|known| extension == *known)
}

fn is_table(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".gz").unwrap_or(&name).ends_with(".csv")
}

/// UBI fields that `Record` does not carry.
#[derive(Default, Deserialize)]
struct ExtraFields {
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

impl ExtraFields {
    fn parse(line: &str) -> Self {
        serde_json::from_str(line).unwrap_or_default()
    }

    /// Title of the item in the log.
    fn title(self) -> Option<String> {
        let object = self.event_attributes?.object?;
        let non_blank = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        non_blank(object.name).or(non_blank(object.description))
    }
}

/// Parses a line and writes it to the log, unless it is out of scope or invalid.
fn import_line<'a>(
    writer: &mut ImportWriter,
    line: &'a str,
    location: &RowLocation,
) -> Result<Option<(Record<'a>, ExtraFields)>> {
    let record = match Record::parse(line.as_bytes()) {
        Ok(record) => record,
        Err(problem) => {
            // the text after the colon is specific to the line
            let (reason, detail) = match problem.split_once(": ") {
                Some((reason, detail)) => (reason.to_owned(), Some(detail.to_owned())),
                None => (problem.into_owned(), None),
            };
            writer.reject(location, &Rejection { reason: reason.into(), detail })?;
            return Ok(None);
        }
    };
    let extra = ExtraFields::parse(line);
    let application = extra.application.as_deref().unwrap_or_default();
    let mut json = Vec::with_capacity(line.len());
    match &record {
        Record::Query(query) => query.write(application, &mut json),
        Record::Event(event) => event.write(application, &mut json),
        Record::Bulk => writer.skip("OpenSearch bulk lines"),
        Record::Other => {
            let name = extra.action_name.as_deref().unwrap_or_default();
            writer.skip(&format!("events `{name}`"));
        }
    }
    if !json.is_empty() {
        writer.add_log_line(&json, location)?;
    }
    Ok(Some((record, extra)))
}

struct LogImporter {
    has_catalogue: bool,
    /// Number of each query text, by its hash.
    texts: HashMap<u64, u64>,
    /// Whether some items came without a title. A later line may give one; otherwise they are written at the end.
    has_untitled_items: bool,
}

impl LogImporter {
    fn import_records(&mut self, writer: &mut ImportWriter, file: &Path) -> Result<()> {
        each_line(writer, file, |writer, line, location| match import_line(writer, line, location)? {
            Some((Record::Query(query), _)) => {
                self.has_untitled_items |= !self.has_catalogue && !query.hits.is_empty();
                self.add_query(writer, &query.text, location)
            }
            Some((Record::Event(event), extra)) => {
                self.add_item(writer, &event.item, extra.title(), location)?;
                event.text.as_deref().map_or(Ok(()), |text| self.add_query(writer, text, location))
            }
            _ => Ok(()),
        })
    }

    fn add_query(&mut self, writer: &mut ImportWriter, text: &str, location: &RowLocation) -> Result<()> {
        let next = self.texts.len() as u64 + 1;
        let text = text.trim();
        if self.texts.contains_key(&hash(text)) {
            return Ok(());
        }
        self.texts.insert(hash(text), next);
        writer.add_query(Ok(Query { id: format!("q{next}"), text: text.into() }), location)
    }

    fn add_item(
        &mut self,
        writer: &mut ImportWriter,
        id: &str,
        title: Option<String>,
        location: &RowLocation,
    ) -> Result<()> {
        match title {
            _ if writer.has_item(id) => Ok(()),
            _ if self.has_catalogue => {
                writer.note("events on items missing from the catalogue");
                Ok(())
            }
            None => {
                self.has_untitled_items = true;
                Ok(())
            }
            Some(title) => writer.add_item(Ok(item_with_title(id, title.trim())), location),
        }
    }

    /// Imports a table of clicks with their searches: one user's query at one time is one search.
    fn import_clicks(&mut self, writer: &mut ImportWriter, file: &Path) -> Result<()> {
        let format = TableFormat { separator: Some(b','), header: true };
        let mut table = Table::open(file, format, writer)?;
        let needed = ["user", "sku", "query", "click_time", "query_time"];
        let mut columns = [0; 5];
        for (column, name) in columns.iter_mut().zip(needed) {
            *column = table.needed_column(name)?;
        }
        let category = table.column("category");
        let mut searches = HashMap::new();
        while let Some(row) = table.next(writer)? {
            let location = row.location(file);
            let [user, item, text, click_time, query_time] = columns.map(|at| row.cell(at));
            let (click, query) = match (ClickRow { user, item, text, click_time, query_time }).records() {
                Ok(search) => search,
                Err(rejection) => {
                    writer.reject(&location, &rejection)?;
                    continue;
                }
            };
            if !self.has_catalogue && !writer.has_item(item) {
                let mut item = item_with_title(item, "");
                put(&mut item.fields, "category", row.optional_cell(category));
                writer.add_item(Ok(item), &location)?;
            } else {
                self.add_item(writer, item, None, &location)?;
            }
            let mut json = Vec::new();
            if searches.insert(hash(&*query.query_id), ()).is_none() {
                query.write("", &mut json);
                writer.add_log_line(&json, &location)?;
                json.clear();
                self.add_query(writer, text, &location)?;
            }
            click.write("", &mut json);
            writer.add_log_line(&json, &location)?;
        }
        Ok(())
    }
}

/// Row of a click table.
struct ClickRow<'a> {
    user: &'a str,
    item: &'a str,
    text: &'a str,
    click_time: &'a str,
    query_time: &'a str,
}

impl<'a> ClickRow<'a> {
    /// Click and query as UBI records; the query id is a hash of user, text and query time.
    fn records(self) -> std::result::Result<(EventRecord<'a>, QueryRecord<'a>), Rejection> {
        let Self { user, item, text, click_time, query_time } = self;
        if [user, item, text].iter().any(|cell| cell.trim().is_empty()) {
            return Err("click without user, sku or query".into());
        }
        let parse = |text: &str| time::parse(text).ok_or_else(|| Rejection::with("invalid timestamp", text));
        let (clicked, time) = (parse(click_time)?, parse(query_time)?);
        let digest = Sha256::digest(format!("{user}\0{text}\0{query_time}"));
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
        let (query_id, client_id) = (id.into(), user.into());
        let query = QueryRecord { query_id, client_id, text: text.into(), time, hits: Vec::new() };
        Ok((click, query))
    }
}

fn item_with_title(id: &str, title: &str) -> Item {
    Item { id: id.into(), title: title.into(), text: String::new(), fields: Map::new() }
}

/// Second pass over the log: adds the items that it never gives a title.
fn add_untitled_items(writer: &mut ImportWriter, file: &Path) -> Result<()> {
    let mut lines = Lines::open(file)?;
    while let Some(line) = lines.next()? {
        let Ok(text) = writer.decode_again(&line.bytes) else { continue };
        let ids = match Record::parse(text.trim_end().as_bytes()) {
            Ok(Record::Query(query)) => query.hits,
            Ok(Record::Event(event)) => vec![event.item],
            _ => Vec::new(),
        };
        let location = RowLocation { file, row: line.number, start: &line.bytes };
        for id in ids.iter().filter(|id| !id.trim().is_empty()) {
            if !writer.has_item(id) {
                writer.add_item(Ok(item_with_title(id, "")), &location)?;
            }
        }
    }
    Ok(())
}
