//! Items of an index: JSON lines in a mapped file, read by number when an item is shown.

use std::io::Write;
use std::path::Path;

use souk_native::Mapping;

use souk_io::checksummed::{Checksum, ChecksumWriter, map_checked};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Items to be written, already as JSON lines: parsed items would take several times the memory.
#[derive(Default)]
pub struct ItemLines {
    bytes: Vec<u8>,
    /// End offset of each line.
    ends: Vec<usize>,
}

impl ItemLines {
    pub fn push(&mut self, item: &Item) {
        serde_json::to_writer(&mut self.bytes, item).expect("item keys are strings");
        self.bytes.push(b'\n');
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn write(&self, path: &Path, order: &[u32]) -> Result<Checksum> {
        let mut out = ChecksumWriter::create(path)?;
        for item in order.iter().map(|item| *item as usize) {
            let start = item.checked_sub(1).map_or(0, |before| self.ends[before]);
            out.write_all(&self.bytes[start..self.ends[item]]).map_err(Error::store(path, "write it"))?;
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
