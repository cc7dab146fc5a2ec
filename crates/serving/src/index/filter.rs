//! Which items a search may find: conditions on the fields of the catalogue, all of which must hold. A field inside an
//! object is named with dots; of a list, one value has to fit.

use std::collections::HashSet;
use std::slice;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// More are not meant.
const MAX_CONDITIONS: usize = 32;
const MAX_VALUES: usize = 1000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    pub must: Vec<Condition>,
}

/// What is given must hold.
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
            let problem = format!("the filter has {} conditions: at most {MAX_CONDITIONS}", self.must.len());
            return Err(Error::input(problem));
        }
        self.must.iter().try_for_each(Condition::check)
    }

    /// Item by item, where there are no columns.
    #[cfg(any(test, feature = "milvus"))]
    pub(super) fn keeps(&self, item: &Item) -> bool {
        self.must.iter().all(|condition| {
            let (mut kept, wanted) = (false, condition.wanted());
            each_value(item, |field, value| kept |= field == condition.field && wanted.holds(value));
            kept
        })
    }
}

impl Condition {
    fn check(&self) -> Result<()> {
        let wrong = |problem: &str| Err(Error::input(format!("the condition on `{}` {problem}", self.field)));
        let mut wanted = self.eq.iter().chain(self.one_of.iter().flatten());
        if self.field.is_empty() {
            return wrong("names no field");
        }
        if self.eq.is_none() && self.one_of.is_none() && self.gte.is_none() && self.lte.is_none() {
            return wrong("says nothing: give eq, in, gte or lte");
        }
        if self.one_of.as_ref().is_some_and(|values| values.len() > MAX_VALUES) {
            return wrong(&format!("has more than {MAX_VALUES} values"));
        }
        if !wanted.all(|value| value.is_string() || value.is_number() || value.is_boolean()) {
            return wrong("compares with what is no string, number or truth value");
        }
        if [self.gte, self.lte].into_iter().flatten().any(|bound| !bound.is_finite()) {
            return wrong("has a bound that is not finite");
        }
        Ok(())
    }

    /// Read once for many values.
    pub(super) fn wanted(&self) -> Wanted<'_> {
        let lists = [self.eq.as_ref().map(slice::from_ref), self.one_of.as_deref()];
        let lists = lists.into_iter().flatten().map(Listed::of).collect();
        Wanted { lists, least: self.gte, most: self.lte }
    }
}

/// What a condition asks of a value.
pub(super) struct Wanted<'a> {
    /// One of each.
    lists: Vec<Listed<'a>>,
    least: Option<f64>,
    most: Option<f64>,
}

#[derive(Default)]
struct Listed<'a> {
    texts: HashSet<&'a str>,
    /// As bits.
    numbers: HashSet<u64>,
}

impl<'a> Listed<'a> {
    fn of(values: &'a [Value]) -> Self {
        let mut listed = Self::default();
        for value in values {
            match value {
                Value::String(text) => drop(listed.texts.insert(text)),
                Value::Bool(value) => drop(listed.texts.insert(truth(*value))),
                Value::Number(number) => listed.numbers.extend(number.as_f64().map(bits)),
                _ => {}
            }
        }
        listed
    }

    fn has(&self, value: Held<'_>) -> bool {
        match value {
            Held::Text(text) => self.texts.contains(text),
            Held::Number(number) => self.numbers.contains(&bits(number)),
        }
    }
}

/// Equal numbers have the same, 0 and -0 too.
fn bits(number: f64) -> u64 {
    (number + 0.0).to_bits()
}

impl<'a> Wanted<'a> {
    /// Whether one value of an item fits.
    pub(super) fn holds(&self, value: Held<'_>) -> bool {
        let above = |bound: f64| matches!(value, Held::Number(value) if value >= bound);
        let below = |bound: f64| matches!(value, Held::Number(value) if value <= bound);
        self.lists.iter().all(|listed| listed.has(value)) && self.least.is_none_or(above) && self.most.is_none_or(below)
    }

    /// The texts that fit.
    pub(super) fn texts(&self) -> impl Iterator<Item = &'a str> {
        let first = self.lists.first().into_iter().flat_map(|listed| listed.texts.iter().copied());
        first.filter(|text| self.holds(Held::Text(text)))
    }
}

/// A value of an item that can be compared with; truth values are texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Held<'a> {
    Text(&'a str),
    Number(f64),
}

pub(super) fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// Objects within objects are looked into so far.
const DEEPEST: usize = 4;

/// Gives each value of an item's fields with the field's name. Title and text are not among them: they are searched.
pub(super) fn each_value(item: &Item, mut give: impl FnMut(&str, Held<'_>)) {
    for (name, value) in &item.fields {
        values_of(name, value, DEEPEST, &mut give);
    }
}

/// The texts of one field of an item.
pub fn texts_of(item: &Item, field: &str) -> Vec<String> {
    let mut texts = Vec::new();
    each_value(item, |name, value| match value {
        Held::Text(text) if name == field => texts.push(text.to_owned()),
        _ => {}
    });
    texts
}

fn values_of(name: &str, value: &Value, deep: usize, give: &mut dyn FnMut(&str, Held<'_>)) {
    match value {
        Value::Null => {}
        Value::Bool(value) => give(name, Held::Text(truth(*value))),
        Value::Number(number) => {
            if let Some(number) = number.as_f64() {
                give(name, Held::Number(number));
            }
        }
        Value::String(text) => give(name, Held::Text(text)),
        Value::Array(values) => {
            for value in values {
                values_of(name, value, deep, give);
            }
        }
        Value::Object(inside) if deep > 0 => {
            for (key, value) in inside {
                values_of(&format!("{name}.{key}"), value, deep - 1, give);
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
    fn all_conditions_must_hold_and_a_list_needs_one_value() {
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
            assert_eq!(filter.keeps(&item), kept, "{filter:?}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for condition in [
            r#"{"field":"price"}"#,
            r#"{"field":"","eq":1}"#,
            r#"{"field":"price","eq":null}"#,
            r#"{"field":"price","in":[[1]]}"#,
            r#"{"field":"price","eq":{"a":1}}"#,
        ] {
            let filter = Filter { must: vec![serde_json::from_str(condition).unwrap()] };
            // serde reads a null as nothing given
            assert!(filter.check().is_err(), "{condition}");
        }
        assert!(serde_json::from_str::<Filter>(r#"{"must":[{"field":"a","equals":1}]}"#).is_err());
        assert!(Filter { must: vec![Condition::default(); 33] }.check().is_err());
    }
}
