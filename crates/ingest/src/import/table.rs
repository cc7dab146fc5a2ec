//! Tables with a separator between cells (CSV, TSV): rows with quoted cells over several lines, with a header or without.
//! Gives rows as wide as the table; the others are listed as refused. A quote that is never closed costs its own line,
//! not the rest of the file, and no row takes more memory than [`MAX_BYTES`].

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::Path;

use csv::{Reader, ReaderBuilder, StringRecord, Terminator};

use super::fields::listed;
use super::intake::{Intake, Place, Refusal};
use super::lines::{Line, Lines, MAX_BYTES, TOO_LONG};
use souk_io::error::{Error, Result};

/// A quoted cell has fewer line ends; with more, it is a quote that was never closed.
const MAX_LINES: usize = 1000;
/// A parser that has met a longer row gives the room back.
const KEPT_BYTES: usize = 1 << 16;
/// Among so many names one is looked for that is nearly right.
const MAX_NEAR: usize = 1000;
const SEPARATORS: [u8; 4] = [b',', b'\t', b';', b'|'];

/// How the table is written.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Where it is not said, the one that the first line has most of.
    pub separator: Option<u8>,
    pub header: bool,
}

pub struct Table {
    lines: Lines,
    /// Lines that were read ahead.
    ahead: VecDeque<Line>,
    separator: u8,
    parser: Parser,
    /// Each line is one quoted cell that holds the real row.
    doubly_quoted: bool,
    /// Names of the columns; empty without a header.
    pub names: Vec<String>,
    width: usize,
    /// Refused rows are not listed: another pass does that.
    pub quiet: bool,
}

pub struct Row {
    pub number: u64,
    pub offset: u64,
    cells: StringRecord,
    start: Vec<u8>,
}

impl Row {
    /// Empty where the table has no such column.
    pub fn cell(&self, at: usize) -> &str {
        self.cells.get(at).unwrap_or_default()
    }

    pub fn cells(&self) -> impl Iterator<Item = &str> {
        self.cells.iter()
    }

    pub fn place<'a>(&'a self, file: &'a Path) -> Place<'a> {
        Place { file, row: self.number, start: &self.start }
    }
}

impl Table {
    pub fn open(file: &Path, shape: Shape, intake: &mut Intake) -> Result<Self> {
        let mut lines = Lines::open(file)?;
        let mut ahead = VecDeque::new();
        while let Some(line) = lines.next()? {
            if !line.bytes.trim_ascii().is_empty() {
                ahead.push_back(line);
                break;
            }
        }
        let Some(first) = ahead.front() else { return Err(Error::data(file, None, "is empty")) };
        let separator = shape.separator.unwrap_or_else(|| max_used(&first.bytes));
        let mut table = Self {
            lines,
            ahead,
            separator,
            parser: Parser::new(separator),
            doubly_quoted: false,
            names: Vec::new(),
            width: 0,
            quiet: false,
        };
        table.learn(shape.header, intake)?;
        Ok(table)
    }

    /// A table with a header that has all of `needed`, in their order, and perhaps `optional`.
    pub fn with_columns<const N: usize>(
        file: &Path,
        separator: u8,
        needed: [&str; N],
        intake: &mut Intake,
    ) -> Result<(Self, [usize; N])> {
        let table = Self::open(file, Shape { separator: Some(separator), header: true }, intake)?;
        let mut places = [0; N];
        for (place, name) in places.iter_mut().zip(needed) {
            *place = table.needed_column(name)?;
        }
        Ok((table, places))
    }

    pub fn file(&self) -> &Path {
        &self.lines.file
    }

