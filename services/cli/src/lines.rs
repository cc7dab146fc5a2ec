//! Lines of standard input or a file as text, with line numbers from 1. Lines that are not UTF-8 are errors.

use std::io::BufRead;
use std::path::Path;

use souk::error::{Error, Result};

/// Iterator over the lines of an input, each with its number.
pub struct StdinLines<R> {
    input: R,
    file: std::path::PathBuf,
    number: u64,
}

impl<R: BufRead> StdinLines<R> {
    pub fn new(input: R, file: &Path) -> Self {
        Self { input, file: file.into(), number: 0 }
    }
}

impl<R: BufRead> Iterator for StdinLines<R> {
    type Item = Result<(u64, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = Vec::new();
        let read = self.input.read_until(b'\n', &mut bytes);
        self.number += 1;
        match read {
            Err(e) => return Some(Err(Error::store(&self.file, "read it")(e))),
            Ok(0) => return None,
            Ok(_) => {}
        }
        while bytes.last().is_some_and(|b| *b == b'\n' || *b == b'\r') {
            bytes.pop();
        }
        let number = self.number;
        let not_text = |e| Error::data(&self.file, Some(number), "not valid UTF-8: convert it first").because(e);
        Some(String::from_utf8(bytes).map_err(not_text).map(|text| (number, text)))
    }
}
