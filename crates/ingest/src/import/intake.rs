//! Where every importer puts what it read. Takes items, queries, judgements and log lines with the place they came from;
//! writes the good ones to the data folder, lists the others in `rejected.jsonl`, and counts both. Of what was written
//! it keeps one 64-bit hash per identifier: among ten million, two are taken for one with a chance of 3 in a million.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::lines::{Encoding, TOO_LONG};
use souk_io::beir::{Counts, DataWriter};
use souk_io::domain::{Item, Judgement, Query};
use souk_io::error::{Error, Result};

pub const REJECTED_FILE: &str = "rejected.jsonl";
/// How much of a refused row is shown, in letters.
const SHOWN_LETTERS: usize = 200;
/// Progress is told after so many rows.
const TICK_ROWS: u64 = 1000;
/// Kinds that are counted by a name from the file; what comes after them is counted together.
const MAX_NAMES: usize = 100;

/// Why a row was not taken: a reason that can be counted, and what is particular to this row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Cow<'static, str>,
    pub detail: Option<String>,
}

impl Refusal {
    pub fn with(reason: &'static str, detail: impl ToString) -> Self {
        Self { reason: reason.into(), detail: Some(detail.to_string()) }
    }
}

impl From<&'static str> for Refusal {
    fn from(reason: &'static str) -> Self {
        Self { reason: reason.into(), detail: None }
    }
}

/// Where a row stands.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub file: &'a Path,
    /// Its line, or in a Parquet file its row; the first is 1.
    pub row: u64,
    pub start: &'a [u8],
}

#[derive(Serialize)]
struct Rejected<'a> {
    file: Cow<'a, str>,
    line: u64,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    start: String,
}

/// What an import did.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub counts: Counts,
    /// Rows listed in `rejected.jsonl`, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Sound rows that do not belong into the folder, by kind.
    pub left_out: BTreeMap<String, u64>,
    /// What was taken, but is worth knowing.
    pub noted: BTreeMap<String, u64>,
    /// The scale that judgements were read with, where the format leaves it open.
    pub levels: BTreeMap<String, u8>,
    /// Files of the folder that the format does not know.
    pub unread_files: Vec<String>,
}

impl Summary {
    pub fn num_rejected(&self) -> u64 {
        self.rejected.values().sum()
    }
}

/// Hashes of what has been written.
#[derive(Default)]
struct Seen(HashSet<u64, BuildHasherDefault<Unchanged>>);

/// A hash needs no hashing.
#[derive(Default)]
struct Unchanged(u64);

impl Hasher for Unchanged {
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

impl Seen {
    fn add(&mut self, value: impl Hash) -> bool {
        self.0.insert(hash(value))
    }

    fn has(&self, value: impl Hash) -> bool {
        self.0.contains(&hash(value))
    }
}

pub struct Intake<'a> {
    writer: DataWriter,
    from: PathBuf,
    encoding: Encoding,
    progress: &'a mut dyn FnMut(u64),
    rows: u64,
    items: Seen,
    queries: Seen,
    pairs: Seen,
    sliced: Seen,
    first_refusal: Option<String>,
    pub summary: Summary,
}

impl<'a> Intake<'a> {
    /// `progress` is told how many more rows have been read.
    pub fn new(from: &Path, out: &Path, encoding: Encoding, progress: &'a mut dyn FnMut(u64)) -> Result<Self> {
        Ok(Self {
            writer: DataWriter::create(out)?,
            from: from.into(),
            encoding,
            progress,
            rows: 0,
            items: Seen::default(),
            queries: Seen::default(),
            pairs: Seen::default(),
            sliced: Seen::default(),
            first_refusal: None,
            summary: Summary::default(),
        })
    }

    pub fn tick(&mut self) {
        self.rows += 1;
        if self.rows.is_multiple_of(TICK_ROWS) {
            (self.progress)(TICK_ROWS);
        }
    }