    pub fn column(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|column| column.trim().eq_ignore_ascii_case(name))
    }

    pub fn needed_column(&self, name: &str) -> Result<usize> {
        self.column(name).ok_or_else(|| {
            let found = listed(self.names.iter().map(String::as_str));
            let near = nearest(name, &self.names).map_or(String::new(), |near| format!(" (did you mean `{near}`?)"));
            Error::data(self.file(), Some(1), format!("has no column `{name}`{near}; its columns are: {found}"))
        })
    }

    /// Columns with and without a header.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The first row says how wide the table is, and whether it is quoted twice.
    fn learn(&mut self, header: bool, intake: &mut Intake) -> Result<()> {
        let file = self.lines.file.clone();
        let not_a_row = |refusal: &Refusal| {
            let what = if header { "header" } else { "first row" };
            Error::data(&file, Some(1), format!("its {what} cannot be read: {}", refusal.reason))
        };
        let gathered = self.gather()?;
        let first = match &gathered {
            Some(Ok((row, _))) => row.as_slice(),
            Some(Err((line, _))) => &line.bytes,
            None => &[],
        };
        if header && has_bare_return(first) && self.is_at_end()? {
            let problem = "its lines end with carriage returns alone: convert it, as with `tr '\\r' '\\n'`";
            return Err(Error::data(&file, Some(1), problem));
        }
        let (first, lines) = match gathered {
            Some(Ok(gathered)) => gathered,
            Some(Err((_, refusal))) => return Err(not_a_row(&refusal)),
            None => return Err(Error::data(&file, None, "is empty")),
        };
        let text = intake.decode(&first).map_err(|refusal| not_a_row(&refusal))?;
        let mut cells = self.parser.parse(&text).map_err(|refusal| not_a_row(&refusal))?;
        if let Some(inner) = cells.get(0).filter(|_| cells.len() == 1 && text.starts_with('"'))
            && let Ok(inner) = self.parser.parse(inner)
            && inner.len() > 1
        {
            self.doubly_quoted = true;
            cells = inner;
        }
        self.width = cells.len();
        if header {
            self.names = cells.iter().map(|name| name.trim().to_owned()).collect();
        } else {
            lines.into_iter().rev().for_each(|line| self.ahead.push_front(line));
        }
        Ok(())
    }

    pub fn next(&mut self, intake: &mut Intake) -> Result<Option<Row>> {
        loop {
            let (bytes, mut lines) = match self.gather()? {
                None => return Ok(None),
                Some(Ok(gathered)) => gathered,
                Some(Err((line, refusal))) => {
                    self.refuse(intake, &line, &refusal)?;
                    continue;
                }
            };
            if !self.quiet {
                intake.tick();
            }
            let text = if self.quiet { intake.decode_again(&bytes) } else { intake.decode(&bytes) };
            let cells = text.and_then(|text| self.cells(&text));
            let first = lines.pop_front().expect("a row has a line");
            match cells {
                Ok(cells) => return Ok(Some(Row { number: first.number, offset: first.offset, cells, start: bytes })),
                Err(refusal) => {
                    // a row of several lines may be one bad line and good ones that its quote has swallowed
                    lines.into_iter().rev().for_each(|line| self.ahead.push_front(line));
                    self.refuse(intake, &first, &refusal)?;
                }
            }
        }
    }

    /// Reads the row that begins at `offset`.
    pub fn row_at(&mut self, offset: u64, intake: &mut Intake) -> Result<Option<Row>> {
        self.ahead.clear();
        self.lines.seek(offset)?;
        self.next(intake)
    }

    fn refuse(&self, intake: &mut Intake, line: &Line, refusal: &Refusal) -> Result<()> {
        match self.quiet {
            true => Ok(()),
            false => intake.reject(&Place { file: &self.lines.file, row: line.number, start: &line.bytes }, refusal),
        }
    }

    fn cells(&mut self, text: &str) -> std::result::Result<StringRecord, Refusal> {
        let mut cells = self.parser.parse(text)?;
        if self.doubly_quoted && cells.len() == 1 {
            cells = self.parser.parse(&cells[0])?;
        }
        match cells.len() == self.width {
            true => Ok(cells),
            false => {
                let detail = format!("{} instead of {}", cells.len(), self.width);
                Err(Refusal::with("a row with too many or too few columns", detail))
            }
        }
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

    /// The lines of one row, joined; or the line that begins none.
    fn gather(&mut self) -> Result<Option<std::result::Result<Gathered, (Line, Refusal)>>> {
        let first = loop {
            match self.next_line()? {
                None => return Ok(None),
                Some(line) if line.bytes.trim_ascii().is_empty() => {}
                Some(line) => break line,
            }
        };
        if !first.whole {
            return Ok(Some(Err((first, TOO_LONG))));
        }
        let mut row = first.bytes.clone();
        let mut quotes = Quotes::Start.over(&row, self.separator).0;
        let mut lines = VecDeque::from([first]);
        while quotes == Quotes::Inside {
            let room = lines.len() < MAX_LINES;
            let next = if room { self.next_line()? } else { None };
            let mut fits = next.as_ref().is_some_and(|line| line.whole && row.len() + line.bytes.len() < MAX_BYTES);
            if let (true, Some(line)) = (fits, &next) {
                row.push(b'\n');
                row.extend_from_slice(&line.bytes);
                let torn;
                (quotes, torn) = Quotes::Inside.over(&line.bytes, self.separator);
                // what closes the quote has opened another: the first was a stray
                fits = !torn;
            }
            lines.extend(next);
            if !fits {
                let first = lines.pop_front().expect("it was put there");
                lines.into_iter().rev().for_each(|line| self.ahead.push_front(line));
                return Ok(Some(Err((first, "a quote that is never closed".into()))));
            }
        }
        if row.last() == Some(&b'\r') {
            row.pop();
        }
        Ok(Some(Ok((row, lines))))
    }
}

