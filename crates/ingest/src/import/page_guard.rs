//! Checks Parquet page headers before reading, because the Parquet reader allocates the size a header states. Takes the
//! byte range of a column; rejects pages larger than [`MAX_PAGE_BYTES`], dictionaries with more values than fit, and
//! encodings whose lengths are inside the page. Never reads page contents.

use parquet::errors::{ParquetError, Result};

/// Upper bound of a page; writers cut pages at about 1 MiB.
const MAX_PAGE_BYTES: i64 = 64 << 20;
/// Bytes read to parse a header: a few dozen, plus statistics of two values.
const WINDOWS: [u64; 2] = [1 << 10, 1 << 21];
const MAX_DEPTH: usize = 8;
/// PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY.
const ENCODINGS: [i64; 5] = [0, 2, 3, 4, 8];

/// Checks the pages of the column at `start` with `length` bytes; `read` returns up to the requested number of bytes at
/// an offset.
pub fn check_pages<B: AsRef<[u8]>>(mut read: impl FnMut(u64, u64) -> Option<B>, start: u64, length: u64) -> Result<()> {
    let (mut at, end) = (start, start.saturating_add(length));
    while at < end {
        let header = WINDOWS.into_iter().find_map(|window| PageHeader::read(read(at, window)?.as_ref()));
        let Some(header) = header else { return Err(ParquetError::EOF("page header is invalid".into())) };
        header.check()?;
        let beyond = || ParquetError::EOF("page ends beyond its column".into());
        let size = u64::try_from(header.compressed).ok().and_then(|size| size.checked_add(header.length));
        at = size.and_then(|size| at.checked_add(size)).filter(|next| *next <= end).ok_or_else(beyond)?;
    }
    Ok(())
}

/// Page header fields that the check needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct PageHeader {
    uncompressed: i64,
    compressed: i64,
    /// Bytes of the header itself.
    length: u64,
    /// Number of dictionary values.
    num_values: i64,
    encodings: Vec<i64>,
}

impl PageHeader {
    /// Parses a header; `None` if the bytes are too short or not a header.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut header = Self::default();
        let mut thrift = ThriftReader { rest: bytes, path: Vec::new() };
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
        let problem = if !(0..=MAX_PAGE_BYTES).contains(&self.uncompressed) {
            format!("page of {} bytes exceeds 64 MiB", self.uncompressed)
        } else if self.num_values > self.uncompressed / 4 {
            // every dictionary value of a supported encoding takes at least four bytes
            format!("dictionary of {} values does not fit in {} bytes", self.num_values, self.uncompressed)
        } else if let Some(encoding) = self.encodings.iter().find(|encoding| !ENCODINGS.contains(encoding)) {
            format!("page encoding {encoding} is not supported: use plain or dictionary pages")
        } else {
            return Ok(());
        };
        Err(ParquetError::General(problem))
    }
}

/// Reader for the part of Thrift's compact protocol that page headers use.
struct ThriftReader<'a> {
    rest: &'a [u8],
    /// Path of the current field.
    path: Vec<i64>,
}

impl ThriftReader<'_> {
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
            12 if self.path.len() < MAX_DEPTH => self.structure(number)?,
            // page headers have no lists, sets or maps
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
    fn parses_and_checks_a_page_header() {
        // type = dictionary (2), 100 and 60 bytes, {25 values, PLAIN}
        let dictionary = [0x15, 4, 0x15, 200, 1, 0x15, 120, 0x4c, 0x15, 50, 0x15, 0, 0, 0];
        let header = PageHeader::read(&dictionary).unwrap();
        assert_eq!(
            header,
            PageHeader { uncompressed: 100, compressed: 60, length: 14, num_values: 25, encodings: vec![0] }
        );
        assert!(header.check().is_ok());
        assert!(PageHeader { num_values: 26, ..header }.check().is_err());
        assert!(PageHeader { uncompressed: MAX_PAGE_BYTES + 1, ..PageHeader::default() }.check().is_err());
        assert!(PageHeader { encodings: vec![6], ..PageHeader::default() }.check().is_err(), "DELTA_LENGTH_BYTE_ARRAY");
        for length in 0..dictionary.len() {
            assert_eq!(PageHeader::read(&dictionary[..length]), None, "{length}");
        }
    }
}