    /// The text of a row, and a note where the encoding was not the one expected.
    pub fn decode<'b>(&mut self, bytes: &'b [u8]) -> std::result::Result<Cow<'b, str>, Refusal> {
        let (text, fell_back) = self.encoding.decode(bytes)?;
        if fell_back {
            self.note("rows that are not UTF-8, read as windows-1252");
        }
        Ok(text)
    }

    /// As before, for a file that is read another time: nothing is noted.
    pub fn decode_again<'b>(&self, bytes: &'b [u8]) -> std::result::Result<Cow<'b, str>, Refusal> {
        self.encoding.decode(bytes).map(|(text, _)| text)
    }

    /// The first item of an id is written, further ones are refused.
    pub fn item(&mut self, item: std::result::Result<Item, Refusal>, place: &Place) -> Result<()> {
        let item = match item.and_then(|item| sound_id(&item.id).map(|()| item)) {
            Ok(item) => item,
            Err(refusal) => return self.reject(place, &refusal),
        };
        if self.items.has(&item.id) {
            return self.reject(place, &Refusal::with("an item with this id came before", &item.id));
        }
        if let Err(error) = self.writer.item(&item) {
            return self.unwritten(error, place);
        }
        self.items.add(&item.id);
        if item.title.is_empty() && item.text.is_empty() {
            self.note("items with neither title nor text");
        }
        Ok(())
    }

    pub fn query(&mut self, query: std::result::Result<Query, Refusal>, place: &Place) -> Result<()> {
        let sound = query.and_then(|query| {
            sound_id(&query.id)?;
            match query.text.trim().is_empty() {
                true => Err("a query without text".into()),
                false => Ok(query),
            }
        });
        match sound {
            Err(refusal) => self.reject(place, &refusal),
            Ok(query) if self.queries.has(&query.id) => {
                self.reject(place, &Refusal::with("a query with this id came before", &query.id))
            }
            Ok(query) => match self.writer.query(&query) {
                Ok(()) => {
                    self.queries.add(&query.id);
                    Ok(())
                }
                Err(error) => self.unwritten(error, place),
            },
        }
    }

    /// Both sides must have been taken before.
    pub fn judgement(
        &mut self,
        split: &str,
        judgement: std::result::Result<Judgement, Refusal>,
        place: &Place,
    ) -> Result<()> {
        let sound = judgement.and_then(|judgement| {
            let Judgement { query, item, .. } = &judgement;
            match () {
                () if !self.queries.has(query) => Err(Refusal::with("judges a query that is not there", query)),
                () if !self.items.has(item) => Err(Refusal::with("judges an item that is not there", item)),
                () if !self.pairs.add((query, item)) => Err("this pair was judged before".into()),
                () => Ok(judgement),
            }
        });
        match sound {
            Err(refusal) => self.reject(place, &refusal),
            Ok(judgement) => self.writer.judgement(split, &judgement).or_else(|error| self.unwritten(error, place)),
        }
    }

    pub fn slice(&mut self, query: &str, slice: &str, place: &Place) -> Result<()> {
        match () {
            () if !self.queries.has(query) => {
                self.reject(place, &Refusal::with("puts a query that is not there into a slice", query))
            }
            () if slice.contains(['\t', '\n', '\r']) => self.reject(place, &"a slice's name has a tab in it".into()),
            () if !self.sliced.add(query) => {
                self.reject(place, &Refusal::with("this query is in a slice already", query))
            }
            () => self.writer.slice(query, slice).or_else(|error| self.unwritten(error, place)),
        }
    }

    pub fn log_line(&mut self, json: &[u8], place: &Place) -> Result<()> {
        self.writer.log_line(json).or_else(|error| self.unwritten(error, place))
    }

    pub fn has_item(&self, id: &str) -> bool {
        self.items.has(id)
    }

    /// The same for [`hash`] of its id.
    pub fn has_item_hash(&self, hash: u64) -> bool {
        self.items.0.contains(&hash)
    }

    pub fn has_query(&self, id: &str) -> bool {
        self.queries.has(id)
    }

    /// What was read can be written longer: parts are joined, and JSON has escapes.
    fn unwritten(&mut self, error: Error, place: &Place) -> Result<()> {
        match error {
            Error::Input { .. } => self.reject(place, &TOO_LONG),
            error => Err(error),
        }
    }

    pub fn reject(&mut self, place: &Place, refusal: &Refusal) -> Result<()> {
        let file = place.file.strip_prefix(&self.from).ok().filter(|path| !path.as_os_str().is_empty());
        let file = file.unwrap_or(place.file.file_name().map_or(place.file, Path::new)).to_string_lossy();
        // a letter has at most four bytes
        let shown = &place.start[..place.start.len().min(4 * SHOWN_LETTERS)];
        let start = String::from_utf8_lossy(shown).chars().take(SHOWN_LETTERS).collect();
        let (reason, detail) = (&*refusal.reason, refusal.detail.as_deref());
        let detail = detail.map(|text| text.chars().take(SHOWN_LETTERS).collect::<String>());
        let detail = detail.as_deref();
        if self.first_refusal.is_none() {
            let detail = detail.map_or(String::new(), |detail| format!(" ({detail})"));
            self.first_refusal = Some(format!("{file}, line {}: {reason}{detail}", place.row));
        }
        *self.summary.rejected.entry(reason.into()).or_default() += 1;
        self.writer.json(REJECTED_FILE, &Rejected { file, line: place.row, reason, detail, start })
    }

    pub fn note(&mut self, what: &str) {
        count(&mut self.summary.noted, what);
    }

    pub fn leave_out(&mut self, what: &str) {
        count(&mut self.summary.left_out, what);
    }

    /// Puts the folder in place; a folder with nothing in it is an error.
    pub fn finish(mut self) -> Result<Summary> {
        (self.progress)(self.rows % TICK_ROWS);
        let counts = self.writer.counts();
        if counts.items + counts.queries + counts.log_lines == 0 {
            let rejected = self.summary.num_rejected();
            let first = self.first_refusal.map_or(String::new(), |first| format!("; {rejected} were refused: {first}"));
            let left_out: u64 = self.summary.left_out.values().sum();
            let left_out = if left_out == 0 { String::new() } else { format!("; {left_out} belong elsewhere") };
            let problem = format!("of {} rows none could be taken{first}{left_out}", self.rows);
            return Err(Error::data(&self.from, None, problem));
        }
        self.summary.counts = self.writer.finish()?;
        Ok(self.summary)
    }
}

fn count(by_name: &mut BTreeMap<String, u64>, name: &str) {
    let name = match by_name.len() < MAX_NAMES || by_name.contains_key(name) {
        true => name,
        false => "others",
    };
    *by_name.entry(name.chars().take(SHOWN_LETTERS).collect()).or_default() += 1;
}

/// Identifiers stand between tabs in `qrels`.
fn sound_id(id: &str) -> std::result::Result<(), Refusal> {
    match id {
        "" => Err("no id".into()),
        id if id.trim().is_empty() => Err("no id".into()),
        id if id.contains(['\t', '\n', '\r']) => Err("an id with a tab or a line end in it".into()),
        _ => Ok(()),
    }
}
