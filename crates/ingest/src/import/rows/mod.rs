//! Rows of a file of any kind: a delimited table, JSON lines, a JSON array, Parquet or Arrow; text may be gzipped. Takes a path, gives
//! rows whose columns are addressed in one way, and the rows that are not valid with the reason.

mod files;
mod json_array;
mod separator;

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use self::files::{InputFiles, input_files};
use self::json_array::JsonArray;
pub use self::separator::steady_separator;
use super::encoding::{Encoding, READ_AS_1252};
use super::fields::object;
use super::import_writer::ImportWriter;
use super::lines::Lines;
use super::rejection::{Rejection, RowLocation, TOO_LONG};
use super::shards::ColumnarFile;
use super::table::{self, Table, TableFormat};
use souk_io::error::{Error, Result};

/// Kind of a file, by its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Delimited,
    JsonLines,
    JsonArray,
    Parquet,
    Arrow,
}

impl FileKind {
    /// Kind of a file; `None` if it is empty.
    pub fn of(file: &Path) -> Result<Option<Self>> {
        let mut start = Vec::new();
        let opened = File::open(file).map_err(Error::store(file, "open it"))?;
        opened.take(6).read_to_end(&mut start).map_err(Error::store(file, "read it"))?;
        match start.as_slice() {
            [b'P', b'A', b'R', b'1', ..] => return Ok(Some(Self::Parquet)),
            b"ARROW1" => return Ok(Some(Self::Arrow)),
            _ => {}
        }
        let mut lines = Lines::open(file)?;
        while let Some(line) = lines.next()? {
            match line.bytes.trim_ascii_start().first() {
                None => {}
                Some(b'{') => return Ok(Some(Self::JsonLines)),
                Some(b'[') if is_json(&mut lines, &line.bytes)? => return Ok(Some(Self::JsonArray)),
                Some(_) => return Ok(Some(Self::Delimited)),
            }
        }
        Ok(None)
    }
}

/// Whether a text that begins with `[` is JSON: an object follows, on this line or the next.
fn is_json(lines: &mut Lines, first: &[u8]) -> Result<bool> {
    let mut rest = first.trim_ascii_start()[1..].trim_ascii().to_vec();
    if rest.is_empty()
        && let Some(next) = lines.next()?
    {
        rest = next.bytes.trim_ascii().to_vec();
    }
    Ok(rest.first() == Some(&b'{'))
}

/// How to read a file.
#[derive(Clone, Copy, Debug)]
pub struct RowFormat {
    pub kind: FileKind,
    /// Delimiter of a table; by default the most frequent one of the first line.
    pub separator: Option<u8>,
    /// Whether the first line of a table has the column names.
    pub header: bool,
    pub encoding: Encoding,
}

/// Column of a file: its number, and its name if the file has names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnPlace {
    pub at: usize,
    pub name: String,
}

/// Row of a file.
pub enum Row {
    Cells(table::Row),
    Object(ObjectRow),
}

/// Row that is a JSON object, or is read as one.
pub struct ObjectRow {
    pub number: u64,
    pub object: Map<String, Value>,
    /// First bytes in the file; empty if the file is not text.
    start: Vec<u8>,
    fell_back: bool,
}

/// Row that is not valid.
pub struct InvalidRow {
    pub number: u64,
    pub start: Vec<u8>,
    pub rejection: Rejection,
}

impl Row {
    pub fn number(&self) -> u64 {
        match self {
            Self::Cells(row) => row.number,
            Self::Object(row) => row.number,
        }
    }

    /// Text of a column; empty if the row lacks it. The texts of a list are joined.
    pub fn text(&self, column: &ColumnPlace) -> Cow<'_, str> {
        match self {
            Self::Cells(row) => row.cell(column.at).into(),
            Self::Object(row) => row.object.get(&column.name).map_or(Cow::Borrowed(""), value_text),
        }
    }

    /// Texts of a column: those of a list one by one.
    pub fn texts(&self, column: &ColumnPlace) -> Vec<Cow<'_, str>> {
        match self {
            Self::Object(row) => match row.object.get(&column.name) {
                Some(Value::Array(values)) => values.iter().map(value_text).collect(),
                _ => vec![self.text(column)],
            },
            Self::Cells(_) => vec![self.text(column)],
        }
    }

    /// Keys of an object.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let object = match self {
            Self::Cells(_) => None,
            Self::Object(row) => Some(&row.object),
        };
        object.into_iter().flat_map(|object| object.keys().map(String::as_str))
    }

    /// First bytes of the row, for `rejected.jsonl`.
    pub fn start(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Cells(row) => Cow::Borrowed(&row.start),
            Self::Object(row) if row.start.is_empty() => {
                serde_json::to_vec(&row.object).expect("JSON values always serialize").into()
            }
            Self::Object(row) => Cow::Borrowed(&row.start),
        }
    }

    pub fn reject(&self, file: &Path, rejection: &Rejection, writer: &mut ImportWriter) -> Result<()> {
        writer.reject(&RowLocation { file, row: self.number(), start: &self.start() }, rejection)
    }

    fn fell_back(&self) -> bool {
        match self {
            Self::Cells(row) => row.fell_back,
            Self::Object(row) => row.fell_back,
        }
    }
}

