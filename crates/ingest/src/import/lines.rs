//! Line reader for plain or gzipped text files. Gives each line with its number and offset. Never holds more than
//! [`MAX_BYTES`] of a line; binary input (archives, UTF-16) is an error.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::import_writer::ImportWriter;
use super::rejection::{RowLocation, TOO_LONG};
use souk_io::beir::read_line;
use souk_io::error::{Error, Result};

/// Upper bound of a line or row; longer ones are rejected.
pub use souk_io::beir::MAX_LINE_BYTES as MAX_BYTES;
/// Small, because random access refills the buffer for each row.
const BUFFER_BYTES: usize = 1 << 14;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Text of a file.
pub trait Input: BufRead {
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
        Err(io::Error::new(ErrorKind::Unsupported, "a gzipped file has no random access: unpack it first"))
    }
}

/// Line without its `\n`; a `\r` before it is kept.
pub struct Line {
    pub number: u64,
    /// Offset in the (unpacked) file.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Whether `bytes` is the whole line.
    pub is_whole: bool,
}

/// Lines of a file.
pub struct Lines {
    input: Box<dyn Input>,
    pub file: PathBuf,
    number: u64,
    offset: u64,
}

impl Lines {
    pub fn open(file: &Path) -> Result<Self> {
        let (input, offset) = open_text(file)?;
        Ok(Self { input, file: file.into(), number: 0, offset })
    }

    pub fn next(&mut self) -> Result<Option<Line>> {
        let (mut bytes, begin) = (Vec::new(), self.offset);
        let (length, is_whole) =
            read_line(&mut *self.input, &mut bytes).map_err(Error::store(&self.file, "read the next line"))?;
        self.offset += length;
        if length == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(Line { number: self.number, offset: begin, bytes, is_whole }))
    }

    /// Continues at `offset`; line numbers are meaningless from there.
    pub fn seek(&mut self, offset: u64) -> Result<()> {
        self.input.seek_from(self.offset, offset).map_err(Error::store(&self.file, "seek to a row"))?;
        self.offset = offset;
        Ok(())
    }
}

/// Opens a text, gzipped or not; returns it with the length of its byte-order mark, which it skips.
pub fn open_text(file: &Path) -> Result<(Box<dyn Input>, u64)> {
    let opened = File::open(file).map_err(Error::store(file, "open it"))?;
    let mut plain = BufReader::with_capacity(BUFFER_BYTES, opened);
    let start = plain.fill_buf().map_err(Error::store(file, "read it"))?;
    let mut input: Box<dyn Input> = if start.starts_with(b"\x1f\x8b") {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(plain)))
    } else {
        Box::new(plain)
    };
    let start = input.fill_buf().map_err(Error::store(file, "read it"))?;
    let problem = match start {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            Some("is UTF-16: convert it, for example with `iconv -f UTF-16 -t UTF-8`")
        }
        [b'P', b'K', 3, 4, ..] => Some("is a zip archive or an Excel workbook: unpack it, or export it as CSV"),
        [b'P', b'A', b'R', b'1', ..] => Some("is a Parquet file: expected lines of text"),
        _ => None,
    };
    if let Some(problem) = problem {
        return Err(Error::data(file, None, problem));
    }
    let mark = if start.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    input.consume(mark);
    Ok((input, mark as u64))
}

/// Calls `each` with every non-blank text line and its location; rejects the others.
pub fn each_line(
    writer: &mut ImportWriter,
    file: &Path,
    mut each: impl FnMut(&mut ImportWriter, &str, &RowLocation) -> Result<()>,
) -> Result<()> {
    let mut lines = Lines::open(file)?;
    while let Some(line) = lines.next()? {
        writer.count_row();
        let location = RowLocation { file, row: line.number, start: &line.bytes };
        if !line.is_whole {
            writer.reject(&location, &TOO_LONG)?;
            continue;
        }
        match writer.decode(&line.bytes) {
            Err(rejection) => writer.reject(&location, &rejection)?,
            Ok(text) if text.trim().is_empty() => {}
            Ok(text) => each(writer, text.trim_end(), &location)?,
        }
    }
    Ok(())
}
