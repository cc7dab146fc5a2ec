//! Delimited tables (CSV, TSV) with or without a header; quoted cells may span lines. Gives rows with the table's
//! number of columns and rejects the others: [`Table::next`] reports them to the writer, [`Table::read`] returns them.
//! An unclosed quote rejects its own line, not the rest of the file. Never holds more than [`MAX_BYTES`] of a row.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::Path;

use csv::{Reader, ReaderBuilder, StringRecord, Terminator};

use super::encoding::{Encoding, READ_AS_1252};
use super::fields::list_names;
use super::import_writer::ImportWriter;
use super::lines::{Line, Lines, MAX_BYTES};
use super::rejection::{Rejection, RowLocation, TOO_LONG};
use souk_io::error::{Error, Result};
use souk_io::names::did_you_mean;

/// Upper bound of lines in a row; a quote that spans more is unclosed.
const MAX_LINES: usize = 1000;
/// Buffer capacity that the parser keeps after a long row.
const BUFFER_BYTES: usize = 1 << 16;
/// Delimiters that are detected.
pub const SEPARATORS: [u8; 4] = [b',', b'\t', b';', b'|'];

/// Format of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableFormat {
    /// Separator; by default the most frequent one of the first line.
    pub separator: Option<u8>,
    pub header: bool,
}

pub struct Table {
    lines: Lines,
    /// Lines read ahead.
    ahead: VecDeque<Line>,
    separator: u8,
    parser: Parser,
    encoding: Encoding,
    /// Whether each line is one quoted cell that contains the row.
    is_doubly_quoted: bool,
    /// Column names; empty without a header.
    pub names: Vec<String>,
    num_columns: usize,
    /// Whether rejected rows are skipped without a report, because another pass reports them.
    pub is_quiet: bool,
}

pub struct Row {
    pub number: u64,
    pub offset: u64,
    /// Whether the row is not UTF-8 and was read as windows-1252.
    pub fell_back: bool,
    cells: StringRecord,
    pub start: Vec<u8>,
}

/// First line of a row that is not valid, and why.
pub type InvalidRow = (Line, Rejection);

impl Row {
    /// Cell by column number; empty if there is no such column.
    pub fn cell(&self, at: usize) -> &str {
        self.cells.get(at).unwrap_or_default()
    }

    /// Cell of an optional column; empty if the table lacks it.
    pub fn optional_cell(&self, column: Option<usize>) -> &str {
        column.map_or("", |at| self.cell(at))
    }

    pub fn cells(&self) -> impl Iterator<Item = &str> {
        self.cells.iter()
    }

    pub fn location<'a>(&'a self, file: &'a Path) -> RowLocation<'a> {
        RowLocation { file, row: self.number, start: &self.start }
    }
}

impl Table {
    pub fn open(file: &Path, table_format: TableFormat, writer: &mut ImportWriter) -> Result<Self> {
        let (table, fell_back) = Self::open_quietly(file, table_format, writer.encoding())?;
        if fell_back && table_format.header {
            writer.note(READ_AS_1252);
        }
        Ok(table)
    }

    /// Opens a table; returns it and whether its first row was read as windows-1252.
    pub fn open_quietly(file: &Path, table_format: TableFormat, encoding: Encoding) -> Result<(Self, bool)> {
        let mut lines = Lines::open(file)?;
        let mut ahead = VecDeque::new();
        while let Some(line) = lines.next()? {
            if !line.bytes.trim_ascii().is_empty() {
                ahead.push_back(line);
                break;
            }
        }
        let Some(first) = ahead.front() else { return Err(Error::data(file, None, "is empty")) };
        let separator = table_format.separator.unwrap_or_else(|| most_frequent_separator(&first.bytes));
        let mut table = Self {
            lines,
            ahead,
            separator,
            parser: Parser::new(separator),
            encoding,
            is_doubly_quoted: false,
            names: Vec::new(),
            num_columns: 0,
            is_quiet: false,
        };
        let fell_back = table.read_first_row(table_format.header)?;
        Ok((table, fell_back))
    }

    /// Opens a table with a header; returns it with the numbers of the `needed` columns.
    pub fn with_columns<const N: usize>(
        file: &Path,
        separator: u8,
        needed: [&str; N],
        writer: &mut ImportWriter,
    ) -> Result<(Self, [usize; N])> {
        let table = Self::open(file, TableFormat { separator: Some(separator), header: true }, writer)?;
        let mut columns = [0; N];
        for (column, name) in columns.iter_mut().zip(needed) {
            *column = table.needed_column(name)?;
        }
        Ok((table, columns))
    }

    pub fn file(&self) -> &Path {
        &self.lines.file
    }

