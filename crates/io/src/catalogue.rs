//! Items of a data folder, looked up by id or row and read from disk on demand; also draws random negatives from all
//! items. Keeps ids and file offsets in memory, never the texts.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::shuffle::uniform;
use crate::beir::DataFolder;
use crate::domain::Item;
use crate::error::{Error, Result};
use crate::item_text::ItemText;

/// Ids and file offsets of the items; texts stay on disk.
pub struct Catalogue {
    path: PathBuf,
    file: File,
    rows: HashMap<Box<str>, u32>,
    /// Byte offset of each item's line, then the end of the last one.
    starts: Vec<u64>,
    crc32: u32,
    item_text: ItemText,
}

impl Catalogue {
    pub fn open(folder: &DataFolder) -> Result<Self> {
        let path = folder.corpus();
        let file = File::open(&path).map_err(Error::store(&path, "open the catalogue"))?;
        let mut input = BufReader::with_capacity(1 << 18, &file);
        let (mut rows, mut starts, mut offset, mut line) = (HashMap::new(), Vec::new(), 0_u64, Vec::new());
        let mut crc = crc32fast::Hasher::new();
        for number in 1_u64.. {
            line.clear();
            let read = input.read_until(b'\n', &mut line).map_err(Error::store(&path, "read the catalogue"))?;
            if read == 0 {
                break;
            }
            let json = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line).trim_ascii();
            if !json.is_empty() {
                let item = Item::parse(json, &path, number)?;
                let row = u32::try_from(starts.len()).map_err(|e| {
                    Error::data(&path, Some(number), "more than 4294967295 items: split the catalogue").because(e)
                })?;
                if rows.insert(item.id.as_str().into(), row).is_some() {
                    let problem = format!("the id `{}` came before: each item needs its own", item.id);
                    return Err(Error::data(&path, Some(number), problem));
                }
                starts.push(offset);
            }
            offset += read as u64;
            crc.update(&line);
        }
        if rows.is_empty() {
            return Err(Error::data(&path, None, "holds no items"));
        }
        starts.push(offset);
        Ok(Self { path, file, rows, starts, crc32: crc.finalize(), item_text: ItemText::default() })
    }

    /// Sets the template of the items' texts; by default, title and text.
    pub fn with_item_text(self, item_text: &ItemText) -> Self {
        Self { item_text: item_text.clone(), ..self }
    }

    /// Text of an item, as the model reads it.
    pub fn text_of(&self, item: &Item) -> String {
        self.item_text.render(item)
    }

    pub fn len(&self) -> u32 {
        self.rows.len() as u32
    }

    /// CRC-32 of the whole file.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn row(&self, id: &str) -> Option<u32> {
        self.rows.get(id).copied()
    }

    /// Reads one item; `row` must be below `len`.
    pub fn item(&self, row: u32) -> Result<Item> {
        let [start, end] = [self.starts[row as usize], self.starts[row as usize + 1]];
        let mut line = vec![0; usize::try_from(end - start).expect("a line fits into memory")];
        self.file.read_exact_at(&mut line, start).map_err(Error::store(&self.path, "read an item"))?;
        let json = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line).trim_ascii();
        Item::parse(json, &self.path, u64::from(row) + 1)
    }

    /// Global negative number `draw` of a seed: any item of the catalogue, each as likely, in constant time.
    pub fn negative(&self, seed: u64, draw: u64) -> u32 {
        uniform(seed, draw, u64::from(self.len())) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn catalogue(home: &Path, corpus: &str) -> Result<Catalogue> {
        std::fs::write(home.join("corpus.jsonl"), corpus).unwrap();
        Catalogue::open(&DataFolder::open(home).unwrap())
    }

    #[test]
    fn items_are_found_by_id_and_read_by_row() {
        let home = tempfile::tempdir().unwrap();
        let corpus = "\u{feff}{\"_id\":\"a\",\"title\":\"one\"}\r\n\n{\"title\":\"zwei\",\"_id\":\"b\\n\"}";
        let catalogue = catalogue(home.path(), corpus).unwrap();
        assert_eq!((catalogue.len(), catalogue.row("b\n"), catalogue.row("c")), (2, Some(1), None));
        assert_eq!(catalogue.item(0).unwrap().title, "one");
        assert_eq!(catalogue.item(1).unwrap().title, "zwei");
        let drawn: std::collections::BTreeSet<u32> = (0..100).map(|draw| catalogue.negative(1, draw)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn rejects_bad_lines_and_duplicate_ids() {
        let home = tempfile::tempdir().unwrap();
        for (corpus, expected) in [
            ("{\"_id\":\"a\"}\n{\"_id\":\"a\"}\n", "line 2: the id `a` came before"),
            ("{\"id\":\"a\"}\n", "line 1: not an item"),
            ("{\"_id\":\"a\"}\n\n{\"_id\":\"b\",\"title\":123}\n", "line 3: not an item"),
            ("\n", "holds no items"),
        ] {
            let error = catalogue(home.path(), corpus).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
