//! JSON file that is one array of objects. Gives the bytes of each element, without holding more than one. Does not check
//! that an element is JSON: who parses it does.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use super::super::lines::{Input, MAX_BYTES, open_text};
use souk_io::error::{Error, Result};

/// Bytes kept of an element that is too long.
const SHOWN_BYTES: usize = 1 << 10;

pub struct JsonArray {
    input: Box<dyn Input>,
    file: PathBuf,
    number: u64,
    is_open: bool,
}

/// Element of the array.
pub struct Element {
    /// Number, from 1.
    pub number: u64,
    pub bytes: Vec<u8>,
    pub is_whole: bool,
}

/// Where a byte stands in an element.
#[derive(Default)]
struct Nesting {
    depth: u32,
    in_string: bool,
    is_escaped: bool,
}

impl Nesting {
    /// Moves past a byte; whether it ends the element.
    fn ends_with(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.in_string => self.is_escaped = true,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth == 0 => return true,
            b'}' | b']' => self.depth -= 1,
            b',' => return self.depth == 0,
            _ => {}
        }
        false
    }
}

impl JsonArray {
    pub fn open(file: &Path) -> Result<Self> {
        let (input, _) = open_text(file)?;
        let mut array = Self { input, file: file.into(), number: 0, is_open: true };
        while array.next_byte()?.is_some_and(|byte| byte != b'[') {}
        Ok(array)
    }

    pub fn next(&mut self) -> Result<Option<Element>> {
        let (mut bytes, mut nesting, mut is_whole) = (Vec::new(), Nesting::default(), true);
        while self.is_open {
            let Some(byte) = self.next_byte()? else {
                self.is_open = false;
                break;
            };
            if nesting.ends_with(byte) {
                self.is_open = byte == b',';
                break;
            }
            is_whole &= bytes.len() < MAX_BYTES;
            if is_whole || bytes.len() < SHOWN_BYTES {
                bytes.push(byte);
            } else {
                bytes.truncate(SHOWN_BYTES);
            }
        }
        if !self.is_open && bytes.trim_ascii().is_empty() {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(Element { number: self.number, bytes, is_whole }))
    }

    fn next_byte(&mut self) -> Result<Option<u8>> {
        let buffer = self.input.fill_buf().map_err(Error::store(&self.file, "read the next element"))?;
        let byte = buffer.first().copied();
        self.input.consume(usize::from(byte.is_some()));
        Ok(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_cut_where_no_string_or_object_is_open() {
        let home = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let file = home.path().join("a.json");
            std::fs::write(&file, text).unwrap();
            let mut array = JsonArray::open(&file).unwrap();
            let mut found = Vec::new();
            while let Some(element) = array.next().unwrap() {
                found.push(String::from_utf8(element.bytes).unwrap().trim().to_owned());
                assert!(element.is_whole && element.number == found.len() as u64);
            }
            found
        };
        let text = "\u{feff} [\n {\"a\": [1, {}], \"b\": \"x, ]}\\\"\"},\n {\"a\": 2}\n]\n";
        assert_eq!(of(text), ["{\"a\": [1, {}], \"b\": \"x, ]}\\\"\"}", "{\"a\": 2}"]);
        assert_eq!(of("[1,2"), ["1", "2"], "cut off");
        assert_eq!(of("[{\"a\":1},]"), ["{\"a\":1}"]);
        assert!(of("[]").is_empty() && of("[ \n]x").is_empty() && of("").is_empty());
    }
}