    pub fn column(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|column| column.trim().eq_ignore_ascii_case(name))
    }

    pub fn needed_column(&self, name: &str) -> Result<usize> {
        self.column(name).ok_or_else(|| {
            let found = list_names(self.names.iter().map(String::as_str));
            let similar = did_you_mean(name, self.names.iter().map(String::as_str));
            Error::data(self.file(), Some(1), format!("has no column `{name}`{similar}; its columns are: {found}"))
        })
    }

    /// Number of columns.
    pub fn num_columns(&self) -> usize {
        self.num_columns
    }

    pub fn separator(&self) -> u8 {
        self.separator
    }

    /// Reads the number of columns and the double quoting from the first row. Returns whether it was read as
    /// windows-1252.
    fn read_first_row(&mut self, header: bool) -> Result<bool> {
        let file = self.lines.file.clone();
        let not_a_row = |rejection: &Rejection| {
            let what = if header { "header" } else { "first row" };
            Error::data(&file, Some(1), format!("its {what} cannot be read: {}", rejection.reason))
        };
        let gathered = self.gather()?;
        let first = match &gathered {
            Some(Ok((row, _))) => row.as_slice(),
            Some(Err((line, _))) => &line.bytes,
            None => &[],
        };
        if header && has_bare_return(first) && self.is_at_end()? {
            let problem = "its lines end with bare carriage returns: convert it, for example with `tr '\\r' '\\n'`";
            return Err(Error::data(&file, Some(1), problem));
        }
        let (first, lines) = match gathered {
            Some(Ok(gathered)) => gathered,
            Some(Err((_, rejection))) => return Err(not_a_row(&rejection)),
            None => return Err(Error::data(&file, None, "is empty")),
        };
        let (text, fell_back) = self.encoding.decode(&first).map_err(|rejection| not_a_row(&rejection))?;
        let mut cells = self.parser.parse(&text).map_err(|rejection| not_a_row(&rejection))?;
        if let Some(inner) = cells.get(0).filter(|_| cells.len() == 1 && text.starts_with('"'))
            && let Ok(inner) = self.parser.parse(inner)
            && inner.len() > 1
        {
            self.is_doubly_quoted = true;
            cells = inner;
        }
        self.num_columns = cells.len();
        if header {
            self.names = cells.iter().map(|name| name.trim().to_owned()).collect();
        } else {
            lines.into_iter().rev().for_each(|line| self.ahead.push_front(line));
        }
        Ok(fell_back)
    }

    /// Next valid row; reports the others to the writer.
    pub fn next(&mut self, writer: &mut ImportWriter) -> Result<Option<Row>> {
        while let Some(read) = self.read()? {
            if !self.is_quiet {
                writer.count_row();
            }
            match read {
                Ok(row) => {
                    if row.fell_back && !self.is_quiet {
                        writer.note(READ_AS_1252);
                    }
                    return Ok(Some(row));
                }
                Err(_) if self.is_quiet => {}
                Err((line, rejection)) => {
                    writer.reject(
                        &RowLocation { file: &self.lines.file, row: line.number, start: &line.bytes },
                        &rejection,
                    )?;
                }
            }
        }
        Ok(None)
    }

    /// Next row, valid or not.
    pub fn read(&mut self) -> Result<Option<std::result::Result<Row, InvalidRow>>> {
        let (bytes, mut lines) = match self.gather()? {
            None => return Ok(None),
            Some(Ok(gathered)) => gathered,
            Some(Err(invalid)) => return Ok(Some(Err(invalid))),
        };
        let first = lines.pop_front().expect("a row has a line");
        let decoded = self.encoding.decode(&bytes);
        match decoded.and_then(|(text, fell_back)| Ok((self.cells(&text)?, fell_back))) {
            Ok((cells, fell_back)) => {
                let (number, offset) = (first.number, first.offset);
                Ok(Some(Ok(Row { number, offset, fell_back, cells, start: bytes })))
            }
            Err(rejection) => {
                // a multi-line row may be one bad line whose quote swallowed good ones
                lines.into_iter().rev().for_each(|line| self.ahead.push_front(line));
                Ok(Some(Err((first, rejection))))
            }
        }
    }

    /// Reads the row that begins at `offset`.
    pub fn row_at(&mut self, offset: u64, writer: &mut ImportWriter) -> Result<Option<Row>> {
        self.ahead.clear();
        self.lines.seek(offset)?;
        self.next(writer)
    }

    fn cells(&mut self, text: &str) -> std::result::Result<StringRecord, Rejection> {
        let mut cells = self.parser.parse(text)?;
        if self.is_doubly_quoted && cells.len() == 1 {
            cells = self.parser.parse(&cells[0])?;
        }
        if cells.len() == self.num_columns {
            return Ok(cells);
        }
        let detail = format!("{} instead of {}", cells.len(), self.num_columns);
        Err(Rejection::with("wrong number of columns", detail))
    }

    fn next_line(&mut self) -> Result<Option<Line>> {
        match self.ahead.pop_front() {
            Some(line) => Ok(Some(line)),
            None => self.lines.next(),
        }
    }

    fn is_at_end(&mut self) -> Result<bool> {
        while let Some(line) = self.next_line()? {
            if !line.bytes.trim_ascii().is_empty() {
                self.ahead.push_front(line);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Joins the lines of the next row; the error is the first line of an invalid row.
    fn gather(&mut self) -> Result<Option<std::result::Result<RowLines, InvalidRow>>> {
        let first = loop {
            match self.next_line()? {
                None => return Ok(None),
                Some(line) if line.bytes.trim_ascii().is_empty() => {}
                Some(line) => break line,
            }
        };
        if !first.is_whole {
            return Ok(Some(Err((first, TOO_LONG))));
        }
        let mut row = first.bytes.clone();
        let mut quotes = QuoteState::Start.advance(&row, self.separator).0;
        let mut lines = VecDeque::from([first]);
        while quotes == QuoteState::Inside {
            let has_room = lines.len() < MAX_LINES;
            let next = if has_room { self.next_line()? } else { None };
            let mut fits = next.as_ref().is_some_and(|line| line.is_whole && row.len() + line.bytes.len() < MAX_BYTES);
            if let (true, Some(line)) = (fits, &next) {
                row.push(b'\n');
                row.extend_from_slice(&line.bytes);
                let torn;
                (quotes, torn) = QuoteState::Inside.advance(&line.bytes, self.separator);
                // the closing quote opened another one, so the first was a stray
                fits = !torn;
            }
            lines.extend(next);
            if !fits {
                let first = lines.pop_front().expect("a row has a first line");
                lines.into_iter().rev().for_each(|line| self.ahead.push_front(line));
                return Ok(Some(Err((first, "unclosed quote".into()))));
            }
        }
        if row.last() == Some(&b'\r') {
            row.pop();
        }
        Ok(Some(Ok((row, lines))))
    }
}

/// Bytes of a row and the lines they come from.
type RowLines = (Vec<u8>, VecDeque<Line>);

/// Quoting state, with the same rules as the parser.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QuoteState {
    Start,
    Plain,
    Inside,
    Closing,
}

impl QuoteState {
    /// Returns the state after `bytes`, and whether text directly followed a closing quote.
    fn advance(self, bytes: &[u8], separator: u8) -> (Self, bool) {
        bytes.iter().fold((self, false), |(state, torn), byte| match (state, *byte) {
            (Self::Inside, b'"') | (Self::Closing, b'\r') => (Self::Closing, torn),
            (Self::Inside, _) | (Self::Start | Self::Closing, b'"') => (Self::Inside, torn),
            (_, byte) if byte == separator => (Self::Start, torn),
            (state, _) => (Self::Plain, torn || state == Self::Closing),
        })
    }
}

/// Row parser, reused because creating one takes longer than parsing most rows.
struct Parser {
    reader: Reader<RowInput>,
    separator: u8,
}

/// Row to parse next.
struct RowInput {
    bytes: Vec<u8>,
    read: usize,
}

impl Read for RowInput {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = (&self.bytes[self.read..]).read(out)?;
        self.read += length;
        Ok(length)
    }
}