fn value_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => "".into(),
        Value::String(text) => text.as_str().into(),
        // some tools write whole numbers as floats where a column has gaps
        Value::Number(number) => {
            match number.as_f64().filter(|n| number.is_f64() && n.fract() == 0.0 && n.abs() < 1e15) {
                Some(whole) => (whole as i64).to_string().into(),
                None => number.to_string().into(),
            }
        }
        Value::Array(values) => values.iter().map(value_text).collect::<Vec<_>>().join(" ").into(),
        other => other.to_string().into(),
    }
}

/// Rows of a file.
pub struct RowFile {
    pub file: PathBuf,
    source: Source,
    fell_back: bool,
    /// Messages about columns that are not read.
    notes: Vec<String>,
}

enum Source {
    Table(Box<Table>),
    Lines(Lines, Encoding),
    Array(JsonArray, Encoding),
    Columnar(Box<ColumnarFile>),
}

impl RowFile {
    pub fn open(file: &Path, format: RowFormat) -> Result<Self> {
        let (mut fell_back, mut notes) = (false, Vec::new());
        let source = match format.kind {
            FileKind::Delimited => {
                let table_format = TableFormat { separator: format.separator, header: format.header };
                let table;
                (table, fell_back) = Table::open_quietly(file, table_format, format.encoding)?;
                Source::Table(Box::new(table))
            }
            FileKind::JsonLines => Source::Lines(Lines::open(file)?, format.encoding),
            FileKind::JsonArray => Source::Array(JsonArray::open(file)?, format.encoding),
            FileKind::Parquet | FileKind::Arrow => {
                let mut note = |message: &str| notes.push(message.to_owned());
                Source::Columnar(Box::new(ColumnarFile::open(file, format.kind == FileKind::Arrow, &mut note)?))
            }
        };
        Ok(Self { file: file.into(), source, fell_back: fell_back && format.header, notes })
    }

    /// Column names of a table with a header, or of a Parquet or Arrow file.
    pub fn names(&self) -> &[String] {
        match &self.source {
            Source::Table(table) => &table.names,
            Source::Lines(..) | Source::Array(..) => &[],
            Source::Columnar(file) => &file.names,
        }
    }

    /// Number of columns of a table.
    pub fn num_columns(&self) -> usize {
        match &self.source {
            Source::Table(table) => table.num_columns(),
            _ => self.names().len(),
        }
    }

    /// Delimiter of a table.
    pub fn separator(&self) -> Option<u8> {
        match &self.source {
            Source::Table(table) => Some(table.separator()),
            _ => None,
        }
    }

    /// Next valid row; reports the others to the writer.
    pub fn next(&mut self, writer: &mut ImportWriter) -> Result<Option<Row>> {
        if std::mem::take(&mut self.fell_back) {
            writer.note(READ_AS_1252);
        }
        self.notes.drain(..).for_each(|note| writer.note(&note));
        while let Some(read) = self.read()? {
            writer.count_row();
            match read {
                Ok(row) => {
                    if row.fell_back() {
                        writer.note(READ_AS_1252);
                    }
                    return Ok(Some(row));
                }
                Err(InvalidRow { number, start, rejection }) => {
                    writer.reject(&RowLocation { file: &self.file, row: number, start: &start }, &rejection)?;
                }
            }
        }
        Ok(None)
    }

    /// Next row, valid or not.
    pub fn read(&mut self) -> Result<Option<std::result::Result<Row, InvalidRow>>> {
        match &mut self.source {
            Source::Table(table) => Ok(table.read()?.map(|read| match read {
                Ok(row) => Ok(Row::Cells(row)),
                Err((line, rejection)) => Err(InvalidRow { number: line.number, start: line.bytes, rejection }),
            })),
            Source::Lines(lines, encoding) => {
                while let Some(line) = lines.next()? {
                    if !line.bytes.trim_ascii().is_empty() {
                        return Ok(Some(text_row(line.number, line.bytes, line.is_whole, *encoding)));
                    }
                }
                Ok(None)
            }
            Source::Array(array, encoding) => {
                Ok(array.next()?.map(|element| text_row(element.number, element.bytes, element.is_whole, *encoding)))
            }
            Source::Columnar(file) => Ok(file.next()?.map(|(number, object)| {
                Ok(Row::Object(ObjectRow { number, object, start: Vec::new(), fell_back: false }))
            })),
        }
    }
}

/// Row of a JSON text.
fn text_row(number: u64, bytes: Vec<u8>, is_whole: bool, encoding: Encoding) -> std::result::Result<Row, InvalidRow> {
    let read = if is_whole {
        encoding.decode(&bytes).and_then(|(text, fell_back)| Ok((object(text.trim())?, fell_back)))
    } else {
        Err(TOO_LONG)
    };
    match read {
        Ok((object, fell_back)) => Ok(Row::Object(ObjectRow { number, object, start: bytes, fell_back })),
        Err(rejection) => Err(InvalidRow { number, start: bytes.trim_ascii().to_vec(), rejection }),
    }
}
