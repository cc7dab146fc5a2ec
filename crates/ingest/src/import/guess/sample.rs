//! Sample of a file: its first rows, by column, and whether it has a header. Takes a path and the options that say how to
//! read it. Never reads more than [`MAX_ROWS`] rows.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::header::has_header;
use super::profile::Profile;
use crate::import::columns::Column;
use crate::import::encoding::Encoding;
use crate::import::fields::list_names;
use crate::import::rows::{ColumnPlace, FileKind, InvalidRow, RowFile, RowFormat, steady_separator};
use souk_io::error::{Error, Result};

/// Rows of a sample.
const MAX_ROWS: usize = 2000;
/// Rows of a file with very many columns, and the values of its sample.
const MIN_ROWS: usize = 200;
const MAX_CELLS: usize = 1 << 20;
/// Characters kept of a value.
const MAX_CHARS: usize = 300;

/// How to read a file, as far as the user says it.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    pub encoding: Encoding,
    pub separator: Option<u8>,
    pub no_header: bool,
    pub columns: Vec<Column>,
    /// Option that sets `columns`, for messages.
    pub columns_option: Option<&'static str>,
}

impl ReadOptions {
    pub fn columns_option(&self) -> &'static str {
        self.columns_option.unwrap_or("--columns")
    }
}

pub struct Sample {
    pub file: PathBuf,
    pub format: RowFormat,
    pub columns: Vec<SampledColumn>,
}

pub struct SampledColumn {
    pub place: ColumnPlace,
    /// Values of the sampled rows, in their order; empty where a row has none.
    pub values: Vec<String>,
    pub profile: Profile,
}

impl SampledColumn {
    /// Up to three different values.
    pub fn examples(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        let filled = self.values.iter().map(|value| value.trim()).filter(|value| !value.is_empty());
        filled.filter(|value| seen.insert(*value)).take(3).map(str::to_owned).collect()
    }
}

impl Sample {
    /// Reads a sample; `None` if the file has no rows.
    pub fn read(file: &Path, options: &ReadOptions) -> Result<Option<Self>> {
        let Some(kind) = FileKind::of(file)? else { return Ok(None) };
        let (encoding, separator) = (options.encoding, options.separator);
        let mut format = RowFormat { kind, separator, header: false, encoding };
        let columns: Vec<_> = if kind == FileKind::Delimited {
            let (names, columns) = table_columns(file, &mut format, options)?;
            places(&names).into_iter().zip(columns).collect()
        } else {
            format.header = true;
            object_columns(file, format)?
        };
        if columns.iter().all(|(_, values)| values.is_empty()) {
            return Ok(None);
        }
        let columns = columns.into_iter().map(|(place, values)| {
            let profile = Profile::of(&values);
            SampledColumn { place, values, profile }
        });
        Ok(Some(Self { file: file.into(), format, columns: columns.collect() }))
    }

    /// Number or name by which `--columns` gives this column.
    pub fn reference(&self, at: usize) -> String {
        let name = &self.columns[at].place.name;
        let is_unique = || self.columns.iter().filter(|other| other.place.name.eq_ignore_ascii_case(name)).count() == 1;
        let is_plain = !name.trim().is_empty() && !name.contains([',', '=']) && name.parse::<usize>().is_err();
        if is_plain && is_unique() || self.format.kind != FileKind::Delimited {
            name.clone()
        } else {
            self.columns[at].place.at.to_string()
        }
    }

    /// Column by name or by number, as `--columns` gives it.
    pub fn find(&self, from: &str, option: &str) -> Result<usize> {
        let by_name = || self.columns.iter().position(|column| column.place.name.trim().eq_ignore_ascii_case(from));
        let by_number = match self.format.kind {
            FileKind::Delimited => from.parse::<usize>().ok().filter(|at| *at < self.columns.len()),
            _ => None,
        };
        by_number.or_else(by_name).ok_or_else(|| {
            let names: Vec<String> = (0..self.columns.len()).map(|at| self.reference(at)).collect();
            let names = list_names(names.iter().map(String::as_str));
            let problem = format!("{option} names a column `{from}`, which is not there; the columns are: {names}");
            Error::config(self.file.display(), problem)
        })
    }

    pub fn names(&self) -> Vec<&str> {
        self.columns.iter().map(|column| column.place.name.as_str()).collect()
    }