impl Parser {
    fn new(separator: u8) -> Self {
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(separator)
            .terminator(Terminator::Any(b'\n'))
            .from_reader(RowInput { bytes: Vec::new(), read: 0 });
        Self { reader, separator }
    }

    fn parse(&mut self, text: &str) -> std::result::Result<StringRecord, Rejection> {
        let input = self.reader.get_mut();
        input.read = 0;
        input.bytes.clear();
        input.bytes.shrink_to(BUFFER_BYTES);
        input.bytes.extend_from_slice(text.as_bytes());
        input.bytes.push(b'\n');
        let end = self.reader.position().byte() + text.len() as u64 + 1;
        let mut cells = StringRecord::new();
        let parsed = self.reader.read_record(&mut cells);
        if self.reader.position().byte() != end || self.reader.is_done() {
            // the parser sees another row end
            *self = Self::new(self.separator);
            return Err("mismatched quotes".into());
        }
        match parsed {
            Ok(true) => Ok(cells),
            Ok(false) => Err("empty row".into()),
            Err(e) => Err(Rejection::with("invalid row", e)),
        }
    }
}

/// Whether the line has a carriage return in its middle.
fn has_bare_return(line: &[u8]) -> bool {
    line.windows(2).any(|pair| pair[0] == b'\r' && !pair[1].is_ascii_whitespace())
}

/// Most frequent separator outside quotes.
fn most_frequent_separator(line: &[u8]) -> u8 {
    let count = |separator: &u8| {
        let mut inside = false;
        let outside = |byte: &&u8| {
            inside ^= **byte == b'"';
            !inside && *byte == separator
        };
        line.iter().filter(outside).count()
    };
    // ties: the first in the list
    SEPARATORS.into_iter().rev().max_by_key(count).unwrap_or(b',')
}
