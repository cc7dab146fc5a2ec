//! Parquet or Arrow file on disk, read from its first row to its last as JSON objects. Takes a path, gives the column
//! names and the rows. Never holds more than one group of rows.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::windowed_file::WindowedFile;
use super::{ObjectRows, ShardPart, batches, groups};
use souk_io::error::{Error, Result};
use souk_io::objects::Objects;

/// Bytes of the groups that are read at once.
const GROUP_BYTES: u64 = 64 << 20;

pub struct ColumnarFile {
    file: WindowedFile,
    is_arrow: bool,
    parts: std::vec::IntoIter<(ShardPart, u64)>,
    rows: Option<ObjectRows>,
    /// Rows of the groups before the present ones.
    num_before: u64,
    number: u64,
    pub names: Vec<String>,
}

impl ColumnarFile {
    /// Opens a file; `note` gets a message for columns that are skipped.
    pub fn open(path: &Path, is_arrow: bool, note: &mut dyn FnMut(&str)) -> Result<Self> {
        let objects = Arc::new(Objects::open(&path.display().to_string())?);
        let object = objects.list()?.into_iter().next().ok_or_else(|| Error::data(path, None, "is empty"))?;
        let file = WindowedFile::new(objects, &object);
        let parts =
            if is_arrow { batches::parts(&file, GROUP_BYTES)? } else { groups::parts(&file, GROUP_BYTES, note)? };
        let mut opened =
            Self { file, is_arrow, parts: parts.into_iter(), rows: None, num_before: 0, number: 0, names: Vec::new() };
        opened.open_next_part()?;
        opened.names = opened.rows.as_ref().map(|rows| rows.names.clone()).unwrap_or_default();
        Ok(opened)
    }

    /// Next row and its number in the file.
    pub fn next(&mut self) -> Result<Option<(u64, Map<String, Value>)>> {
        while let Some(rows) = &mut self.rows {
            if let Some(row) = rows.rows.next() {
                let (number, row) = row?;
                self.number = self.num_before + number;
                return Ok(Some((self.number, row)));
            }
            self.num_before = self.number;
            self.open_next_part()?;
        }
        Ok(None)
    }

    fn open_next_part(&mut self) -> Result<()> {
        self.rows = None;
        if let Some((ShardPart::Groups { from, to }, _)) = self.parts.next() {
            let rows =
                if self.is_arrow { batches::rows(&self.file, from..to)? } else { groups::rows(&self.file, from..to)? };
            self.rows = Some(rows);
        }
        Ok(())
    }
}
