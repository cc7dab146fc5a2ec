//! Single-table catalogues: CSV or TSV, with or without a header. Takes a map from item fields to columns, or finds the
//! columns by their usual names. Never drops a column: others become fields under their own name.

use std::collections::HashSet;
use std::path::Path;

use super::columns::{Column, USUAL_COLUMNS};
use super::fields::list_names;
use super::import_writer::ImportWriter;
use super::mapping::CellMapping;
use super::table::{Table, TableFormat};
use souk_io::error::{Error, Result};

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
    let mapping = CellMapping::new(mapped, &table.names, table.num_columns());
    while let Some(row) = table.next(writer)? {
        let item = mapping.item(&row, writer);
        writer.add_item(Ok(item), &row.location(file))?;
    }
    Ok(())
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
