//! Items of a BEIR corpus (`corpus.jsonl`). Extra keys are kept as fields.

use std::path::Path;

use super::fields::{object, take_text};
use super::import_writer::ImportWriter;
use super::lines::each_line;
use souk_io::domain::Item;
use souk_io::error::Result;

pub fn import_items(writer: &mut ImportWriter, corpus: &Path) -> Result<()> {
    each_line(writer, corpus, |writer, line, location| {
        let item = object(line).and_then(|mut fields| {
            let id = take_text(&mut fields, "_id")?.unwrap_or_default();
            let title = take_text(&mut fields, "title")?.unwrap_or_default();
            let text = take_text(&mut fields, "text")?.unwrap_or_default();
            Ok(Item { id, title, text, fields })
        });
        writer.add_item(item, location)
    })
}
