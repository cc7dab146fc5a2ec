//! Single-table catalogues: CSV or TSV, with or without a header. Takes a map from item fields to columns, or finds the
//! columns by their usual names. Never drops a column: others become fields under their own name.

use std::collections::HashSet;
use std::path::Path;
use std::str::FromStr;

use serde_json::Map;

use super::fields::{RESERVED_NAMES, join, list_names, put, put_number};
use super::import_writer::ImportWriter;
use super::table::{Row, Table, TableFormat};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Usual column names of each item field, most likely first.
pub const USUAL_COLUMNS: [(&str, &[&str]); 6] = [
    ("id", &["_id", "id", "sku", "product_id", "item_id", "asin", "uid"]),
    ("title", &["title", "name", "product_name", "product_title"]),
    ("text", &["text", "description", "product_description", "short_description"]),
    ("category", &["category", "category_path", "categories"]),
    ("brand", &["brand", "manufacturer", "maker"]),
    ("price", &["price"]),
];

/// Item field and its source column, given by name or by number (from 0).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub field: String,
    pub from: String,
}

impl FromStr for Column {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once('=').map(|(field, from)| (field.trim(), from.trim())) {
            Some((field, from)) if !field.is_empty() && !from.is_empty() => {
                Ok(Self { field: field.into(), from: from.into() })
            }
            _ => Err(Error::input(format!(
                "`{text}` does not map a column: use FIELD=COLUMN, such as id=0 or title=name"
            ))),
        }
    }
}

pub fn import(writer: &mut ImportWriter, file: &Path, format: TableFormat, columns: &[Column]) -> Result<()> {
    check_unique(columns)?;
    let mut table = Table::open(file, format, writer)?;
    let mapped = match columns {
        [] if format.header => guess_columns(&table),
        [] => return Err(Error::input("a table without a header needs --columns, such as id=0,title=1")),
        columns => columns.iter().map(|column| resolve_column(&table, column)).collect::<Result<_>>()?,
    };
    if !mapped.iter().any(|(field, _)| field == "id") {
        let names = || list_names(table.names.iter().map(String::as_str));
        let found = if table.names.is_empty() { format!("{} columns", table.num_columns()) } else { names() };
        let problem = format!("no id column found: set --columns id=...; the table has {found}");
        return Err(Error::config(file.display(), problem));
    }
    let names = field_names(&table, &mapped);
    while let Some(row) = table.next(writer)? {
        let item = item(&row, &mapped, &names, writer);
        writer.add_item(Ok(item), &row.location(file))?;
    }
    Ok(())
}

fn item(row: &Row, mapped: &[(String, usize)], names: &[String], writer: &mut ImportWriter) -> Item {
    let text_of = |field: &str| {
        let cells = mapped.iter().filter(|(name, _)| name == field).map(|(_, at)| row.cell(*at));
        join(cells, " ")
    };
    let mut fields = Map::new();
    for (field, at) in mapped.iter().filter(|(field, _)| !["id", "title", "text"].contains(&&**field)) {
        if field != "price" {
            put(&mut fields, field, row.cell(*at));
        } else if !put_number(&mut fields, field, row.cell(*at)) {
            writer.note("non-numeric prices kept as text");
        }
    }
    for ((at, cell), name) in row.cells().enumerate().zip(names) {
        if mapped.iter().all(|(_, taken)| *taken != at) {
            put(&mut fields, name, cell);
        }
    }
    // the id is kept verbatim, including spaces
    let id = mapped.iter().find(|(field, _)| field == "id").map_or("", |(_, at)| row.cell(*at));
    Item { id: id.into(), title: text_of("title"), text: text_of("text"), fields }
}

/// Rejects fields mapped twice, except title and text, which join several columns.
fn check_unique(columns: &[Column]) -> Result<()> {
    let mut fields = HashSet::new();
    match columns.iter().find(|column| !fields.insert(&column.field) && !["title", "text"].contains(&&*column.field)) {
        Some(Column { field, .. }) => {
            let problem = format!("--columns maps `{field}` twice: only title and text can join several columns");
            Err(Error::input(problem))
        }
        None => Ok(()),
    }
}

fn guess_columns(table: &Table) -> Vec<(String, usize)> {
    let find =
        |(field, names): (&str, &[&str])| Some((field.to_owned(), names.iter().find_map(|name| table.column(name))?));
    USUAL_COLUMNS.into_iter().filter_map(find).collect()
}

fn resolve_column(table: &Table, column: &Column) -> Result<(String, usize)> {
    let Column { field, from } = column;
    if field == "_id" {
        return Err(Error::input("use id=... instead of _id=...: Souk writes the id as _id"));
    }
    match from.parse() {
        Ok(at) if at < table.num_columns() => Ok((field.clone(), at)),
        Ok(_) if table.column(from).is_none() => {
            let problem =
                format!("--columns {field}={from}: the table has {} columns, numbered from 0", table.num_columns());
            Err(Error::config(table.file().display(), problem))
        }
        _ => Ok((field.clone(), table.needed_column(from)?)),
    }
}

/// Field names of the unmapped columns: their headers, unless empty, reserved or in use.
fn field_names(table: &Table, mapped: &[(String, usize)]) -> Vec<String> {
    let mut taken: HashSet<String> = mapped.iter().map(|(field, _)| field.clone()).collect();
    taken.extend(["id"].into_iter().chain(RESERVED_NAMES).map(str::to_owned));
    let is_mapped = |at| mapped.iter().any(|(_, column)| *column == at);
    let name = |at| {
        let mut name: String = table.names.get(at).cloned().unwrap_or_default();
        if is_mapped(at) {
            return name;
        }
        if name.is_empty() || taken.contains(&name) {
            name = format!("column_{at}");
        }
        while !taken.insert(name.clone()) {
            name.push('_');
        }
        name
    };
    (0..table.num_columns()).map(name).collect()
}