type Gathered = (Vec<u8>, VecDeque<Line>);

/// Where a reader stands between quotes; the same rules as the parser's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quotes {
    Start,
    Plain,
    Inside,
    Closing,
}

impl Quotes {
    /// Where the reader stands then, and whether text came right behind a closing quote.
    fn over(self, bytes: &[u8], separator: u8) -> (Self, bool) {
        bytes.iter().fold((self, false), |(state, torn), byte| match (state, *byte) {
            (Self::Inside, b'"') | (Self::Closing, b'\r') => (Self::Closing, torn),
            (Self::Inside, _) | (Self::Start | Self::Closing, b'"') => (Self::Inside, torn),
            (_, byte) if byte == separator => (Self::Start, torn),
            (state, _) => (Self::Plain, torn || state == Self::Closing),
        })
    }
}

/// The parser, kept from row to row, for making one takes longer than most rows.
struct Parser {
    reader: Reader<Fed>,
    separator: u8,
}

/// The row that is parsed next.
struct Fed {
    bytes: Vec<u8>,
    read: usize,
}

impl Read for Fed {
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
            .from_reader(Fed { bytes: Vec::new(), read: 0 });
        Self { reader, separator }
    }

    fn parse(&mut self, text: &str) -> std::result::Result<StringRecord, Refusal> {
        let fed = self.reader.get_mut();
        fed.read = 0;
        fed.bytes.clear();
        fed.bytes.shrink_to(KEPT_BYTES);
        fed.bytes.extend_from_slice(text.as_bytes());
        fed.bytes.push(b'\n');
        let end = self.reader.position().byte() + text.len() as u64 + 1;
        let mut cells = StringRecord::new();
        let parsed = self.reader.read_record(&mut cells);
        if self.reader.position().byte() != end || self.reader.is_done() {
            // it takes the row to end elsewhere
            *self = Self::new(self.separator);
            return Err("a row with quotes that do not match".into());
        }
        match parsed {
            Ok(true) => Ok(cells),
            Ok(false) => Err("an empty row".into()),
            Err(e) => Err(Refusal::with("not a row", e)),
        }
    }
}

/// A carriage return with more of the line behind it.
fn has_bare_return(line: &[u8]) -> bool {
    line.windows(2).any(|pair| pair[0] == b'\r' && !pair[1].is_ascii_whitespace())
}

/// The separator that stands most often outside of quotes.
fn max_used(line: &[u8]) -> u8 {
    let count = |separator: &u8| {
        let mut inside = false;
        let outside = |byte: &&u8| {
            inside ^= **byte == b'"';
            !inside && *byte == separator
        };
        line.iter().filter(outside).count()
    };
    // of equals, the first in the list
    SEPARATORS.into_iter().rev().max_by_key(count).unwrap_or(b',')
}

/// The name that takes the fewest changes to become `wanted`, where that is less than half of it.
fn nearest<'a>(wanted: &str, names: &'a [String]) -> Option<&'a str> {
    let distance = |name: &str| {
        let name: Vec<char> = name.to_lowercase().chars().take(64).collect();
        let mut row: Vec<usize> = (0..=name.len()).collect();
        for (i, letter) in wanted.chars().enumerate() {
            let mut corner = std::mem::replace(&mut row[0], i + 1);
            for (j, other) in name.iter().enumerate() {
                let changed = corner + usize::from(letter != *other);
                corner = row[j + 1];
                row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
            }
        }
        row[name.len()]
    };
    let nearest = names.iter().take(MAX_NEAR).min_by_key(|name| distance(name))?;
    (2 * distance(nearest) < wanted.chars().count()).then_some(nearest)
}
