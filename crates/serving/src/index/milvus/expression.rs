//! Milvus filter expressions, and the facets that each item stores for them. Facets are one JSON column: per field, its
//! texts, its numbers as texts, and its smallest and largest number. Lists and nested fields then work like single
//! values, and names and values may contain any character.
//!
//! An expression can match too much (a list with numbers on both sides of a range), but never too little: the caller
//! checks the items again.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::index::columns::MAX_VALUE_BYTES;
use crate::index::filter::{Condition, FieldValue, Filter, bool_text, for_each_value};
use souk_io::domain::Item;

/// Column with the facets.
pub const FACETS: &str = "facets";

/// Facets of one item; lists are sorted and without duplicates.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Facets {
    texts: BTreeMap<String, Vec<String>>,
    numbers: BTreeMap<String, Vec<String>>,
    low: BTreeMap<String, f64>,
    high: BTreeMap<String, f64>,
}

impl Facets {
    pub fn of(item: &Item) -> Self {
        let mut facets = Self::default();
        for_each_value(item, |field, value| {
            let key = key(field);
            match value {
                FieldValue::Text(text) if text.len() > MAX_VALUE_BYTES => {}
                FieldValue::Text(text) => facets.texts.entry(key).or_default().push(text.to_owned()),
                FieldValue::Number(number) => {
                    facets.numbers.entry(key.clone()).or_default().push(digits(number));
                    facets.low.entry(key.clone()).and_modify(|low| *low = low.min(number)).or_insert(number);
                    facets.high.entry(key).and_modify(|high| *high = high.max(number)).or_insert(number);
                }
            }
        });
        for values in facets.texts.values_mut().chain(facets.numbers.values_mut()) {
            values.sort_unstable();
            values.dedup();
        }
        facets
    }
}

/// Expression that all matching items fulfil; None if no item can match.
pub fn expression(filter: &Filter) -> Option<String> {
    let mut parts = Vec::new();
    for condition in &filter.must {
        parts.extend(condition_parts(condition)?);
    }
    Some(parts.join(" and "))
}

fn condition_parts(condition: &Condition) -> Option<Vec<String>> {
    let key = key(&condition.field);
    let mut parts = Vec::new();
    if let Some(value) = &condition.eq {
        parts.push(one_of(&key, std::slice::from_ref(value))?);
    }
    if let Some(values) = &condition.one_of {
        parts.push(one_of(&key, values)?);
    }
    parts.extend(condition.gte.map(|bound| format!("{FACETS}[\"high\"][\"{key}\"] >= {bound:?}")));
    parts.extend(condition.lte.map(|bound| format!("{FACETS}[\"low\"][\"{key}\"] <= {bound:?}")));
    Some(parts)
}

/// Expression that a field has one of the values; None if no value is comparable.
fn one_of(key: &str, values: &[Value]) -> Option<String> {
    let (mut texts, mut numbers) = (Vec::new(), Vec::new());
    for value in values {
        match value {
            Value::String(text) => texts.push(quoted(text)),
            Value::Bool(value) => texts.push(quoted(bool_text(*value))),
            Value::Number(number) => numbers.extend(number.as_f64().map(|number| quoted(&digits(number)))),
            _ => {}
        }
    }
    let kinds = [("texts", texts), ("numbers", numbers)].into_iter().filter(|(_, values)| !values.is_empty());
    let parts: Vec<String> = kinds
        .map(|(kind, values)| format!("json_contains_any({FACETS}[\"{kind}\"][\"{key}\"], [{}])", values.join(", ")))
        .collect();
    (!parts.is_empty()).then(|| format!("({})", parts.join(" or ")))
}

/// Expression that a row's id is one of these.
pub fn id_in(field: &str, ids: &[&str]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| quoted(id)).collect();
    format!("{field} in [{}]", ids.join(", "))
}

/// Text as a quoted literal; Milvus accepts other control characters unescaped.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// Field name with special characters percent-encoded: Milvus has no escapes in a path.
fn key(field: &str) -> String {
    let mut key = String::with_capacity(field.len());
    for byte in field.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => key.push(char::from(byte)),
            byte => key.push_str(&format!("%{byte:02x}")),
        }
    }
    key
}

/// Canonical text of a number: 5 and 5.0 are equal, and so are 0 and -0.
fn digits(number: f64) -> String {
    format!("{:?}", number + 0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(fields: Value) -> Item {
        let fields = fields.as_object().cloned().unwrap();
        Item { id: "7".into(), title: "t".into(), text: String::new(), fields }
    }

    #[test]
    fn facets_group_values_by_field() {
        let item = item(json!({"price": 5, "sizes": [3.5, -0.0, 9, 9], "tags": ["b", "a", "b"], "new": true,
                               "size": {"a b": "\u{e4}\""}, "long": "x".repeat(257), "none": null}));
        let facets = serde_json::to_value(Facets::of(&item)).unwrap();
        let expected = json!({
            "texts": {"new": ["true"], "tags": ["a", "b"], "size.a%20b": ["\u{e4}\""]},
            "numbers": {"price": ["5.0"], "sizes": ["0.0", "3.5", "9.0"]},
            "low": {"price": 5.0, "sizes": 0.0},
            "high": {"price": 5.0, "sizes": 9.0},
        });
        assert_eq!(facets, expected);
    }

    #[test]
    fn filter_becomes_one_expression() {
        let expression_of = |must: Value| expression(&Filter { must: serde_json::from_value(must).unwrap() });
        for (must, expected) in [
            (json!([]), ""),
            (
                json!([{"field": "brand", "eq": "a\"b\\\n\u{e4}"}]),
                "(json_contains_any(facets[\"texts\"][\"brand\"], [\"a\\\"b\\\\\\n\u{e4}\"]))",
            ),
            (
                json!([{"field": "x", "in": ["5", 5, true]}]),
                "(json_contains_any(facets[\"texts\"][\"x\"], [\"5\", \"true\"]) or \
                 json_contains_any(facets[\"numbers\"][\"x\"], [\"5.0\"]))",
            ),
            (
                json!([{"field": "a.b", "gte": -1, "lte": 1e300}, {"field": "c]\"[", "eq": 0}]),
                "facets[\"high\"][\"a.b\"] >= -1.0 and facets[\"low\"][\"a.b\"] <= 1e300 and \
                 (json_contains_any(facets[\"numbers\"][\"c%5d%22%5b\"], [\"0.0\"]))",
            ),
        ] {
            assert_eq!(expression_of(must).unwrap(), expected);
        }
        assert_eq!(expression_of(json!([{"field": "a", "eq": 1}, {"field": "b", "in": []}])), None);
        assert_eq!(id_in("id", &["a", "b'\""]), r#"id in ["a", "b'\""]"#);
    }
}
