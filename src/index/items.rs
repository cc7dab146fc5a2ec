//! The items of an index: lines of JSON that stay in their file, found by number and read when they are shown.

use std::path::Path;

use souk_native::Mapping;

use crate::domain::Item;
use crate::error::Result;
use crate::summed::{Sum, checked};

pub struct Items {
    path: Box<Path>,
    lines: Mapping,
    /// Where each line ends.
    ends: Vec<usize>,
}

impl Items {
    pub fn open(path: &Path, sum: Sum) -> Result<Self> {
        let lines = checked(path, sum)?;
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
