//! Conversion of raw values to item fields: texts, prices, attributes. Never drops a value it cannot parse: the value
//! stays text.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::rejection::Rejection;
use souk_io::names::NameList;

/// Names reserved for an item itself, not available to other fields.
pub const RESERVED_NAMES: [&str; 3] = ["_id", "title", "text"];

/// Parses a line as a JSON object.
pub fn object(json: &str) -> Result<Map<String, Value>, Rejection> {
    serde_json::from_str(json).map_err(|e| Rejection::with("not a JSON object", e))
}

/// Removes a text from an object. Numbers become text; null and missing keys are `None`.
pub fn take_text(object: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Rejection> {
    match object.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(_) => Err(Rejection::with("value is not text", format!("`{name}`"))),
    }
}

/// Stores a text unless it is blank.
pub fn put(fields: &mut Map<String, Value>, name: &str, text: &str) {
    if !text.trim().is_empty() {
        fields.insert(name.into(), text.trim().into());
    }
}

/// Stores a number, or the text if it is not one. Returns false for text.
pub fn put_number(fields: &mut Map<String, Value>, name: &str, text: &str) -> bool {
    match price(text) {
        Some(number) => drop(fields.insert(name.into(), number.into())),
        None => put(fields, name, text),
    }
    price(text).is_some() || text.trim().is_empty()
}

/// Parses `16.99`, `$1,999.00`, `£5`: skips a leading currency sign and thousands separators.
pub fn price(text: &str) -> Option<f64> {
    let text = text.trim().trim_start_matches(['$', '£', '€', '¥']).trim_start();
    let (whole, rest) = text.split_once('.').map_or((text, None), |(whole, rest)| (whole, Some(rest)));
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or_default();
    let thousands = (1..=3).contains(&first.len()) && groups.all(|group| group.len() == 3);
    let digits = whole.replace(',', "");
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_valid = (thousands || !whole.contains(',')) && all_digits(&digits) && rest.is_none_or(all_digits);
    let number = format!("{digits}.{}", rest.unwrap_or("0")).parse().ok();
    number.filter(|number: &f64| is_valid && number.is_finite())
}

/// Collects name and value pairs; distinct values of a repeated name are joined.
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

/// Column names for an error message, shortened if there are many.
pub fn list_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let NameList { text, is_cut } = NameList::of(names);
    if is_cut { text + " (is this a table?)" } else { text }
}

/// Joins the texts that are not blank.
pub fn join<'a>(texts: impl IntoIterator<Item = &'a str>, separator: &str) -> String {
    let texts: Vec<&str> = texts.into_iter().map(str::trim).filter(|text| !text.is_empty()).collect();
    texts.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_values_of_one_name_are_joined() {
        let pairs = [("color", " oak "), ("legs", "4"), ("color ", "black"), ("color", "oak"), ("size", " ")];
        assert_eq!(Value::from(attributes(pairs)), serde_json::json!({"color": "oak; black", "legs": "4"}));
    }

    #[test]
    fn long_lists_of_names_are_shortened() {
        assert_eq!(list_names(["a", "b"].into_iter()), "a, b");
        assert_eq!(
            list_names(["é".repeat(41).as_str()].into_iter()),
            format!("{}... (is this a table?)", "é".repeat(40))
        );
        let twenty = ["x"; 20].join(", ");
        assert_eq!(list_names(["x"; 20].into_iter()), twenty);
        assert_eq!(list_names(["x"; 23].into_iter()), format!("{twenty} and 3 more (is this a table?)"));
    }

    #[test]
    fn parses_prices() {
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
            assert_eq!(price(text), expected, "{text}");
        }
        let mut fields = Map::new();
        assert!(!put_number(&mut fields, "price", "on request"));
        assert_eq!(fields["price"], "on request");
    }
}
