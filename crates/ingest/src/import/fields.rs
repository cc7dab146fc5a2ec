//! Values as files have them, made into an item's fields: texts, prices, attributes. Never drops a value that it does not
//! understand: it stays a text.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::intake::Refusal;
use super::table::Row;

/// Names that an item has itself; no further field may take them.
pub const OWN_NAMES: [&str; 3] = ["_id", "title", "text"];

/// How many names of columns a message shows, and how many letters of each.
const SHOWN_NAMES: usize = 20;
const SHOWN_LETTERS: usize = 40;

/// One JSON object of a line.
pub fn object(json: &str) -> Result<Map<String, Value>, Refusal> {
    serde_json::from_str(json).map_err(|e| Refusal::with("not a JSON object", e))
}

/// Takes a text out of an object; a number counts as one, null and absence as none.
pub fn take_text(object: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Refusal> {
    match object.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(_) => Err(Refusal::with("a value that is no text", format!("`{name}`"))),
    }
}

/// Keeps a text that says something.
pub fn put(fields: &mut Map<String, Value>, name: &str, text: &str) {
    if !text.trim().is_empty() {
        fields.insert(name.into(), text.trim().into());
    }
}

/// Keeps a number; what is none stays a text. `false` for that.
pub fn put_number(fields: &mut Map<String, Value>, name: &str, text: &str) -> bool {
    match number(text) {
        Some(number) => drop(fields.insert(name.into(), number.into())),
        None => put(fields, name, text),
    }
    number(text).is_some() || text.trim().is_empty()
}

/// `16.99`, `$1,999.00`, `£5`: a currency before it and commas between thousands are passed over.
fn number(text: &str) -> Option<f64> {
    let text = text.trim().trim_start_matches(['$', '£', '€', '¥']).trim_start();
    let (whole, rest) = text.split_once('.').map_or((text, None), |(whole, rest)| (whole, Some(rest)));
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or_default();
    let thousands = (1..=3).contains(&first.len()) && groups.all(|group| group.len() == 3);
    let digits = whole.replace(',', "");
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let sound = (thousands || !whole.contains(',')) && all_digits(&digits) && rest.is_none_or(all_digits);
    let number = format!("{digits}.{}", rest.unwrap_or("0")).parse().ok();
    number.filter(|number: &f64| sound && number.is_finite())
}

/// Names with their values; those of a name that comes several times are joined, each once.
pub fn attributes<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Map<String, Value> {
    let (mut attributes, mut seen) = (Map::new(), HashSet::new());
    for (name, value) in pairs.into_iter().map(|(name, value)| (name.trim(), value.trim())) {
        if value.is_empty() || !seen.insert((name, value)) {
            continue;
        }
        match attributes.get_mut(name) {
            Some(Value::String(values)) => values.extend(["; ", value]),
            _ => drop(attributes.insert(name.into(), value.into())),
        }
    }
    attributes
}

/// Names of columns for an error message, which stays short whatever the file is.
pub fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let (count, mut is_cut) = (names.len(), names.len() > SHOWN_NAMES);
    let mut short = |name: &'a str| match name.char_indices().nth(SHOWN_LETTERS) {
        Some((end, _)) => {
            is_cut = true;
            format!("{}...", &name[..end])
        }
        None => name.to_owned(),
    };
    let mut shown = names.take(SHOWN_NAMES).map(&mut short).collect::<Vec<_>>().join(", ");
    if count > SHOWN_NAMES {
        shown += &format!(" and {} more", count - SHOWN_NAMES);
    }
    if is_cut {
        shown += " (is this a table?)";
    }
    shown
}

/// Joins what is not empty.
pub fn join<'a>(texts: impl IntoIterator<Item = &'a str>, between: &str) -> String {
    let texts: Vec<&str> = texts.into_iter().map(str::trim).filter(|text| !text.is_empty()).collect();
    texts.join(between)
}

/// A cell of a column that the table may not have.
pub fn cell_or_none(row: &Row, column: Option<usize>) -> &str {
    column.map_or("", |at| row.cell(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_one_name_are_joined_each_once() {
        let pairs = [("color", " oak "), ("legs", "4"), ("color ", "black"), ("color", "oak"), ("size", " ")];
        assert_eq!(Value::from(attributes(pairs)), serde_json::json!({"color": "oak; black", "legs": "4"}));
    }

    #[test]
    fn a_list_of_names_stays_short() {
        assert_eq!(listed(["a", "b"].into_iter()), "a, b");
        assert_eq!(listed(["é".repeat(41).as_str()].into_iter()), format!("{}... (is this a table?)", "é".repeat(40)));
        let twenty = ["x"; 20].join(", ");
        assert_eq!(listed(["x"; 20].into_iter()), twenty);
        assert_eq!(listed(["x"; 23].into_iter()), format!("{twenty} and 3 more (is this a table?)"));
    }

    #[test]
    fn prices_are_numbers_where_they_are_numbers() {
        for (text, expected) in [
            ("16.99", Some(16.99)),
            (" £1,999.50 ", Some(1999.5)),
            ("7", Some(7.0)),
            ("1,234,567", Some(1_234_567.0)),
            ("16,99", None),
            ("", None),
            ("12.99 - 20.00", None),
            ("1.2.3", None),
            ("inf", None),
            ("-3", None),
            (".5", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
        let mut fields = Map::new();
        assert!(!put_number(&mut fields, "price", "on request"));
        assert_eq!(fields["price"], "on request");
    }
}
