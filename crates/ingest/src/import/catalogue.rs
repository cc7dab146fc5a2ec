//! Any catalogue that is one table: CSV or TSV, with or without a header. Takes a map from our names to its columns, or
//! finds them by their usual names; further columns are kept as fields under their own.

use std::collections::HashSet;
use std::path::Path;
use std::str::FromStr;

use serde_json::Map;

use super::fields::{OWN_NAMES, join, listed, put, put_number};
use super::intake::Intake;
use super::table::{Row, Shape, Table};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Under which names shops keep what we need, the likeliest first.
pub const USUAL: [(&str, &[&str]); 6] = [
    ("id", &["_id", "id", "sku", "product_id", "item_id", "asin", "uid"]),
    ("title", &["title", "name", "product_name", "product_title"]),
    ("text", &["text", "description", "product_description", "short_description"]),
    ("category", &["category", "category_path", "categories"]),
    ("brand", &["brand", "manufacturer", "maker"]),
    ("price", &["price"]),
];

/// A field and the column it comes from: its place, the first being 0, or its name.
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
            _ => Err(Error::input(format!("`{text}` maps no column: say for example id=0 or title=name"))),
        }
    }
}

pub fn import(intake: &mut Intake, file: &Path, shape: Shape, columns: &[Column]) -> Result<()> {
    once_each(columns)?;
    let mut table = Table::open(file, shape, intake)?;
    let places = match columns {
        [] if shape.header => guessed(&table),
        [] => return Err(Error::input("a table without a header needs --columns, such as id=0,title=1")),
        columns => columns.iter().map(|column| placed(&table, column)).collect::<Result<_>>()?,
    };
    if !places.iter().any(|(field, _)| field == "id") {
        let names = || listed(table.names.iter().map(String::as_str));
        let found = if table.names.is_empty() { format!("{} columns", table.width()) } else { names() };
        let problem = format!("it is not known which column is the id: say --columns id=...; the table has {found}");
        return Err(Error::config(file.display(), problem));
    }
    let names = field_names(&table, &places);
    while let Some(row) = table.next(intake)? {
        let item = item(&row, &places, &names, intake);
        intake.item(Ok(item), &row.place(file))?;
    }
    Ok(())
}

fn item(row: &Row, places: &[(String, usize)], names: &[String], intake: &mut Intake) -> Item {
    let said = |field: &str| {
        let cells = places.iter().filter(|(name, _)| name == field).map(|(_, at)| row.cell(*at));
        join(cells, " ")
    };
    let mut fields = Map::new();
    for (field, at) in places.iter().filter(|(field, _)| !["id", "title", "text"].contains(&&**field)) {
        if field != "price" {
            put(&mut fields, field, row.cell(*at));
        } else if !put_number(&mut fields, field, row.cell(*at)) {
            intake.note("prices that are no number, kept as text");
        }
    }
    for ((at, cell), name) in row.cells().enumerate().zip(names) {
        if places.iter().all(|(_, taken)| *taken != at) {
            put(&mut fields, name, cell);
        }
    }
    // the id is kept as it is, spaces and all
    let id = places.iter().find(|(field, _)| field == "id").map_or("", |(_, at)| row.cell(*at));
    Item { id: id.into(), title: said("title"), text: said("text"), fields }
}

/// Only titles and texts are made of several columns.
fn once_each(columns: &[Column]) -> Result<()> {
    let mut fields = HashSet::new();
    match columns.iter().find(|column| !fields.insert(&column.field) && !["title", "text"].contains(&&*column.field)) {
        Some(Column { field, .. }) => {
            let problem = format!("--columns maps `{field}` twice: only title and text are joined of several columns");
            Err(Error::input(problem))
        }
        None => Ok(()),
    }
}

fn guessed(table: &Table) -> Vec<(String, usize)> {
    let find =
        |(field, names): (&str, &[&str])| Some((field.to_owned(), names.iter().find_map(|name| table.column(name))?));
    USUAL.into_iter().filter_map(find).collect()
}

fn placed(table: &Table, column: &Column) -> Result<(String, usize)> {
    let Column { field, from } = column;
    if field == "_id" {
        return Err(Error::input("say id=..., not _id=...: the folder calls it _id by itself"));
    }
    match from.parse() {
        Ok(at) if at < table.width() => Ok((field.clone(), at)),
        Ok(_) if table.column(from).is_none() => {
            let problem = format!("--columns {field}={from}: there are {} columns, the first is 0", table.width());
            Err(Error::config(table.file().display(), problem))
        }
        _ => Ok((field.clone(), table.needed_column(from)?)),
    }
}

/// What each column that nobody mapped is called: by its header, unless that is empty, an item's own, or taken.
fn field_names(table: &Table, places: &[(String, usize)]) -> Vec<String> {
    let mut taken: HashSet<String> = places.iter().map(|(field, _)| field.clone()).collect();
    taken.extend(["id"].into_iter().chain(OWN_NAMES).map(str::to_owned));
    let is_mapped = |at| places.iter().any(|(_, mapped)| *mapped == at);
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
    (0..table.width()).map(name).collect()
}
