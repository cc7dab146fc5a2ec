//! Search logs: UBI 1.3 as JSON lines (with or without OpenSearch bulk lines), or a table of clicks. Gives a normalised
//! `logs.ndjson`, each distinct query text once, and, without a catalogue, the items that the log names. Never joins
//! events to queries.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::click_table::import_clicks;
use super::corpus::import_items;
use super::folder::file_names;
use super::import_writer::ImportWriter;
use super::lines::{Lines, each_line};
use super::log_output::{LogOutput, item_with_title};
use super::rejection::{Rejection, RowLocation};
use souk_io::error::{Error, Result};
use souk_io::ubi::Record;

const EXTENSIONS: [&str; 4] = ["ndjson", "jsonl", "json", "csv"];

pub fn import(writer: &mut ImportWriter, from: &Path, catalogue: Option<&Path>) -> Result<()> {
    let files = log_files(writer, from)?;
    if let Some(catalogue) = catalogue {
        import_catalogue(writer, catalogue, &files)?;
    }
    let mut output = LogOutput::new(catalogue.is_some());
    for file in &files {
        if is_table(file) {
            import_clicks(writer, file, &mut output)?;
        } else {
            import_records(writer, file, &mut output)?;
        }
    }
    files.iter().filter(|file| !is_table(file)).try_for_each(|file| add_untitled_items(writer, file, &output))?;
    output.warn(writer);
    Ok(())
}

/// Imports the items of a data folder.
pub fn import_catalogue(writer: &mut ImportWriter, catalogue: &Path, logs: &[PathBuf]) -> Result<()> {
    import_items(writer, catalogue)?;
    note_unread_files(writer, catalogue, logs)
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

/// Imports UBI records with their queries and items.
pub fn import_records(writer: &mut ImportWriter, file: &Path, output: &mut LogOutput) -> Result<()> {
    each_line(writer, file, |writer, line, location| match import_line(writer, line, location)? {
        Some((Record::Query(query), _)) => {
            output.has_untitled_items |= !output.has_catalogue && !query.hits.is_empty();
            output.add_query(writer, &query.text, location)
        }
        Some((Record::Event(event), extra)) => {
            output.add_item(writer, &event.item, extra.title(), location)?;
            event.text.as_deref().map_or(Ok(()), |text| output.add_query(writer, text, location))
        }
        _ => Ok(()),
    })
}

/// Second pass over the log: adds the items that it never gives a title.
pub fn add_untitled_items(writer: &mut ImportWriter, file: &Path, output: &LogOutput) -> Result<()> {
    if !output.has_untitled_items {
        return Ok(());
    }
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
