//! Amazon's shopping queries data set (ESCI): `shopping_queries_dataset_products.parquet`, `…_examples.parquet` and
//! optionally `…_sources.csv`, whose sources become slices. Exact is level 4, Substitute 3, Complement 2, Irrelevant 1;
//! the data set's own split is kept. Never mixes locales, because one id is a different item in another locale.

use std::path::Path;

use serde_json::Map;

use super::fields::{join, put};
use super::folder::{find_file, note_unread_files, require_file};
use super::import_writer::ImportWriter;
use super::parquet_rows::ParquetRows;
use super::rejection::RowLocation;
use super::scale::Scale;
use super::table::Table;
use souk_io::domain::{Item, Judgement, Level, Query};
use souk_io::error::Result;

pub const DEFAULT_LOCALE: &str = "us";
const PRODUCTS: &str = "shopping_queries_dataset_products.parquet";
const EXAMPLES: &str = "shopping_queries_dataset_examples.parquet";
const SOURCES: &str = "shopping_queries_dataset_sources.csv";
const OTHER_LOCALES: &str = "rows of other locales";

pub fn import(writer: &mut ImportWriter, folder: &Path, locale: &str, scale: Option<&Scale>) -> Result<()> {
    let (products, examples) = (require_file(folder, PRODUCTS)?, require_file(folder, EXAMPLES)?);
    items(writer, &products, locale)?;
    let default = Scale::from_pairs(&[("E", Level::L4), ("S", Level::L3), ("C", Level::L2), ("I", Level::L1)]);
    let scale = scale.unwrap_or(&default);
    writer.summary.levels = scale.numbers();
    judgements(writer, &examples, locale, scale)?;
    if let Some(sources) = find_file(folder, SOURCES) {
        slices(writer, &sources)?;
    }
    note_unread_files(writer, folder, &[PRODUCTS, EXAMPLES, SOURCES])
}

fn items(writer: &mut ImportWriter, file: &Path, locale: &str) -> Result<()> {
    let needed = ["product_id", "product_locale", "product_title"];
    let optional = ["product_description", "product_bullet_point", "product_brand", "product_color"];
    let mut rows = ParquetRows::open(file, &needed, &optional)?;
    while let Some((number, cells)) = rows.next()? {
        writer.count_row();
        let [id, row_locale, title, description, bullets, brand, color] = &cells[..] else { continue };
        if row_locale != locale {
            writer.skip(OTHER_LOCALES);
            continue;
        }
        let mut fields = Map::new();
        put(&mut fields, "brand", brand);
        put(&mut fields, "color", color);
        let text = join([description.as_str(), bullets], "\n");
        let start = cells.join(" | ");
        let item = Item { id: id.clone(), title: title.trim().into(), text, fields };
        writer.add_item(Ok(item), &RowLocation { file, row: number, start: start.as_bytes() })?;
    }
    Ok(())
}

fn judgements(writer: &mut ImportWriter, file: &Path, locale: &str, scale: &Scale) -> Result<()> {
    let needed = ["query_id", "query", "product_id", "product_locale", "esci_label", "split"];
    let mut rows = ParquetRows::open(file, &needed, &[])?;
    while let Some((number, cells)) = rows.next()? {
        writer.count_row();
        let [query, text, item, row_locale, label, split] = &cells[..] else { continue };
        if row_locale != locale {
            writer.skip(OTHER_LOCALES);
            continue;
        }
        let start = cells.join(" | ");
        let location = RowLocation { file, row: number, start: start.as_bytes() };
        if !["train", "test"].contains(&split.as_str()) {
            writer.reject(&location, &"split is neither train nor test".into())?;
            continue;
        }
        if !writer.has_query(query) {
            writer.add_query(Ok(Query { id: query.clone(), text: text.trim().into() }), &location)?;
        }
        if writer.has_query(query) {
            let judgement = |level| Judgement { query: query.clone(), item: item.clone(), level };
            writer.add_judgement(split, scale.level(label).map(judgement), &location)?;
        }
    }
    Ok(())
}

fn slices(writer: &mut ImportWriter, file: &Path) -> Result<()> {
    let (mut table, [query, source]) = Table::with_columns(file, b',', ["query_id", "source"], writer)?;
    while let Some(row) = table.next(writer)? {
        // the file also has queries of other locales
        if writer.has_query(row.cell(query)) {
            writer.add_slice(row.cell(query), row.cell(source).trim(), &row.location(file))?;
        } else {
            writer.skip("sources of queries of other locales");
        }
    }
    Ok(())
}
