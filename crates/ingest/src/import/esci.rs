//! Amazon's shopping queries (ESCI): `shopping_queries_dataset_products.parquet`, `…_examples.parquet` and where it is
//! there `…_sources.csv`, whose sources become slices. Exact is level 4, Substitute 3, Complement 2, Irrelevant 1; the
//! set's own split is kept. Takes one locale at a time, for the same id is another item elsewhere.

use std::path::Path;

use serde_json::Map;

use super::beir::{needed, packed_or_not, unread};
use super::fields::{join, put};
use super::intake::{Intake, Place};
use super::parquet_rows::ParquetRows;
use super::scale::Scale;
use super::table::Table;
use souk_io::domain::{Item, Judgement, Level, Query};
use souk_io::error::Result;

pub const DEFAULT_LOCALE: &str = "us";
const PRODUCTS: &str = "shopping_queries_dataset_products.parquet";
const EXAMPLES: &str = "shopping_queries_dataset_examples.parquet";
const SOURCES: &str = "shopping_queries_dataset_sources.csv";
const ELSEWHERE: &str = "rows of other locales";

pub fn import(intake: &mut Intake, folder: &Path, locale: &str, scale: Option<&Scale>) -> Result<()> {
    let (products, examples) = (needed(folder, PRODUCTS)?, needed(folder, EXAMPLES)?);
    items(intake, &products, locale)?;
    let default = Scale::of(&[("E", Level::L4), ("S", Level::L3), ("C", Level::L2), ("I", Level::L1)]);
    let scale = scale.unwrap_or(&default);
    intake.summary.levels = scale.numbers();
    judgements(intake, &examples, locale, scale)?;
    if let Some(sources) = packed_or_not(folder, SOURCES) {
        slices(intake, &sources)?;
    }
    unread(intake, folder, &[PRODUCTS, EXAMPLES, SOURCES])
}

fn items(intake: &mut Intake, file: &Path, locale: &str) -> Result<()> {
    let needed = ["product_id", "product_locale", "product_title"];
    let optional = ["product_description", "product_bullet_point", "product_brand", "product_color"];
    let mut rows = ParquetRows::open(file, &needed, &optional)?;
    while let Some((number, cells)) = rows.next()? {
        intake.tick();
        let [id, of, title, description, bullets, brand, color] = &cells[..] else { continue };
        if of != locale {
            intake.leave_out(ELSEWHERE);
            continue;
        }
        let mut fields = Map::new();
        put(&mut fields, "brand", brand);
        put(&mut fields, "color", color);
        let text = join([description.as_str(), bullets], "\n");
        let start = cells.join(" | ");
        let item = Item { id: id.clone(), title: title.trim().into(), text, fields };
        intake.item(Ok(item), &Place { file, row: number, start: start.as_bytes() })?;
    }
    Ok(())
}

fn judgements(intake: &mut Intake, file: &Path, locale: &str, scale: &Scale) -> Result<()> {
    let needed = ["query_id", "query", "product_id", "product_locale", "esci_label", "split"];
    let mut rows = ParquetRows::open(file, &needed, &[])?;
    while let Some((number, cells)) = rows.next()? {
        intake.tick();
        let [query, text, item, of, label, split] = &cells[..] else { continue };
        if of != locale {
            intake.leave_out(ELSEWHERE);
            continue;
        }
        let start = cells.join(" | ");
        let place = Place { file, row: number, start: start.as_bytes() };
        if !["train", "test"].contains(&split.as_str()) {
            intake.reject(&place, &"a split that is neither train nor test".into())?;
            continue;
        }
        if !intake.has_query(query) {
            intake.query(Ok(Query { id: query.clone(), text: text.trim().into() }), &place)?;
        }
        if intake.has_query(query) {
            let judgement = |level| Judgement { query: query.clone(), item: item.clone(), level };
            intake.judgement(split, scale.level(label).map(judgement), &place)?;
        }
    }
    Ok(())
}

fn slices(intake: &mut Intake, file: &Path) -> Result<()> {
    let (mut table, [query, source]) = Table::with_columns(file, b',', ["query_id", "source"], intake)?;
    while let Some(row) = table.next(intake)? {
        // queries of other locales are in this file, too
        match intake.has_query(row.cell(query)) {
            true => intake.slice(row.cell(query), row.cell(source).trim(), &row.place(file))?,
            false => intake.leave_out("sources of queries of other locales"),
        }
    }
    Ok(())
}
