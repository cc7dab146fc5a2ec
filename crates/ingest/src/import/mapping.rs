//! Conversion of rows to items by a map from fields to columns. Takes JSON objects ([`Mapping`]) or the cells of a
//! delimited table ([`CellMapping`]). Never drops a column: unmapped ones become fields under their own name.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::columns::{Column, USUAL_COLUMNS};
use super::fields::{RESERVED_NAMES, join, list_names, put, put_number};
use super::import_writer::ImportWriter;
use super::table::Row;
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Item fields with the columns of objects.
pub struct Mapping(Vec<(String, String)>);

impl Mapping {
    /// Maps the given columns, or those with usual names.
    pub fn new(columns: &[Column], names: &[String], file: &str) -> Result<Self> {
        let find = |column: &str| names.iter().find(|name| name.eq_ignore_ascii_case(column)).cloned();
        let shown = || list_names(names.iter().map(String::as_str));
        let mut mapped = Vec::new();
        for Column { field, from } in columns {
            let missing = || Error::config(file, format!("has no column `{from}`; its columns are: {}", shown()));
            mapped.push((field.clone(), find(from).ok_or_else(missing)?));
        }
        if columns.is_empty() {
            let usual = USUAL_COLUMNS
                .iter()
                .filter_map(|(field, names)| Some(((*field).to_owned(), names.iter().find_map(|name| find(name))?)));
            mapped.extend(usual);
        }
        if !mapped.iter().any(|(field, _)| field == "id") {
            let problem = format!("no id column found: set --columns id=...; its columns are: {}", shown());
            return Err(Error::config(file, problem));
        }
        Ok(Self(mapped))
    }

    /// Maps these pairs of field and column; an object may lack some of the columns.
    pub fn from_pairs(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// Converts a row to an item; `None` without an id.
    pub fn item(&self, mut row: Map<String, Value>) -> Option<Item> {
        let mut item = Item { id: String::new(), title: String::new(), text: String::new(), fields: Map::new() };
        for (field, column) in &self.0 {
            let Some(value) = row.remove(column).filter(|value| !value.is_null()) else { continue };
            match field.as_str() {
                "id" => item.id = text(&value),
                "title" => append(&mut item.title, &text(&value)),
                "text" => append(&mut item.text, &text(&value)),
                _ => drop(item.fields.insert(field.clone(), value)),
            }
        }
        for (mut name, value) in row.into_iter().filter(|(_, value)| !value.is_null()) {
            while RESERVED_NAMES.contains(&name.as_str()) || item.fields.contains_key(&name) {
                name.push('_');
            }
            item.fields.insert(name, value);
        }
        (!item.id.is_empty()).then_some(item)
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn append(to: &mut String, more: &str) {
    if !to.is_empty() && !more.is_empty() {
        to.push(' ');
    }
    to.push_str(more);
}

/// Item fields with the column numbers of a delimited table.
pub struct CellMapping {
    mapped: Vec<(String, usize)>,
    /// Field name of each unmapped column.
    names: Vec<String>,
}

impl CellMapping {
    /// `header` has the column names; it is empty without a header line.
    pub fn new(mapped: Vec<(String, usize)>, header: &[String], num_columns: usize) -> Self {
        let names = field_names(header, num_columns, &mapped);
        Self { mapped, names }
    }

    pub fn item(&self, row: &Row, writer: &mut ImportWriter) -> Item {
        let text_of = |field: &str| {
            let cells = self.mapped.iter().filter(|(name, _)| name == field).map(|(_, at)| row.cell(*at));
            join(cells, " ")
        };
        let mut fields = Map::new();
        for (field, at) in self.mapped.iter().filter(|(field, _)| !["id", "title", "text"].contains(&&**field)) {
            if field != "price" {
                put(&mut fields, field, row.cell(*at));
            } else if !put_number(&mut fields, field, row.cell(*at)) {
                writer.note("non-numeric prices kept as text");
            }
        }
        for ((at, cell), name) in row.cells().enumerate().zip(&self.names) {
            if self.mapped.iter().all(|(_, taken)| *taken != at) {
                put(&mut fields, name, cell);
            }
        }
        // the id is kept verbatim, including spaces
        let id = self.mapped.iter().find(|(field, _)| field == "id").map_or("", |(_, at)| row.cell(*at));
        Item { id: id.into(), title: text_of("title"), text: text_of("text"), fields }
    }
}

/// Field names of the unmapped columns: their headers, unless empty, reserved or in use.
fn field_names(header: &[String], num_columns: usize, mapped: &[(String, usize)]) -> Vec<String> {
    let mut taken: HashSet<String> = mapped.iter().map(|(field, _)| field.clone()).collect();
    taken.extend(["id"].into_iter().chain(RESERVED_NAMES).map(str::to_owned));
    let is_mapped = |at| mapped.iter().any(|(_, column)| *column == at);
    let name = |at| {
        let mut name: String = header.get(at).cloned().unwrap_or_default();
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
    (0..num_columns).map(name).collect()
}
