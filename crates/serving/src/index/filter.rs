//! Filters: conditions on catalogue fields, all of which must match. Nested fields are addressed with dots; of a list,
//! one matching value is enough.

use std::collections::HashSet;
use std::slice;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Limits of one filter; larger ones are rejected.
const MAX_CONDITIONS: usize = 32;
const MAX_VALUES: usize = 1000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    pub must: Vec<Condition>,
}

/// Comparison with one field; all comparisons given must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    pub field: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eq: Option<Value>,
    #[serde(default, rename = "in", skip_serializing_if = "Option::is_none")]
    pub one_of: Option<Vec<Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gte: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lte: Option<f64>,
}

impl Filter {
    pub fn check(&self) -> Result<()> {
        if self.must.len() > MAX_CONDITIONS {
            let problem = format!("the filter has {} conditions: send at most {MAX_CONDITIONS}", self.must.len());
            return Err(Error::input(problem));
        }
        self.must.iter().try_for_each(Condition::check)
    }

    /// Matches a single item, for indexes without columns.
    #[cfg(any(test, feature = "milvus"))]
    pub(super) fn matches(&self, item: &Item) -> bool {
        self.must.iter().all(|condition| {
            let (mut kept, matcher) = (false, condition.matcher());
            for_each_value(item, |field, value| kept |= field == condition.field && matcher.matches(value));
            kept
        })
    }
}

impl Condition {
    fn check(&self) -> Result<()> {
        let wrong = |problem: &str| Err(Error::input(format!("the condition on `{}` {problem}", self.field)));
        let mut values = self.eq.iter().chain(self.one_of.iter().flatten());
        if self.field.is_empty() {
            return wrong("names no field");
        }
        if self.eq.is_none() && self.one_of.is_none() && self.gte.is_none() && self.lte.is_none() {
            return wrong("has no comparison: give eq, in, gte or lte");
        }
        if self.one_of.as_ref().is_some_and(|values| values.len() > MAX_VALUES) {
            return wrong(&format!("has more than {MAX_VALUES} values"));
        }
        if !values.all(|value| value.is_string() || value.is_number() || value.is_boolean()) {
            return wrong("compares with a value that is not a string, number or boolean");
        }
        if [self.gte, self.lte].into_iter().flatten().any(|bound| !bound.is_finite()) {
            return wrong("has a bound that is not finite");
        }
        Ok(())
    }

    /// Prepares the comparison, for use on many values.
    pub(super) fn matcher(&self) -> ConditionMatcher<'_> {
        let lists = [self.eq.as_ref().map(slice::from_ref), self.one_of.as_deref()];
        let lists = lists.into_iter().flatten().map(ValueSet::of).collect();
        ConditionMatcher { lists, min: self.gte, max: self.lte }
    }
}

/// Condition prepared for matching.
pub(super) struct ConditionMatcher<'a> {
    /// The value must be in each of these sets.
    lists: Vec<ValueSet<'a>>,
    min: Option<f64>,
    max: Option<f64>,
}

#[derive(Default)]
struct ValueSet<'a> {
    texts: HashSet<&'a str>,
    /// Bits of the f64 values.
    numbers: HashSet<u64>,
}

impl<'a> ValueSet<'a> {
    fn of(values: &'a [Value]) -> Self {
        let mut set = Self::default();
        for value in values {
            match value {
                Value::String(text) => drop(set.texts.insert(text)),
                Value::Bool(value) => drop(set.texts.insert(bool_text(*value))),
                Value::Number(number) => set.numbers.extend(number.as_f64().map(bits)),
                _ => {}
            }
        }
        set
    }

    fn contains(&self, value: FieldValue<'_>) -> bool {
        match value {
            FieldValue::Text(text) => self.texts.contains(text),
            FieldValue::Number(number) => self.numbers.contains(&bits(number)),
        }
    }
}

/// Bits by which equal numbers are equal; 0 and -0 are the same.
fn bits(number: f64) -> u64 {
    (number + 0.0).to_bits()
}

impl<'a> ConditionMatcher<'a> {
    /// Whether a value of an item matches.
    pub(super) fn matches(&self, value: FieldValue<'_>) -> bool {
        let above = |bound: f64| matches!(value, FieldValue::Number(value) if value >= bound);
        let below = |bound: f64| matches!(value, FieldValue::Number(value) if value <= bound);
        self.lists.iter().all(|values| values.contains(value))
            && self.min.is_none_or(above)
            && self.max.is_none_or(below)
    }

