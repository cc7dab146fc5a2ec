//! Product files as shops have them: CSV, TSV, JSON lines, Parquet or Arrow, one file or a folder of them, whose columns
//! are guessed. The first row of an id stays; later ones are rejected, like rows without an id.

use std::path::Path;

use serde_json::Value;

use super::fields::put_number;
use super::guess::{Guess, Guesses, ReadOptions, item_guesses};
use super::import_writer::ImportWriter;
use super::mapping::{CellMapping, Mapping};
use super::rejection::RowLocation;
use super::rows::{InputFiles, ObjectRow, Row, RowFile, input_files};
use souk_io::domain::Item;
use souk_io::error::Result;

/// File of a data folder that has the items.
const CORPUS: &str = "corpus.jsonl";

/// Guesses the columns of a product file, or of the files of a folder.
pub fn guess(from: &Path, options: &ReadOptions) -> Result<Guesses> {
    item_guesses(&input_files(from, CORPUS)?.files, options)
}

pub fn import(writer: &mut ImportWriter, from: &Path, options: &ReadOptions) -> Result<()> {
    let InputFiles { files, others } = input_files(from, CORPUS)?;
    writer.summary.unread_files.extend(others);
    let guesses = item_guesses(&files, options)?;
    guesses.unread.iter().for_each(|unread| writer.note_unread(&unread.file));
    guesses.files.iter().try_for_each(|guess| import_file(writer, guess))
}

fn import_file(writer: &mut ImportWriter, guess: &Guess) -> Result<()> {
    let Some(format) = guess.format() else { return Ok(()) };
    let mut rows = RowFile::open(&guess.file, format)?;
    let numbers = guess.places().map(|(field, place)| (field.to_owned(), place.at)).collect();
    let names = guess.places().map(|(field, place)| (field.to_owned(), place.name.clone())).collect();
    let cells = CellMapping::new(numbers, rows.names(), rows.num_columns());
    let objects = Mapping::from_pairs(names);
    while let Some(row) = rows.next(writer)? {
        let start = row.start().into_owned();
        let location = RowLocation { file: &guess.file, row: row.number(), start: &start };
        let item = match row {
            Row::Cells(row) => Ok(cells.item(&row, writer)),
            Row::Object(row) => object_item(row, &objects, writer).ok_or_else(|| "missing id".into()),
        };
        writer.add_item(item, &location)?;
    }
    Ok(())
}

/// Item of an object, without its empty fields. Whole numbers that were written as floats lose their fraction in the id, and a price in a text
/// becomes a number.
fn object_item(row: ObjectRow, mapping: &Mapping, writer: &mut ImportWriter) -> Option<Item> {
    let mut item = mapping.item(row.object)?;
    item.fields.retain(|_, value| value.as_str().is_none_or(|text| !text.trim().is_empty()));
    if let Some(whole) = item.id.strip_suffix(".0").filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())) {
        item.id = whole.to_owned();
    }
    if let Some(Value::String(price)) = item.fields.get("price").cloned()
        && !put_number(&mut item.fields, "price", &price)
    {
        writer.note("non-numeric prices kept as text");
    }
    Some(item)
}

#[cfg(test)]
mod tests;
