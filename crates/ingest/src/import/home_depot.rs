//! Kaggle's Home Depot product search: `train.csv`, and where they are there `product_descriptions.csv`, `attributes.csv`
//! and `test.csv`. A query is a text: the same text has one id, `q1`, `q2`, … in the order of the files, and one split,
//! `dev` for one in eight by the CRC-32 of its text, else `train`. The raters' mean becomes a level: 2.6 and above 4, 2.2
//! and above 3, 1.6 and above 2, else 1.
//!
//! An item's title, description and attributes lie in three files, sorted or not: the places of titles and attributes
//! are remembered (32 and 24 bytes a row), and the rows themselves read again when their item is written.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Map;

use super::beir::{needed, packed_or_not, unread};
use super::fields::{self, join};
use super::intake::{Intake, Place, Refusal, hash};
use super::lines::MAX_BYTES;
use super::table::Table;
use souk_io::domain::{Item, Judgement, Level, Query};
use souk_io::error::Result;

const COMMA: u8 = b',';
const FILES: [&str; 4] = ["train.csv", "test.csv", "product_descriptions.csv", "attributes.csv"];

pub fn import(intake: &mut Intake, folder: &Path) -> Result<()> {
    let train = needed(folder, FILES[0])?;
    let [test, descriptions, attributes] = [1, 2, 3].map(|at| packed_or_not(folder, FILES[at]));
    let mut titles = Titles::default();
    for file in std::iter::once(&train).chain(&test) {
        titles.look_through(file, intake)?;
    }
    let attributes = attributes.map(|file| Attributes::look_through(&file, intake)).transpose()?;
    let mut catalogue = Catalogue { titles, attributes };
    match descriptions {
        Some(file) => catalogue.described(&file, intake)?,
        None => intake.note("no product_descriptions.csv: items have no description"),
    }
    if catalogue.attributes.is_none() {
        intake.note("no attributes.csv: items have no attributes");
    }
    let mut queries = HashMap::new();
    searches(intake, &train, true, &mut catalogue, &mut queries)?;
    if let Some(test) = &test {
        searches(intake, test, false, &mut catalogue, &mut queries)?;
    }
    if let Some(attributes) = &mut catalogue.attributes {
        attributes.reject_homeless(intake)?;
    }
    unread(intake, folder, &FILES)
}

/// Where each item's title stands first.
#[derive(Default)]
struct Titles {
    files: Vec<(Table, [usize; 2])>,
    places: HashMap<u64, (u32, u64)>,
}

impl Titles {
    /// What is wrong with a row is said when its search is read.
    fn look_through(&mut self, file: &Path, intake: &mut Intake) -> Result<()> {
        let (mut table, [id, title]) = Table::with_columns(file, COMMA, ["product_uid", "product_title"], intake)?;
        table.quiet = true;
        let number = self.files.len() as u32;
        while let Some(row) = table.next(intake)? {
            self.places.entry(hash(row.cell(id))).or_insert((number, row.offset));
        }
        self.files.push((table, [id, title]));
        Ok(())
    }