    /// Texts that match.
    pub(super) fn texts(&self) -> impl Iterator<Item = &'a str> {
        let first = self.lists.first().into_iter().flat_map(|values| values.texts.iter().copied());
        first.filter(|text| self.matches(FieldValue::Text(text)))
    }
}

/// Comparable value of an item; booleans are texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FieldValue<'a> {
    Text(&'a str),
    Number(f64),
}

pub(super) fn bool_text(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// Maximum nesting of objects.
const MAX_DEPTH: usize = 4;

/// Calls `visit` with each field's name and value. Title and text are excluded: they are searched, not filtered.
pub(super) fn for_each_value(item: &Item, mut visit: impl FnMut(&str, FieldValue<'_>)) {
    for (name, value) in &item.fields {
        visit_values(name, value, MAX_DEPTH, &mut visit);
    }
}

/// Text values of one field of an item.
pub fn field_texts(item: &Item, field: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for_each_value(item, |name, value| match value {
        FieldValue::Text(text) if name == field => texts.push(text.to_owned()),
        _ => {}
    });
    texts
}

fn visit_values(name: &str, value: &Value, depth: usize, visit: &mut dyn FnMut(&str, FieldValue<'_>)) {
    match value {
        Value::Null => {}
        Value::Bool(value) => visit(name, FieldValue::Text(bool_text(*value))),
        Value::Number(number) => {
            if let Some(number) = number.as_f64() {
                visit(name, FieldValue::Number(number));
            }
        }
        Value::String(text) => visit(name, FieldValue::Text(text)),
        Value::Array(values) => {
            for value in values {
                visit_values(name, value, depth, visit);
            }
        }
        Value::Object(inside) if depth > 0 => {
            for (key, value) in inside {
                visit_values(&format!("{name}.{key}"), value, depth - 1, visit);
            }
        }
        Value::Object(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn all_conditions_must_match_and_one_list_value_suffices() {
        let json = br#"{"_id":"7","title":"Oak desk","price":99.5,"tags":["new","oak"],"in_stock":true,
                        "size":{"width":{"cm":120}},"note":null}"#;
        let item = Item::parse(json, Path::new("corpus.jsonl"), 1).unwrap();
        for (filter, kept) in [
            (r#"[]"#, true),
            (r#"[{"field":"price","eq":99.5}]"#, true),
            (r#"[{"field":"price","eq":"99.5"}]"#, false),
            (r#"[{"field":"price","eq":99.5,"in":[1,99.5]}]"#, true),
            (r#"[{"field":"price","eq":99.5,"in":[1]}]"#, false),
            (r#"[{"field":"tags","eq":"new","gte":1}]"#, false),
            (r#"[{"field":"price","gte":99.5,"lte":100}]"#, true),
            (r#"[{"field":"price","gte":99.6}]"#, false),
            (r#"[{"field":"price","lte":10},{"field":"tags","eq":"new"}]"#, false),
            (r#"[{"field":"tags","in":["old","oak"]}]"#, true),
            (r#"[{"field":"tags","in":[]}]"#, false),
            (r#"[{"field":"tags","gte":1}]"#, false),
            (r#"[{"field":"in_stock","eq":true}]"#, true),
            (r#"[{"field":"in_stock","eq":false}]"#, false),
            (r#"[{"field":"size.width.cm","gte":100}]"#, true),
            (r#"[{"field":"note","eq":"x"}]"#, false),
            (r#"[{"field":"title","eq":"Oak desk"}]"#, false),
        ] {
            let filter = Filter { must: serde_json::from_str(filter).unwrap() };
            filter.check().unwrap();
            assert_eq!(filter.matches(&item), kept, "{filter:?}");
        }
    }

    #[test]
    fn rejects_invalid_conditions() {
        for condition in [
            r#"{"field":"price"}"#,
            r#"{"field":"","eq":1}"#,
            r#"{"field":"price","eq":null}"#,
            r#"{"field":"price","in":[[1]]}"#,
            r#"{"field":"price","eq":{"a":1}}"#,
        ] {
            let filter = Filter { must: vec![serde_json::from_str(condition).unwrap()] };
            // serde reads null as absent
            assert!(filter.check().is_err(), "{condition}");
        }
        assert!(serde_json::from_str::<Filter>(r#"{"must":[{"field":"a","equals":1}]}"#).is_err());
        assert!(Filter { must: vec![Condition::default(); 33] }.check().is_err());
    }
}
