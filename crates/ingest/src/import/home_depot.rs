//! Kaggle's Home Depot product search: `train.csv`, and optionally `product_descriptions.csv`, `attributes.csv` and
//! `test.csv`. Queries are identified by text: each text has one id (`q1`, `q2`, … in file order) and one split, `dev`
//! for one in eight by the CRC-32 of the text, else `train`. The raters' mean becomes a level: 2.6 and above is 4, 2.2
//! and above 3, 1.6 and above 2, else 1.
//!
//! Title, description and attributes of an item are in three files of any order. Never holds them in memory: the
//! offsets of titles and attributes are indexed (32 and 24 bytes per row), and the rows are re-read when their item is
//! written.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Map;

use super::fields::{self, join};
use super::folder::{find_file, note_unread_files, require_file};
use super::import_writer::{ImportWriter, hash};
use super::lines::MAX_BYTES;
use super::rejection::{Rejection, RowLocation};
use super::table::Table;
use souk_io::domain::{Item, Judgement, Level, Query};
use souk_io::error::Result;

const COMMA: u8 = b',';
const FILES: [&str; 4] = ["train.csv", "test.csv", "product_descriptions.csv", "attributes.csv"];

pub fn import(writer: &mut ImportWriter, folder: &Path) -> Result<()> {
    let train = require_file(folder, FILES[0])?;
    let [test, descriptions, attributes] = [1, 2, 3].map(|at| find_file(folder, FILES[at]));
    let mut titles = TitleIndex::default();
    for file in std::iter::once(&train).chain(&test) {
        titles.scan(file, writer)?;
    }
    let attributes = attributes.map(|file| AttributeIndex::scan(&file, writer)).transpose()?;
    let mut catalogue = ItemJoiner { titles, attributes };
    match descriptions {
        Some(file) => catalogue.import_descriptions(&file, writer)?,
        None => writer.note("no product_descriptions.csv: items have no description"),
    }
    if catalogue.attributes.is_none() {
        writer.note("no attributes.csv: items have no attributes");
    }
    let mut queries = HashMap::new();
    import_searches(writer, &train, true, &mut catalogue, &mut queries)?;
    if let Some(test) = &test {
        import_searches(writer, test, false, &mut catalogue, &mut queries)?;
    }
    if let Some(attributes) = &mut catalogue.attributes {
        attributes.reject_orphans(writer)?;
    }
    note_unread_files(writer, folder, &FILES)
}

/// Location of each item's first title, by the hash of its id.
#[derive(Default)]
struct TitleIndex {
    files: Vec<(Table, [usize; 2])>,
    /// File number and offset.
    offsets: HashMap<u64, (u32, u64)>,
}

impl TitleIndex {
    /// Indexes a file. Bad rows are reported later, when the searches are read.
    fn scan(&mut self, file: &Path, writer: &mut ImportWriter) -> Result<()> {
        let (mut table, [id, title]) = Table::with_columns(file, COMMA, ["product_uid", "product_title"], writer)?;
        table.is_quiet = true;
        let number = self.files.len() as u32;
        while let Some(row) = table.next(writer)? {
            self.offsets.entry(hash(row.cell(id))).or_insert((number, row.offset));
        }
        self.files.push((table, [id, title]));
        Ok(())
    }

