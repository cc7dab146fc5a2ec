//! WANDS, the judgements of Wayfair: `product.csv`, `query.csv` and `label.csv`, with tabs between cells. Gives a split
//! `test`, for the set is made to evaluate on, and the query classes as slices.
//!
//! Exact is level 4, Irrelevant 1. Partial is 2, not Good: WANDS says it of items that are the right kind of thing
//! without the properties that were asked for.

use std::path::Path;

use serde_json::{Map, Value};

use super::beir::{needed, unread};
use super::fields::{self, OWN_NAMES, cell_or_none, put, put_number};
use super::intake::Intake;
use super::scale::Scale;
use super::table::Table;
use souk_io::domain::{Item, Judgement, Level, Query};
use souk_io::error::Result;

const TAB: u8 = b'\t';
const NUMBERS: [&str; 3] = ["rating_count", "average_rating", "review_count"];

pub fn import(intake: &mut Intake, folder: &Path, scale: Option<&Scale>) -> Result<()> {
    let (product, query, label) =
        (needed(folder, "product.csv")?, needed(folder, "query.csv")?, needed(folder, "label.csv")?);
    products(intake, &product)?;
    queries(intake, &query)?;
    let default = Scale::of(&[("Exact", Level::L4), ("Partial", Level::L2), ("Irrelevant", Level::L1)]);
    let scale = scale.unwrap_or(&default);
    intake.summary.levels = scale.numbers();
    labels(intake, &label, scale)?;
    unread(intake, folder, &["product.csv", "query.csv", "label.csv"])
}

fn products(intake: &mut Intake, file: &Path) -> Result<()> {
    let (mut table, [id, title]) = Table::with_columns(file, TAB, ["product_id", "product_name"], intake)?;
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
    while let Some(row) = table.next(intake)? {
        let mut fields = Map::new();
        put(&mut fields, "category", cell_or_none(&row, category));
        put(&mut fields, "class", cell_or_none(&row, class));
        for (name, at) in numbers {
            put_number(&mut fields, name, cell_or_none(&row, at));
        }
        for (at, name) in others.iter().filter(|(_, name)| !OWN_NAMES.contains(&&**name)) {
            put(&mut fields, name, row.cell(*at));
        }
        let attributes = attributes(cell_or_none(&row, features));
        if !attributes.is_empty() {
            fields.insert("attributes".into(), attributes.into());
        }
        let text = cell_or_none(&row, text).trim().into();
        let item = Item { id: row.cell(id).into(), title: row.cell(title).trim().into(), text, fields };
        intake.item(Ok(item), &row.place(file))?;
    }
    Ok(())
}

fn queries(intake: &mut Intake, file: &Path) -> Result<()> {
    let (mut table, [id, text]) = Table::with_columns(file, TAB, ["query_id", "query"], intake)?;
    let class = table.column("query_class");
    while let Some(row) = table.next(intake)? {
        let (place, before) = (row.place(file), intake.has_query(row.cell(id)));
        intake.query(Ok(Query { id: row.cell(id).into(), text: row.cell(text).trim().into() }), &place)?;
        let class = cell_or_none(&row, class).trim();
        if !before && !class.is_empty() && intake.has_query(row.cell(id)) {
            intake.slice(row.cell(id), class, &place)?;
        }
    }
    Ok(())
}

fn labels(intake: &mut Intake, file: &Path, scale: &Scale) -> Result<()> {
    let (mut table, [query, item, label]) =
        Table::with_columns(file, TAB, ["query_id", "product_id", "label"], intake)?;
    while let Some(row) = table.next(intake)? {
        let judgement = |level| Judgement { query: row.cell(query).into(), item: row.cell(item).into(), level };
        intake.judgement("test", scale.level(row.cell(label).trim()).map(judgement), &row.place(file))?;
    }
    Ok(())
}

/// `color : oak | legs:4`; a feature without a value is there.
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
