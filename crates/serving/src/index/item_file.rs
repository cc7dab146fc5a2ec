//! Items of an index: JSON lines in a mapped file, read by number when an item is shown.

use std::io::Write;
use std::path::Path;

use souk_native::Mapping;

use super::spool::Spool;
use souk_io::checksummed::{Checksum, ChecksumWriter, map_checked};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Items to be written, as JSON lines.
pub struct ItemLines {
    lines: Spool,
    /// End offset of each line.
    ends: Vec<usize>,
}

impl ItemLines {
    pub fn new(lines: Spool) -> Self {
        Self { lines, ends: Vec::new() }
    }

    pub fn push(&mut self, item: &Item) -> Result<()> {
        let mut line = serde_json::to_vec(item).expect("item keys are strings");
        line.push(b'\n');
        self.lines.write(&line)?;
        self.ends.push(self.ends.last().unwrap_or(&0) + line.len());
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn write(self, path: &Path, order: &[u32]) -> Result<Checksum> {
        let lines = self.lines.map()?;
        let mut out = ChecksumWriter::create(path)?;
        for item in order.iter().map(|item| *item as usize) {
            let start = item.checked_sub(1).map_or(0, |before| self.ends[before]);
            out.write_all(&lines.as_ref()[start..self.ends[item]]).map_err(Error::store(path, "write it"))?;
        }
        out.finish(path)
    }
}

pub struct ItemFile {
    path: Box<Path>,
    lines: Mapping,
    /// End offset of each line.
    ends: Vec<usize>,
}

impl ItemFile {
    pub fn open(path: &Path, sum: Checksum) -> Result<Self> {
        let lines = map_checked(path, sum)?;
        let ends = lines.as_ref().iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
        Ok(Self { path: path.into(), lines, ends })
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, item: usize) -> Result<Item> {
        Item::parse(self.line(item), &self.path, item as u64 + 1)
    }

    fn line(&self, item: usize) -> &[u8] {
        let start = item.checked_sub(1).map_or(0, |before| self.ends[before] + 1);
        &self.lines.as_ref()[start..self.ends[item]]
    }
}