    fn title(&mut self, item: &str, writer: &mut ImportWriter) -> Result<String> {
        let Some((file, offset)) = self.offsets.get(&hash(item)) else { return Ok(String::new()) };
        let (table, [id, title]) = &mut self.files[*file as usize];
        let row = table.row_at(*offset, writer)?.filter(|row| row.cell(*id) == item);
        Ok(row.map_or(String::new(), |row| row.cell(*title).trim().to_owned()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AttributeRow {
    item: u64,
    offset: u64,
    line: u64,
}

/// Locations of the attribute rows, sorted by item.
struct AttributeIndex {
    table: Table,
    columns: [usize; 3],
    rows: Vec<AttributeRow>,
}

impl AttributeIndex {
    fn scan(file: &Path, writer: &mut ImportWriter) -> Result<Self> {
        let (mut table, columns) = Table::with_columns(file, COMMA, ["product_uid", "name", "value"], writer)?;
        let mut rows = Vec::new();
        while let Some(row) = table.next(writer)? {
            let id = row.cell(columns[0]);
            if id.trim().is_empty() {
                writer.reject(&row.location(file), &"attribute without product_uid".into())?;
            } else {
                rows.push(AttributeRow { item: hash(id), offset: row.offset, line: row.number });
            }
        }
        rows.sort_unstable();
        table.is_quiet = true;
        Ok(Self { table, columns, rows })
    }

    /// Attribute names and values of an item, in file order.
    fn attributes(&mut self, item: &str, writer: &mut ImportWriter) -> Result<Vec<(String, String)>> {
        let wanted = hash(item);
        let begin = self.rows.partition_point(|indexed| indexed.item < wanted);
        let (mut found, mut size) = (Vec::new(), 0);
        let [_, name, value] = self.columns;
        for indexed in self.rows[begin..].iter().take_while(|indexed| indexed.item == wanted) {
            let Some(row) = self.table.row_at(indexed.offset, writer)? else { break };
            let (name, value) = (row.cell(name).trim(), row.cell(value).trim());
            size += name.len() + value.len();
            if size > MAX_BYTES {
                let rejection = Rejection::from("attributes of one item exceed 16 MiB");
                writer.reject(&RowLocation { row: indexed.line, ..row.location(self.table.file()) }, &rejection)?;
            } else {
                found.push((name.to_owned(), value.to_owned()));
            }
        }
        Ok(found)
    }

    /// Rejects attributes of unknown items; called once all items are written.
    fn reject_orphans(&mut self, writer: &mut ImportWriter) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        for indexed in rows {
            if writer.has_item_hash(indexed.item) {
                continue;
            }
            if let Some(row) = self.table.row_at(indexed.offset, writer)? {
                let rejection = Rejection::with("attribute of an unknown item", row.cell(self.columns[0]));
                writer.reject(&RowLocation { row: indexed.line, ..row.location(self.table.file()) }, &rejection)?;
            }
        }
        Ok(())
    }
}

/// Item writer that joins descriptions with titles and attributes.
struct ItemJoiner {
    titles: TitleIndex,
    attributes: Option<AttributeIndex>,
}

impl ItemJoiner {
    fn import_descriptions(&mut self, file: &Path, writer: &mut ImportWriter) -> Result<()> {
        let (mut table, [id, text]) = Table::with_columns(file, COMMA, ["product_uid", "product_description"], writer)?;
        while let Some(row) = table.next(writer)? {
            self.write(row.cell(id), row.cell(text), &row.location(file), writer)?;
        }
        Ok(())
    }

    fn write(&mut self, id: &str, description: &str, location: &RowLocation, writer: &mut ImportWriter) -> Result<()> {
        let attributes = match &mut self.attributes {
            Some(attributes) => attributes.attributes(id, writer)?,
            None => Vec::new(),
        };
        let (bullets, others): (Vec<_>, Vec<_>) = attributes.iter().partition(|(name, _)| name.starts_with("Bullet"));
        let bullets = bullets.into_iter().map(|(_, value)| value.as_str());
        let text = join(std::iter::once(description).chain(bullets), " ");
        let mut fields = Map::new();
        let mut attributes =
            fields::attributes(others.into_iter().map(|(name, value)| (name.as_str(), value.as_str())));
        if let Some(brand) = attributes.remove("MFG Brand Name") {
            fields.insert("brand".into(), brand);
        }
        if !attributes.is_empty() {
            fields.insert("attributes".into(), attributes.into());
        }
        let title = self.titles.title(id, writer)?;
        let is_untitled = title.is_empty() && !writer.has_item(id);
        writer.add_item(Ok(Item { id: id.into(), title, text, fields }), location)?;
        if is_untitled && writer.has_item(id) {
            writer.note("items without a title");
        }
        Ok(())
    }
}

/// Imports the queries of a file, items without a description, and the judgements if the file has them.
fn import_searches(
    writer: &mut ImportWriter,
    file: &Path,
    is_judged: bool,
    catalogue: &mut ItemJoiner,
    queries: &mut HashMap<u64, u64>,
) -> Result<()> {
    let (mut table, [item, text]) = Table::with_columns(file, COMMA, ["product_uid", "search_term"], writer)?;
    let relevance = if is_judged { Some(table.needed_column("relevance")?) } else { None };
    while let Some(row) = table.next(writer)? {
        let (location, text, item) = (row.location(file), row.cell(text), row.cell(item));
        if text.trim().is_empty() || item.trim().is_empty() {
            writer.reject(&location, &"search without product_uid or search_term".into())?;
            continue;
        }
        if !writer.has_item(item) {
            catalogue.write(item, "", &location, writer)?;
        }
        let next = queries.len() as u64 + 1;
        let id = format!("q{}", queries.entry(hash(text)).or_insert(next));
        if !writer.has_query(&id) {
            writer.add_query(Ok(Query { id: id.clone(), text: text.into() }), &location)?;
        }
        if let Some(relevance) = relevance {
            let judgement = |level| Judgement { query: id, item: item.into(), level };
            writer.add_judgement(split(text), level(row.cell(relevance)).map(judgement), &location)?;
        }
    }
    Ok(())
}

fn split(text: &str) -> &'static str {
    if crc32fast::hash(text.as_bytes()).is_multiple_of(8) { "dev" } else { "train" }
}

fn level(relevance: &str) -> std::result::Result<Level, Rejection> {
    match relevance.trim().parse::<f64>() {
        Ok(mean) if !(1.0..=3.0).contains(&mean) => Err(Rejection::with("relevance outside 1 to 3", relevance)),
        Ok(mean) if mean >= 2.6 => Ok(Level::L4),
        Ok(mean) if mean >= 2.2 => Ok(Level::L3),
        Ok(mean) if mean >= 1.6 => Ok(Level::L2),
        Ok(_) => Ok(Level::L1),
        Err(_) => Err(Rejection::with("relevance is not a number", relevance)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_raters_mean_becomes_a_level() {
        let levels =
            ["3", "2.67", "2.6", "2.33", "2.2", "2", "1.67", "1.6", "1.33", "1"].map(|text| level(text).unwrap());
        assert_eq!(levels.map(Level::number), [4, 4, 4, 3, 3, 2, 2, 2, 1, 1]);
        assert!(level("3.01").is_err() && level("NaN").is_err() && level("").is_err());
    }

    #[test]
    fn the_split_is_a_function_of_the_text() {
        // python3 -c 'import zlib; print([zlib.crc32(t) % 8 for t in (b"angle bracket", b"l bracket", b"deck over")])'
        let remainders = ["angle bracket", "l bracket", "deck over"].map(|text| crc32fast::hash(text.as_bytes()) % 8);
        assert_eq!(remainders, [7, 0, 1]);
        let dev = (0..8000).filter(|number| split(&format!("query {number}")) == "dev").count();
        assert!((900..1100).contains(&dev), "{dev}");
    }
}
