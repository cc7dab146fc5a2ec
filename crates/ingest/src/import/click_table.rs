//! Click tables with the columns user, sku, query, click_time and query_time, optionally category. One user's query at one
//! time is one search.

use std::collections::HashMap;
use std::path::Path;

use super::fields::put;
use super::import_writer::{ImportWriter, hash};
use super::log_output::{LogOutput, item_with_title, search_id};
use super::rejection::Rejection;
use super::table::{Table, TableFormat};
use souk_io::error::Result;
use souk_io::time;
use souk_io::ubi::{Action, EventRecord, QueryRecord};

/// Imports a table of clicks with their searches: one user's query at one time is one search.
pub fn import_clicks(writer: &mut ImportWriter, file: &Path, output: &mut LogOutput) -> Result<()> {
    let format = TableFormat { separator: Some(b','), header: true };
    let mut table = Table::open(file, format, writer)?;
    let needed = ["user", "sku", "query", "click_time", "query_time"];
    let mut columns = [0; 5];
    for (column, name) in columns.iter_mut().zip(needed) {
        *column = table.needed_column(name)?;
    }
    let category = table.column("category");
    let mut searches = HashMap::new();
    while let Some(row) = table.next(writer)? {
        let location = row.location(file);
        let [user, item, text, click_time, query_time] = columns.map(|at| row.cell(at));
        let (click, query) = match (ClickRow { user, item, text, click_time, query_time }).records() {
            Ok(search) => search,
            Err(rejection) => {
                writer.reject(&location, &rejection)?;
                continue;
            }
        };
        if !output.has_catalogue && !writer.has_item(item) {
            let mut item = item_with_title(item, "");
            put(&mut item.fields, "category", row.optional_cell(category));
            writer.add_item(Ok(item), &location)?;
        } else {
            output.add_item(writer, item, None, &location)?;
        }
        let mut json = Vec::new();
        if searches.insert(hash(&*query.query_id), ()).is_none() {
            query.write("", &mut json);
            writer.add_log_line(&json, &location)?;
            json.clear();
            output.add_query(writer, text, &location)?;
        }
        click.write("", &mut json);
        writer.add_log_line(&json, &location)?;
    }
    Ok(())
}

/// Row of a click table.
struct ClickRow<'a> {
    user: &'a str,
    item: &'a str,
    text: &'a str,
    click_time: &'a str,
    query_time: &'a str,
}

impl<'a> ClickRow<'a> {
    /// Click and query as UBI records; the query id is a hash of user, text and query time.
    fn records(self) -> std::result::Result<(EventRecord<'a>, QueryRecord<'a>), Rejection> {
        let Self { user, item, text, click_time, query_time } = self;
        if [user, item, text].iter().any(|cell| cell.trim().is_empty()) {
            return Err("click without user, sku or query".into());
        }
        let parse = |text: &str| time::parse(text).ok_or_else(|| Rejection::with("invalid timestamp", text));
        let (clicked, time) = (parse(click_time)?, parse(query_time)?);
        let id = search_id(&format!("{user}\0{text}\0{query_time}"));
        let click = EventRecord {
            action: Action::Click,
            query_id: id.clone().into(),
            client_id: user.into(),
            item: item.into(),
            position: None,
            time: clicked,
            text: None,
        };
        let (query_id, client_id) = (id.into(), user.into());
        let query = QueryRecord { query_id, client_id, text: text.into(), time, hits: Vec::new() };
        Ok((click, query))
    }
}
