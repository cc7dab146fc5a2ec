//! Lines of a file or of standard input, with their numbers.

use std::io::BufRead;
use std::path::Path;

use souk::error::{Error, Result};

/// One line of a file, with its number.
pub struct Lines<R> {
    input: R,
    file: std::path::PathBuf,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R, file: &Path) -> Self {
        Self { input, file: file.into(), number: 0 }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
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
