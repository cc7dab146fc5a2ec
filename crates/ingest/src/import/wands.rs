//! WANDS, Wayfair's judgements: tab-separated `product.csv`, `query.csv` and `label.csv`. Gives a split `test`, because
//! the data set is meant for evaluation, and the query classes as slices.
//!
//! Exact is level 4, Irrelevant 1. Partial is 2, not Good: WANDS uses it for items of the right kind without the
//! requested properties.

use std::path::Path;

use serde_json::{Map, Value};

use super::fields::{self, RESERVED_NAMES, put, put_number};
use super::folder::{note_unread_files, require_file};
use super::import_writer::ImportWriter;
use super::scale::Scale;
use super::table::Table;
use souk_io::domain::{Item, Judgement, Level, Query};
use souk_io::error::Result;

const TAB: u8 = b'\t';
const NUMBERS: [&str; 3] = ["rating_count", "average_rating", "review_count"];

pub fn import(writer: &mut ImportWriter, folder: &Path, scale: Option<&Scale>) -> Result<()> {
    let (product, query, label) =
        (require_file(folder, "product.csv")?, require_file(folder, "query.csv")?, require_file(folder, "label.csv")?);
    products(writer, &product)?;
    queries(writer, &query)?;
    let default = Scale::from_pairs(&[("Exact", Level::L4), ("Partial", Level::L2), ("Irrelevant", Level::L1)]);
    let scale = scale.unwrap_or(&default);
    writer.summary.levels = scale.numbers();
    labels(writer, &label, scale)?;
    note_unread_files(writer, folder, &["product.csv", "query.csv", "label.csv"])
}

fn products(writer: &mut ImportWriter, file: &Path) -> Result<()> {
    let (mut table, [id, title]) = Table::with_columns(file, TAB, ["product_id", "product_name"], writer)?;
    let [text, features, class, category] =
        ["product_description", "product_features", "product_class", "category hierarchy"]
            .map(|name| table.column(name));
    let numbers = NUMBERS.map(|name| (name, table.column(name)));
    let known: Vec<usize> = [Some(id), Some(title), text, features, class, category]
        .into_iter()
        .chain(numbers.map(|(_, at)| at))
        .flatten()
        .collect();
    let others: Vec<(usize, String)> = table.names.iter().cloned().enumerate().collect();
    let others: Vec<(usize, String)> = others.into_iter().filter(|(at, _)| !known.contains(at)).collect();
    while let Some(row) = table.next(writer)? {
        let mut fields = Map::new();
        put(&mut fields, "category", row.optional_cell(category));
        put(&mut fields, "class", row.optional_cell(class));
        for (name, at) in numbers {
            put_number(&mut fields, name, row.optional_cell(at));
        }
        for (at, name) in others.iter().filter(|(_, name)| !RESERVED_NAMES.contains(&&**name)) {
            put(&mut fields, name, row.cell(*at));
        }
        let attributes = attributes(row.optional_cell(features));
        if !attributes.is_empty() {
            fields.insert("attributes".into(), attributes.into());
        }
        let text = row.optional_cell(text).trim().into();
        let item = Item { id: row.cell(id).into(), title: row.cell(title).trim().into(), text, fields };
        writer.add_item(Ok(item), &row.location(file))?;
    }
    Ok(())
}

fn queries(writer: &mut ImportWriter, file: &Path) -> Result<()> {
    let (mut table, [id, text]) = Table::with_columns(file, TAB, ["query_id", "query"], writer)?;
    let class = table.column("query_class");
    while let Some(row) = table.next(writer)? {
        let (location, is_known) = (row.location(file), writer.has_query(row.cell(id)));
        writer.add_query(Ok(Query { id: row.cell(id).into(), text: row.cell(text).trim().into() }), &location)?;
        let class = row.optional_cell(class).trim();
        if !is_known && !class.is_empty() && writer.has_query(row.cell(id)) {
            writer.add_slice(row.cell(id), class, &location)?;
        }
    }
    Ok(())
}

fn labels(writer: &mut ImportWriter, file: &Path, scale: &Scale) -> Result<()> {
    let (mut table, [query, item, label]) =
        Table::with_columns(file, TAB, ["query_id", "product_id", "label"], writer)?;
    while let Some(row) = table.next(writer)? {
        let judgement = |level| Judgement { query: row.cell(query).into(), item: row.cell(item).into(), level };
        writer.add_judgement("test", scale.level(row.cell(label).trim()).map(judgement), &row.location(file))?;
    }
    Ok(())
}

/// Parses `color : oak | legs:4`; a feature without a value becomes `yes`.
fn attributes(features: &str) -> Map<String, Value> {
    let pairs = features.split('|').map(|feature| feature.split_once(':').unwrap_or((feature, "yes")));
    fields::attributes(pairs.filter(|(name, _)| !name.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_become_attributes() {
        let found = attributes("color : oak | legs:4|color: black | color : oak || folds | : x | size :");
        let expected = serde_json::json!({"color": "oak; black", "legs": "4", "folds": "yes"});
        assert_eq!(Value::from(found), expected);
    }
}
