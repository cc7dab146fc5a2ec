//! Column maps: `FIELD=COLUMN` pairs as `--columns` gives them, and the usual column names of the item fields.

use std::str::FromStr;

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

/// Field and its source column, given by name or by number (from 0).
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
