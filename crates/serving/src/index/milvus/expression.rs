//! A filter in Milvus' words, and what an item keeps for it. The values of an item's fields lie in one JSON column, by
//! field: texts, numbers as texts, and of the numbers the least and the greatest. So a list is asked for like one value, a
//! field inside an object like any other, and a name or a value with any letters in it stays one.
//!
//! What an expression keeps may be too much, where a list has numbers on both sides of a range, and is never too little:
//! whoever asks looks at the items once more.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::layout::FACETS;
use crate::index::columns::LONGEST;
use crate::index::filter::{Condition, Filter, Held, each_value, truth};
use souk_io::domain::Item;

/// Of one item; lists are sorted, and no value comes twice.
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
        each_value(item, |field, value| {
            let key = key(field);
            match value {
                Held::Text(text) if text.len() > LONGEST => {}
                Held::Text(text) => facets.texts.entry(key).or_default().push(text.to_owned()),
                Held::Number(number) => {
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

/// What all items that pass the filter fulfil; nothing where none can.
pub fn expression(filter: &Filter) -> Option<String> {
    let mut parts = Vec::new();
    for condition in &filter.must {
        parts.extend(wanted(condition)?);
    }
    Some(parts.join(" and "))
}

fn wanted(condition: &Condition) -> Option<Vec<String>> {
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

/// That a field has one of the values; nothing where there is none that it could have.
fn one_of(key: &str, values: &[Value]) -> Option<String> {
    let (mut texts, mut numbers) = (Vec::new(), Vec::new());
    for value in values {
        match value {
            Value::String(text) => texts.push(quoted(text)),
            Value::Bool(value) => texts.push(quoted(truth(*value))),
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

/// That the id of a row is one of these.
pub fn ids(field: &str, ids: &[&str]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| quoted(id)).collect();
    format!("{field} in [{}]", ids.join(", "))
}

/// A text as an expression writes it. Other control characters may stand as they are.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// A field's name in letters that no parser takes for anything else: Milvus reads no escapes in a path.
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

/// One text for one number: 5 and 5.0 are the same, and so are 0 and -0.
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
    fn an_item_keeps_its_values_by_field() {
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
    fn a_filter_is_one_expression() {
        let said = |must: Value| expression(&Filter { must: serde_json::from_value(must).unwrap() });
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
            assert_eq!(said(must).unwrap(), expected);
        }
        assert_eq!(said(json!([{"field": "a", "eq": 1}, {"field": "b", "in": []}])), None);
        assert_eq!(ids("id", &["a", "b'\""]), r#"id in ["a", "b'\""]"#);
    }
}
