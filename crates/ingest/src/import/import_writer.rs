//! Output of all importers. Takes items, queries, judgements and log lines with their location, writes valid ones to
//! the data folder, lists the others in `rejected.jsonl`, and counts both. Never holds rows in memory: it keeps one
//! 64-bit hash per identifier, so ten million identifiers contain a false duplicate with probability 3 in a million.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::encoding::{Encoding, READ_AS_1252};
use super::rejection::{Rejection, RowLocation, TOO_LONG};
use souk_io::beir::{Counts, DataWriter};
use souk_io::domain::{Item, Judgement, Query};
use souk_io::error::{Error, Result};

pub const REJECTED_FILE: &str = "rejected.jsonl";
/// Characters of a rejected row that are listed.
const MAX_SHOWN_CHARS: usize = 200;
/// Rows between two progress reports.
const PROGRESS_ROWS: u64 = 1000;
/// Upper bound of distinct counted names; further ones are counted as "others".
const MAX_NAMES: usize = 100;

/// Line of `rejected.jsonl`.
#[derive(Serialize)]
struct RejectedRow<'a> {
    file: Cow<'a, str>,
    line: u64,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    start: String,
}

/// Outcome of an import.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub counts: Counts,
    /// Rows read, blank lines not counted, and those of them that are of a log.
    pub rows_read: u64,
    pub log_rows_read: u64,
    /// Searches of a log that is a table.
    pub searches: u64,
    /// Events of these searches, by action.
    pub events: BTreeMap<&'static str, u64>,
    /// Rows listed in `rejected.jsonl`, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Valid rows that are out of scope, by kind.
    pub left_out: BTreeMap<String, u64>,
    /// Remarks on imported rows, by kind.
    pub noted: BTreeMap<String, u64>,
    /// Warnings for the user to check.
    pub warnings: Vec<String>,
    /// Scale used for the judgements, if the format does not fix it.
    pub levels: BTreeMap<String, u8>,
    /// Files of the folder that the format does not use.
    pub unread_files: Vec<String>,
}

impl Summary {
    pub fn num_rejected(&self) -> u64 {
        self.rejected.values().sum()
    }
}

/// Set of hashes of the identifiers written so far.
#[derive(Default)]
struct HashedIds(HashSet<u64, BuildHasherDefault<IdentityHasher>>);

/// Hasher for keys that are already hashes.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

pub fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl HashedIds {
    fn add(&mut self, value: impl Hash) -> bool {
        self.0.insert(hash(value))
    }

    fn contains(&self, value: impl Hash) -> bool {
        self.0.contains(&hash(value))
    }
}

pub struct ImportWriter<'a> {
    writer: DataWriter,
    from: PathBuf,
    encoding: Encoding,
    progress: &'a mut dyn FnMut(u64),
    rows: u64,
    items: HashedIds,
    queries: HashedIds,
    pairs: HashedIds,
    sliced: HashedIds,
    first_rejection: Option<String>,
    first_item: Option<String>,
    pub summary: Summary,
}

impl<'a> ImportWriter<'a> {
    /// `progress` gets the number of rows read since its last call.
    pub fn new(from: &Path, out: &Path, encoding: Encoding, progress: &'a mut dyn FnMut(u64)) -> Result<Self> {
        Ok(Self {
            writer: DataWriter::create(out)?,
            from: from.into(),
            encoding,
            progress,
            rows: 0,
            items: HashedIds::default(),
            queries: HashedIds::default(),
            pairs: HashedIds::default(),
            sliced: HashedIds::default(),
            first_rejection: None,
            first_item: None,
            summary: Summary::default(),
        })
    }

    /// Number of rows read so far.
    pub fn num_rows(&self) -> u64 {
        self.rows
    }

