//! Files line by line: plain or gzipped, UTF-8 or windows-1252. Gives each line with its number and its place, never holds
//! more than [`MAX_BYTES`] of one, and never guesses at what is no text at all (archives, UTF-16): that is refused.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::read::MultiGzDecoder;

use super::intake::{Intake, Place, Refusal};
use souk_io::beir::read_line;
use souk_io::error::{Error, Result};

/// A longer line or row is refused and passed over.
pub use souk_io::beir::MAX_LINE_BYTES as MAX_BYTES;
/// Small, for where rows are read out of order a buffer is filled for each.
const BUFFER_BYTES: usize = 1 << 14;
const MARK: &[u8] = b"\xef\xbb\xbf";

/// How bytes become text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8; a row that is not UTF-8 is read as windows-1252, and counted.
    #[default]
    Auto,
    /// A row that is not UTF-8 is refused.
    Utf8,
    /// Windows-1252, which is what files that say latin-1 are in.
    Latin1,
}

impl Encoding {
    pub const NAMES: [&'static str; 3] = ["auto", "utf-8", "latin-1"];

    /// The text, and whether it had to be read as windows-1252 though nobody said so.
    pub fn decode(self, bytes: &[u8]) -> std::result::Result<(Cow<'_, str>, bool), Refusal> {
        let as_1252 = || encoding_rs::WINDOWS_1252.decode_without_bom_handling(bytes).0;
        match (self, std::str::from_utf8(bytes)) {
            (Self::Latin1, _) => Ok((as_1252(), false)),
            (_, Ok(text)) => Ok((Cow::Borrowed(text), false)),
            (Self::Auto, Err(_)) => Ok((as_1252(), true)),
            (Self::Utf8, Err(e)) => Err(Refusal::with("not valid UTF-8", e)),
        }
    }
}

impl FromStr for Encoding {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "utf-8" => Ok(Self::Utf8),
            "latin-1" => Ok(Self::Latin1),
            _ => Err(Error::input(format!("`{name}` is no encoding: say {}", Self::NAMES.join(", ")))),
        }
    }
}

trait Input: BufRead {
    fn seek_from(&mut self, here: u64, to: u64) -> io::Result<()>;
}

impl Input for BufReader<File> {
    fn seek_from(&mut self, here: u64, to: u64) -> io::Result<()> {
        let too_far = |_| io::Error::from(ErrorKind::InvalidInput);
        let (here, to) = (i64::try_from(here).map_err(too_far)?, i64::try_from(to).map_err(too_far)?);
        self.seek_relative(to - here)
    }
}

impl Input for BufReader<MultiGzDecoder<BufReader<File>>> {
    fn seek_from(&mut self, _: u64, _: u64) -> io::Result<()> {
        Err(io::Error::new(ErrorKind::Unsupported, "a gzipped file cannot be read out of order: unpack it first"))
    }
}

/// One line without its `\n`; what comes before it (`\r`) is left.
pub struct Line {
    pub number: u64,
    /// Where it begins in the (unpacked) file.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Whether `bytes` is all of it.
    pub whole: bool,
}

/// The lines of a file.
pub struct Lines {
    input: Box<dyn Input>,
    pub file: PathBuf,
    number: u64,
    offset: u64,
}

impl Lines {
    pub fn open(file: &Path) -> Result<Self> {
        let opened = File::open(file).map_err(Error::store(file, "open it"))?;
        let mut plain = BufReader::with_capacity(BUFFER_BYTES, opened);
        let start = plain.fill_buf().map_err(Error::store(file, "read it"))?;
        if start.starts_with(b"\x1f\x8b") {
            let unpacked = BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(plain));
            return Self::begin(Box::new(unpacked), file);
        }
        Self::begin(Box::new(plain), file)
    }

    fn begin(mut input: Box<dyn Input>, file: &Path) -> Result<Self> {
        let start = input.fill_buf().map_err(Error::store(file, "read it"))?;
        let problem = match start {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("is UTF-16: convert it, as with `iconv -f UTF-16 -t UTF-8`"),
            [b'P', b'K', 3, 4, ..] => Some("is a zip archive: unpack it first"),
            [b'P', b'A', b'R', b'1', ..] => Some("is a Parquet file, where lines of text are expected"),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(Error::data(file, None, problem));
        }
        let mark = if start.starts_with(MARK) { MARK.len() } else { 0 };
        input.consume(mark);
        Ok(Self { input, file: file.into(), number: 0, offset: mark as u64 })
    }

    pub fn next(&mut self) -> Result<Option<Line>> {
        let (mut bytes, begin) = (Vec::new(), self.offset);
        let (length, whole) = read_line(&mut *self.input, &mut bytes).map_err(Error::store(&self.file, "read on"))?;
        self.offset += length;
        if length == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(Line { number: self.number, offset: begin, bytes, whole }))
    }

    /// Goes on at `offset`; line numbers mean nothing from there.
    pub fn seek(&mut self, offset: u64) -> Result<()> {
        self.input.seek_from(self.offset, offset).map_err(Error::store(&self.file, "go to a row of it"))?;
        self.offset = offset;
        Ok(())
    }
}

/// Hands on every line that is text and not blank, with its place; the others are listed as refused.
pub fn each_line(
    intake: &mut Intake,
    file: &Path,
    mut each: impl FnMut(&mut Intake, &str, &Place) -> Result<()>,
) -> Result<()> {
    let mut lines = Lines::open(file)?;
    while let Some(line) = lines.next()? {
        intake.tick();
        let place = Place { file, row: line.number, start: &line.bytes };
        if !line.whole {
            intake.reject(&place, &TOO_LONG)?;
            continue;
        }
        match intake.decode(&line.bytes) {
            Err(refusal) => intake.reject(&place, &refusal)?,
            Ok(text) if text.trim().is_empty() => {}
            Ok(text) => each(intake, text.trim_end(), &place)?,
        }
    }
    Ok(())
}

pub const TOO_LONG: Refusal = Refusal { reason: Cow::Borrowed("longer than 16 MiB"), detail: None };