    /// Description of the format, such as `comma-separated, with a header`.
    pub fn layout(&self) -> String {
        let header = if self.format.header { "with a header" } else { "without a header" };
        match (self.format.kind, self.format.separator) {
            (FileKind::JsonLines, _) => "JSON lines".into(),
            (FileKind::JsonArray, _) => "JSON array".into(),
            (FileKind::Parquet, _) => "Parquet".into(),
            (FileKind::Arrow, _) => "Arrow".into(),
            (FileKind::Delimited, Some(b'\t')) => format!("tab-separated, {header}"),
            (FileKind::Delimited, Some(b';')) => format!("semicolon-separated, {header}"),
            (FileKind::Delimited, Some(b'|')) => format!("separated by `|`, {header}"),
            (FileKind::Delimited, _) => format!("comma-separated, {header}"),
        }
    }
}

fn places(names: &[String]) -> Vec<ColumnPlace> {
    names.iter().enumerate().map(|(at, name)| ColumnPlace { at, name: name.trim().into() }).collect()
}

/// Names and values of a table's columns. Without a header the names are empty.
fn table_columns(
    file: &Path,
    format: &mut RowFormat,
    options: &ReadOptions,
) -> Result<(Vec<String>, Vec<Vec<String>>)> {
    if format.separator.is_none() {
        format.separator = steady_separator(file)?;
    }
    let mut rows = RowFile::open(file, *format)?;
    format.separator = rows.separator();
    let places = places(&vec![String::new(); rows.num_columns()]);
    let mut first: Option<Vec<String>> = None;
    let mut columns = vec![Vec::new(); places.len()];
    let (mut num_read, mut first_invalid) = (0, None);
    while num_read <= MAX_ROWS {
        let Some(read) = rows.read()? else { break };
        num_read += 1;
        let row = match read {
            Ok(row) => row,
            Err(invalid) => {
                first_invalid.get_or_insert(invalid);
                continue;
            }
        };
        let cells = places.iter().map(|place| shortened(&row.text(place)));
        if first.is_none() {
            first = Some(cells.collect());
        } else {
            columns.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
        }
    }
    if let Some(invalid) = first_invalid.filter(|_| columns.iter().all(Vec::is_empty)) {
        return Err(not_rows(file, &invalid));
    }
    let first = first.unwrap_or_default();
    let is_named = |column: &Column| first.iter().any(|name| name.trim().eq_ignore_ascii_case(&column.from));
    let are_named = options.columns.iter().any(is_named);
    format.header = !options.no_header && (are_named || has_header(&first, &columns));
    if format.header {
        return Ok((first, columns));
    }
    columns.iter_mut().zip(first).for_each(|(column, cell)| column.insert(0, cell));
    Ok((vec![String::new(); places.len()], columns))
}

/// Columns of a file of objects: all keys of the sampled rows.
fn object_columns(file: &Path, format: RowFormat) -> Result<Vec<(ColumnPlace, Vec<String>)>> {
    let mut rows = RowFile::open(file, format)?;
    let mut columns: Vec<(ColumnPlace, Vec<String>)> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut add = |name: &str, num_rows: usize, columns: &mut Vec<(ColumnPlace, Vec<String>)>| {
        if !known.contains_key(name) {
            known.insert(name.to_owned(), columns.len());
            columns.push((ColumnPlace { at: columns.len(), name: name.into() }, vec![String::new(); num_rows]));
        }
    };
    rows.names().iter().for_each(|name| add(name, 0, &mut columns));
    let (mut num_rows, mut first_invalid) = (0, None);
    while num_rows < MAX_ROWS && (num_rows < MIN_ROWS || num_rows * columns.len() < MAX_CELLS) {
        let Some(read) = rows.read()? else { break };
        match read {
            Ok(row) => {
                row.names().for_each(|name| add(name, num_rows, &mut columns));
                columns.iter_mut().for_each(|(place, values)| values.push(shortened(&row.text(place))));
                num_rows += 1;
            }
            Err(invalid) if first_invalid.is_none() => first_invalid = Some(invalid),
            // a file without any row is not read to its end
            Err(invalid) if num_rows == 0 && invalid.number > MAX_ROWS as u64 => break,
            Err(_) => {}
        }
    }
    match first_invalid {
        Some(invalid) if num_rows == 0 => Err(not_rows(file, &invalid)),
        _ => Ok(columns),
    }
}

/// Error for a file without a single row besides its first line.
fn not_rows(file: &Path, invalid: &InvalidRow) -> Error {
    let detail = invalid.rejection.detail.as_ref().map_or(String::new(), |detail| format!(" ({detail})"));
    let problem = format!("its lines are not rows: {}{detail}", invalid.rejection.reason);
    Error::data(file, Some(invalid.number), problem)
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => text[..end].to_owned(),
        None => text.to_owned(),
    }
}