    /// Counts a row that was read, for progress.
    pub fn count_row(&mut self) {
        self.rows += 1;
        if self.rows.is_multiple_of(PROGRESS_ROWS) {
            (self.progress)(PROGRESS_ROWS);
        }
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Decodes a row; notes a fallback to windows-1252.
    pub fn decode<'b>(&mut self, bytes: &'b [u8]) -> std::result::Result<Cow<'b, str>, Rejection> {
        let (text, fell_back) = self.encoding.decode(bytes)?;
        if fell_back {
            self.note(READ_AS_1252);
        }
        Ok(text)
    }

    /// Decodes a row of a file that is read a second time, without notes.
    pub fn decode_again<'b>(&self, bytes: &'b [u8]) -> std::result::Result<Cow<'b, str>, Rejection> {
        self.encoding.decode(bytes).map(|(text, _)| text)
    }

    /// Writes an item; rejects duplicate ids.
    pub fn add_item(&mut self, item: std::result::Result<Item, Rejection>, location: &RowLocation) -> Result<()> {
        let item = match item.and_then(|item| check_id(&item.id).map(|()| item)) {
            Ok(item) => item,
            Err(rejection) => return self.reject(location, &rejection),
        };
        if self.items.contains(&item.id) {
            return self.reject(location, &Rejection::with("duplicate item id", &item.id));
        }
        if let Err(error) = self.writer.item(&item) {
            return self.reject_if_too_long(error, location);
        }
        self.items.add(&item.id);
        if self.first_item.is_none() {
            self.first_item = Some(item.id.clone());
        }
        if item.title.is_empty() && item.text.is_empty() {
            self.note("items with neither title nor text");
        }
        Ok(())
    }

    pub fn add_query(&mut self, query: std::result::Result<Query, Rejection>, location: &RowLocation) -> Result<()> {
        let checked = query.and_then(|query| {
            check_id(&query.id)?;
            if query.text.trim().is_empty() { Err("query without text".into()) } else { Ok(query) }
        });
        match checked {
            Err(rejection) => self.reject(location, &rejection),
            Ok(query) if self.queries.contains(&query.id) => {
                self.reject(location, &Rejection::with("duplicate query id", &query.id))
            }
            Ok(query) => match self.writer.query(&query) {
                Ok(()) => {
                    self.queries.add(&query.id);
                    Ok(())
                }
                Err(error) => self.reject_if_too_long(error, location),
            },
        }
    }

    /// Writes a judgement; its query and item must have been written before.
    pub fn add_judgement(
        &mut self,
        split: &str,
        judgement: std::result::Result<Judgement, Rejection>,
        location: &RowLocation,
    ) -> Result<()> {
        let checked = judgement.and_then(|judgement| {
            let Judgement { query, item, .. } = &judgement;
            if !self.queries.contains(query) {
                Err(Rejection::with("judgement of an unknown query", query))
            } else if !self.items.contains(item) {
                Err(Rejection::with("judgement of an unknown item", item))
            } else if !self.pairs.add((query, item)) {
                Err("duplicate judgement".into())
            } else {
                Ok(judgement)
            }
        });
        match checked {
            Err(rejection) => self.reject(location, &rejection),
            Ok(judgement) => {
                self.writer.judgement(split, &judgement).or_else(|error| self.reject_if_too_long(error, location))
            }
        }
    }

    /// Puts a query into a slice; the query must have been written before.
    pub fn add_slice(&mut self, query: &str, slice: &str, location: &RowLocation) -> Result<()> {
        if !self.queries.contains(query) {
            self.reject(location, &Rejection::with("slice of an unknown query", query))
        } else if slice.contains(['\t', '\n', '\r']) {
            self.reject(location, &"slice name contains a tab or a line end".into())
        } else if !self.sliced.add(query) {
            self.reject(location, &Rejection::with("query is already in a slice", query))
        } else {
            self.writer.slice(query, slice).or_else(|error| self.reject_if_too_long(error, location))
        }
    }

    pub fn add_log_line(&mut self, json: &[u8], location: &RowLocation) -> Result<()> {
        self.writer.log_line(json).or_else(|error| self.reject_if_too_long(error, location))
    }

    pub fn has_item(&self, id: &str) -> bool {
        self.items.contains(id)
    }

    /// Id of the first item.
    pub fn first_item(&self) -> Option<&str> {
        self.first_item.as_deref()
    }

    /// Like [`Self::has_item`], by the [`hash`] of the id.
    pub fn has_item_hash(&self, hash: u64) -> bool {
        self.items.0.contains(&hash)
    }

    pub fn has_query(&self, id: &str) -> bool {
        self.queries.contains(id)
    }

    /// Rejects a row whose output is too long: joined parts and JSON escapes can make it longer than its input.
    fn reject_if_too_long(&mut self, error: Error, location: &RowLocation) -> Result<()> {
        match error {
            Error::Input { .. } => self.reject(location, &TOO_LONG),
            error => Err(error),
        }
    }

    pub fn reject(&mut self, location: &RowLocation, rejection: &Rejection) -> Result<()> {
        let file = location.file.strip_prefix(&self.from).ok().filter(|path| !path.as_os_str().is_empty());
        let file = file.unwrap_or(location.file.file_name().map_or(location.file, Path::new)).to_string_lossy();
        // a UTF-8 character has at most four bytes
        let shown = &location.start[..location.start.len().min(4 * MAX_SHOWN_CHARS)];
        let start = String::from_utf8_lossy(shown).chars().take(MAX_SHOWN_CHARS).collect();
        let (reason, detail) = (&*rejection.reason, rejection.detail.as_deref());
        let detail = detail.map(|text| text.chars().take(MAX_SHOWN_CHARS).collect::<String>());
        let detail = detail.as_deref();
        if self.first_rejection.is_none() {
            let detail = detail.map_or(String::new(), |detail| format!(" ({detail})"));
            self.first_rejection = Some(format!("{file}, line {}: {reason}{detail}", location.row));
        }
        *self.summary.rejected.entry(reason.into()).or_default() += 1;
        self.writer.json(REJECTED_FILE, &RejectedRow { file, line: location.row, reason, detail, start })
    }

    /// Counts a remark on an imported row.
    pub fn note(&mut self, remark: &str) {
        count(&mut self.summary.noted, remark);
    }

    /// Lists a file that is not read.
    pub fn note_unread(&mut self, file: &Path) {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
        self.summary.unread_files.extend(name);
    }

    /// Counts a row that is out of scope.
    pub fn skip(&mut self, kind: &str) {
        count(&mut self.summary.left_out, kind);
    }

    /// Moves the finished folder into location; an empty folder is an error.
    pub fn finish(mut self) -> Result<Summary> {
        (self.progress)(self.rows % PROGRESS_ROWS);
        let counts = self.writer.counts();
        if counts.items + counts.queries + counts.log_lines == 0 {
            let rejected = self.summary.num_rejected();
            let first = self
                .first_rejection
                .map_or(String::new(), |first| format!("; {rejected} were rejected, first {first}"));
            let left_out: u64 = self.summary.left_out.values().sum();
            let left_out = if left_out == 0 { String::new() } else { format!("; {left_out} were out of scope") };
            let problem = format!("none of {} rows could be imported{first}{left_out}", self.rows);
            return Err(Error::data(&self.from, None, problem));
        }
        self.summary.rows_read = self.rows;
        self.summary.counts = self.writer.finish()?;
        Ok(self.summary)
    }
}

fn count(by_name: &mut BTreeMap<String, u64>, name: &str) {
    let name = if by_name.len() < MAX_NAMES || by_name.contains_key(name) { name } else { "others" };
    *by_name.entry(name.chars().take(MAX_SHOWN_CHARS).collect()).or_default() += 1;
}

/// Rejects empty identifiers and those that would break the tab-separated `qrels`.
fn check_id(id: &str) -> std::result::Result<(), Rejection> {
    if id.trim().is_empty() {
        Err("missing id".into())
    } else if id.contains(['\t', '\n', '\r']) {
        Err("id contains a tab or a line end".into())
    } else {
        Ok(())
    }
}