    fn of(&mut self, item: &str, intake: &mut Intake) -> Result<String> {
        let Some((file, offset)) = self.places.get(&hash(item)) else { return Ok(String::new()) };
        let (table, [id, title]) = &mut self.files[*file as usize];
        let row = table.row_at(*offset, intake)?.filter(|row| row.cell(*id) == item);
        Ok(row.map_or(String::new(), |row| row.cell(*title).trim().to_owned()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AttributePlace {
    item: u64,
    offset: u64,
    line: u64,
}

/// Where each item's attributes stand, sorted by item.
struct Attributes {
    table: Table,
    columns: [usize; 3],
    places: Vec<AttributePlace>,
}

impl Attributes {
    fn look_through(file: &Path, intake: &mut Intake) -> Result<Self> {
        let (mut table, columns) = Table::with_columns(file, COMMA, ["product_uid", "name", "value"], intake)?;
        let mut places = Vec::new();
        while let Some(row) = table.next(intake)? {
            match row.cell(columns[0]).trim().is_empty() {
                true => intake.reject(&row.place(file), &"an attribute without product_uid".into())?,
                false => places.push(AttributePlace {
                    item: hash(row.cell(columns[0])),
                    offset: row.offset,
                    line: row.number,
                }),
            }
        }
        places.sort_unstable();
        table.quiet = true;
        Ok(Self { table, columns, places })
    }

    /// Names and values of an item, in the order of the file.
    fn of(&mut self, item: &str, intake: &mut Intake) -> Result<Vec<(String, String)>> {
        let wanted = hash(item);
        let begin = self.places.partition_point(|place| place.item < wanted);
        let (mut found, mut size) = (Vec::new(), 0);
        let [_, name, value] = self.columns;
        for place in self.places[begin..].iter().take_while(|place| place.item == wanted) {
            let Some(row) = self.table.row_at(place.offset, intake)? else { break };
            let (name, value) = (row.cell(name).trim(), row.cell(value).trim());
            size += name.len() + value.len();
            if size > MAX_BYTES {
                let refusal = Refusal::from("an item's attributes are more than 16 MiB");
                intake.reject(&Place { row: place.line, ..row.place(self.table.file()) }, &refusal)?;
            } else {
                found.push((name.to_owned(), value.to_owned()));
            }
        }
        Ok(found)
    }

    /// When all items are written: attributes of none of them.
    fn reject_homeless(&mut self, intake: &mut Intake) -> Result<()> {
        let places = std::mem::take(&mut self.places);
        for place in places {
            if intake.has_item_hash(place.item) {
                continue;
            }
            if let Some(row) = self.table.row_at(place.offset, intake)? {
                let refusal = Refusal::with("an attribute of an item that is not there", row.cell(self.columns[0]));
                intake.reject(&Place { row: place.line, ..row.place(self.table.file()) }, &refusal)?;
            }
        }
        Ok(())
    }
}

struct Catalogue {
    titles: Titles,
    attributes: Option<Attributes>,
}

impl Catalogue {
    fn described(&mut self, file: &Path, intake: &mut Intake) -> Result<()> {
        let (mut table, [id, text]) = Table::with_columns(file, COMMA, ["product_uid", "product_description"], intake)?;
        while let Some(row) = table.next(intake)? {
            self.write(row.cell(id), row.cell(text), &row.place(file), intake)?;
        }
        Ok(())
    }

    fn write(&mut self, id: &str, description: &str, place: &Place, intake: &mut Intake) -> Result<()> {
        let attributes = match &mut self.attributes {
            Some(attributes) => attributes.of(id, intake)?,
            None => Vec::new(),
        };
        let (bullets, others): (Vec<_>, Vec<_>) = attributes.iter().partition(|(name, _)| name.starts_with("Bullet"));
        let bullets = bullets.into_iter().map(|(_, value)| value.as_str());
        let text = join(std::iter::once(description).chain(bullets), " ");
        let mut fields = Map::new();
        let mut kept = fields::attributes(others.into_iter().map(|(name, value)| (name.as_str(), value.as_str())));
        if let Some(brand) = kept.remove("MFG Brand Name") {
            fields.insert("brand".into(), brand);
        }
        if !kept.is_empty() {
            fields.insert("attributes".into(), kept.into());
        }
        let title = self.titles.of(id, intake)?;
        let untitled = title.is_empty() && !intake.has_item(id);
        intake.item(Ok(Item { id: id.into(), title, text, fields }), place)?;
        if untitled && intake.has_item(id) {
            intake.note("items without a title");
        }
        Ok(())
    }
}

/// Queries of a file, items that have no description, and where the raters spoke, judgements.
fn searches(
    intake: &mut Intake,
    file: &Path,
    judged: bool,
    catalogue: &mut Catalogue,
    queries: &mut HashMap<u64, u64>,
) -> Result<()> {
    let (mut table, [item, text]) = Table::with_columns(file, COMMA, ["product_uid", "search_term"], intake)?;
    let relevance = if judged { Some(table.needed_column("relevance")?) } else { None };
    while let Some(row) = table.next(intake)? {
        let (place, text, item) = (row.place(file), row.cell(text), row.cell(item));
        if text.trim().is_empty() || item.trim().is_empty() {
            intake.reject(&place, &"a search without product_uid or search_term".into())?;
            continue;
        }
        if !intake.has_item(item) {
            catalogue.write(item, "", &place, intake)?;
        }
        let next = queries.len() as u64 + 1;
        let id = format!("q{}", queries.entry(hash(text)).or_insert(next));
        if !intake.has_query(&id) {
            intake.query(Ok(Query { id: id.clone(), text: text.into() }), &place)?;
        }
        if let Some(relevance) = relevance {
            let judgement = |level| Judgement { query: id, item: item.into(), level };
            intake.judgement(split(text), level(row.cell(relevance)).map(judgement), &place)?;
        }
    }
    Ok(())
}

fn split(text: &str) -> &'static str {
    if crc32fast::hash(text.as_bytes()).is_multiple_of(8) { "dev" } else { "train" }
}

fn level(relevance: &str) -> std::result::Result<Level, Refusal> {
    match relevance.trim().parse::<f64>() {
        Ok(mean) if !(1.0..=3.0).contains(&mean) => Err(Refusal::with("a relevance outside of 1 to 3", relevance)),
        Ok(mean) if mean >= 2.6 => Ok(Level::L4),
        Ok(mean) if mean >= 2.2 => Ok(Level::L3),
        Ok(mean) if mean >= 1.6 => Ok(Level::L2),
        Ok(_) => Ok(Level::L1),
        Err(_) => Err(Refusal::with("a relevance that is no number", relevance)),
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
