//! The Parquet reader allocates what a page's header announces. Takes the pages' places before that reader does, reads
//! their headers, and refuses pages that no honest file of ours has: larger than [`MAX_PAGE_BYTES`], dictionaries of more
//! values than fit, encodings whose lengths lie in the page itself. Never reads what is in a page.

use parquet::errors::{ParquetError, Result};

/// Writers cut pages at about 1 MiB.
const MAX_PAGE_BYTES: i64 = 64 << 20;
/// A header has a few dozen bytes, and statistics of two values.
const WINDOWS: [u64; 2] = [1 << 10, 1 << 21];
const DEEPEST: usize = 8;
/// PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY.
const ENCODINGS: [i64; 5] = [0, 2, 3, 4, 8];

/// Goes through the pages of a column that begins at `start` and has `length` bytes; `read` gives bytes from a place on, as many as
/// are asked for or as there are.
pub fn check_pages<B: AsRef<[u8]>>(mut read: impl FnMut(u64, u64) -> Option<B>, start: u64, length: u64) -> Result<()> {
    let (mut at, end) = (start, start.saturating_add(length));
    while at < end {
        let header = WINDOWS.into_iter().find_map(|window| Header::read(read(at, window)?.as_ref()));
        let Some(header) = header else { return Err(ParquetError::EOF("a page without a sound header".into())) };
        header.check()?;
        let beyond = || ParquetError::EOF("a page that ends beyond its column".into());
        let size = u64::try_from(header.compressed).ok().and_then(|size| size.checked_add(header.length));
        at = size.and_then(|size| at.checked_add(size)).filter(|next| *next <= end).ok_or_else(beyond)?;
    }
    Ok(())
}

/// What a page announces.
#[derive(Debug, Default, PartialEq, Eq)]
struct Header {
    uncompressed: i64,
    compressed: i64,
    /// Of the header itself.
    length: u64,
    /// Of a dictionary.
    num_values: i64,
    encodings: Vec<i64>,
}

impl Header {
    /// `None` where the bytes end too early or are no header.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut header = Self::default();
        let mut thrift = Thrift { rest: bytes, path: Vec::new() };
        thrift.structure(&mut |path, number| match path {
            [2] => header.uncompressed = number,
            [3] => header.compressed = number,
            [7, 1] => header.num_values = number,
            // the encoding of values: data page, dictionary, data page v2
            [5, 2] | [7, 2] | [8, 4] => header.encodings.push(number),
            _ => {}
        })?;
        header.length = (bytes.len() - thrift.rest.len()) as u64;
        Some(header)
    }

    fn check(&self) -> Result<()> {
        let problem = match () {
            () if !(0..=MAX_PAGE_BYTES).contains(&self.uncompressed) => {
                format!("a page of {} bytes, more than 64 MiB", self.uncompressed)
            }
            // every value of a dictionary we read takes four bytes or more
            () if self.num_values > self.uncompressed / 4 => {
                format!("a dictionary of {} values in {} bytes", self.num_values, self.uncompressed)
            }
            () => match self.encodings.iter().find(|encoding| !ENCODINGS.contains(encoding)) {
                Some(encoding) => format!("a page of encoding {encoding}: plain and dictionary pages are read"),
                None => return Ok(()),
            },
        };
        Err(ParquetError::General(problem))
    }
}

/// Thrift's compact protocol, as much of it as headers have.
struct Thrift<'a> {
    rest: &'a [u8],
    /// The field at hand and those it lies in.
    path: Vec<i64>,
}

impl Thrift<'_> {
    fn structure(&mut self, number: &mut dyn FnMut(&[i64], i64)) -> Option<()> {
        self.path.push(0);
        loop {
            let head = self.byte()?;
            if head == 0 {
                self.path.pop();
                return Some(());
            }
            let field = match head >> 4 {
                0 => self.zigzag()?,
                step => self.path.last()?.checked_add(i64::from(step))?,
            };
            *self.path.last_mut()? = field;
            self.value(head & 15, number)?;
        }
    }

    fn value(&mut self, kind: u8, number: &mut dyn FnMut(&[i64], i64)) -> Option<()> {
        match kind {
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => {
                let value = self.zigzag()?;
                number(&self.path, value);
            }
            7 => self.skip(8)?,
            8 => {
                let length = self.varint()?;
                self.skip(usize::try_from(length).ok()?)?;
            }
            12 if self.path.len() < DEEPEST => self.structure(number)?,
            // lists, sets and maps stand in no page header
            _ => return None,
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.rest = self.rest.get(length..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_measured() {
        // type = dictionary (2), 100 and 60 bytes, {25 values, PLAIN}
        let dictionary = [0x15, 4, 0x15, 200, 1, 0x15, 120, 0x4c, 0x15, 50, 0x15, 0, 0, 0];
        let header = Header::read(&dictionary).unwrap();
        assert_eq!(
            header,
            Header { uncompressed: 100, compressed: 60, length: 14, num_values: 25, encodings: vec![0] }
        );
        assert!(header.check().is_ok());
        assert!(Header { num_values: 26, ..header }.check().is_err());
        assert!(Header { uncompressed: MAX_PAGE_BYTES + 1, ..Header::default() }.check().is_err());
        assert!(Header { encodings: vec![6], ..Header::default() }.check().is_err(), "DELTA_LENGTH_BYTE_ARRAY");
        for length in 0..dictionary.len() {
            assert_eq!(Header::read(&dictionary[..length]), None, "{length}");
        }
    }
}
