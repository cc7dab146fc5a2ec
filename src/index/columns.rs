//! The fields of the items of a snapshot, field by field: which items a filter keeps is found without reading an item.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::filter::{Condition, Filter, Held, each_value};
use crate::domain::Item;
use crate::error::Error;

/// A longer text is shown and not filtered by.
pub(super) const LONGEST: usize = 256;
/// Fields are told with so many of their values.
const TOLD_VALUES: usize = 20;

/// What can be filtered by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Field {
    pub name: String,
    /// Items that have it.
    pub num_items: usize,
    /// The commonest texts, the commonest first.
    pub values: Vec<Count>,
    /// Of its numbers.
    pub min: Option<f64>,
    pub max: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    pub value: String,
    pub count: usize,
}

#[derive(Default)]
pub struct Columns {
    num_items: usize,
    fields: BTreeMap<String, Column>,
}

/// The values of one field, in the order of the items; an item may have several, or none.
#[derive(Default)]
struct Column {
    texts: Vec<(u32, u32)>,
    names: Vec<Box<str>>,
    codes: HashMap<Box<str>, u32>,
    numbers: Vec<(u32, f64)>,
}

/// One bit for each item.
pub struct Selected {
    bits: Vec<u64>,
}

impl Columns {
    pub fn push(&mut self, item: &Item) {
        let at = self.num_items as u32;
        each_value(item, |field, value| {
            if matches!(value, Held::Text(text) if text.len() > LONGEST) {
                return;
            }
            if !self.fields.contains_key(field) {
                self.fields.insert(field.into(), Column::default());
            }
            if let Some(column) = self.fields.get_mut(field) {
                column.push(at, value);
            }
        });
        self.num_items += 1;
    }

    pub fn knows(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    /// The items that a filter keeps.
    pub fn select(&self, filter: &Filter) -> Selected {
        let mut all: Option<Selected> = None;
        for condition in &filter.must {
            let mut kept = Selected { bits: vec![0; self.num_items.div_ceil(64)] };
            if let Some(column) = self.fields.get(&condition.field) {
                column.select(condition, &mut kept);
            }
            all = Some(match all {
                None => kept,
                Some(before) => before.and(&kept),
            });
        }
        all.unwrap_or_else(|| Selected { bits: vec![u64::MAX; self.num_items.div_ceil(64)] })
    }

    pub fn fields(&self) -> Vec<Field> {
        self.fields.iter().map(|(name, column)| column.told(name)).collect()
    }

    /// An unknown field in a filter is a slip that would otherwise look like an empty shop.
    pub fn unknown(&self, field: &str) -> Error {
        let known: Vec<&str> = self.fields.keys().map(String::as_str).take(TOLD_VALUES).collect();
        Error::input(format!("no item has a field `{field}` to filter by; there is {}", known.join(", ")))
    }
}

impl Column {
    fn push(&mut self, item: u32, value: Held<'_>) {
        match value {
            Held::Number(number) => self.numbers.push((item, number)),
            Held::Text(text) => {
                let code = match self.codes.get(text) {
                    Some(code) => *code,
                    None => {
                        let code = self.names.len() as u32;
                        self.names.push(text.into());
                        self.codes.insert(text.into(), code);
                        code
                    }
                };
                self.texts.push((item, code));
            }
        }
    }

    fn select(&self, condition: &Condition, kept: &mut Selected) {
        let fits: Vec<bool> = self.names.iter().map(|name| condition.holds(Held::Text(name))).collect();
        if fits.contains(&true) {
            for (item, code) in &self.texts {
                kept.add(*item, fits[*code as usize]);
            }
        }
        for (item, number) in &self.numbers {
            kept.add(*item, condition.holds(Held::Number(*number)));
        }
    }

    fn told(&self, name: &str) -> Field {
        let mut counts = vec![0; self.names.len()];
        self.texts.iter().for_each(|(_, code)| counts[*code as usize] += 1);
        let mut values: Vec<(usize, &str)> = counts.into_iter().zip(self.names.iter().map(|name| &**name)).collect();
        values.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        values.truncate(TOLD_VALUES);
        let mut items: Vec<u32> = self.texts.iter().map(|(item, _)| *item).collect();
        items.extend(self.numbers.iter().map(|(item, _)| *item));
        items.sort_unstable();
        items.dedup();
        let numbers = || self.numbers.iter().map(|(_, number)| *number);
        Field {
            name: name.into(),
            num_items: items.len(),
            values: values.into_iter().map(|(count, value)| Count { value: value.into(), count }).collect(),
            min: numbers().reduce(f64::min),
            max: numbers().reduce(f64::max),
        }
    }
}

impl Selected {
    fn add(&mut self, item: u32, holds: bool) {
        self.bits[item as usize / 64] |= u64::from(holds) << (item % 64);
    }

    fn and(mut self, other: &Self) -> Self {
        self.bits.iter_mut().zip(&other.bits).for_each(|(a, b)| *a &= b);
        self
    }

    pub fn has(&self, item: usize) -> bool {
        self.bits[item / 64] >> (item % 64) & 1 == 1
    }

    /// Of the first `num` items, those that are in here and not in `gone`.
    pub fn num_without(&self, gone: &Self, num: usize) -> usize {
        let words = self.bits.iter().zip(&gone.bits).enumerate();
        let ones = words.map(|(at, (kept, gone))| (kept & !gone & below(num, at)).count_ones() as usize);
        ones.sum()
    }

    pub fn none(num: usize) -> Self {
        Self { bits: vec![0; num.div_ceil(64)] }
    }

    pub fn insert(&mut self, item: usize) {
        self.add(item as u32, true);
    }
}

/// The bits of the word `at` that stand for the first `num` items.
fn below(num: usize, at: usize) -> u64 {
    match num.saturating_sub(at * 64) {
        rest if rest >= 64 => u64::MAX,
        rest => (1 << rest) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Column by column is what item by item is.
    #[test]
    fn columns_keep_what_items_keep() {
        let items: Vec<Item> = (0..200)
            .map(|i| {
                let tags = [["a", "b"][i % 2].to_owned(), format!("t{}", i % 5)];
                let fields = json!({"price": i % 7, "tags": tags, "odd": i % 2 == 1});
                let fields = fields.as_object().cloned().unwrap_or_default();
                let fields = if i % 11 == 0 { serde_json::Map::new() } else { fields };
                Item { id: i.to_string(), title: String::new(), text: String::new(), fields }
            })
            .collect();
        let mut columns = Columns::default();
        items.iter().for_each(|item| columns.push(item));
        for filter in [
            json!([]),
            json!([{"field": "price", "gte": 2, "lte": 4}]),
            json!([{"field": "tags", "in": ["t1", "t3"]}, {"field": "odd", "eq": true}]),
            json!([{"field": "tags", "eq": "a"}, {"field": "tags", "eq": "t0"}]),
            json!([{"field": "weight", "eq": 1}]),
        ] {
            let filter = Filter { must: serde_json::from_value(filter).unwrap() };
            let selected = columns.select(&filter);
            let expected: Vec<bool> = items.iter().map(|item| filter.keeps(item)).collect();
            let found: Vec<bool> = (0..items.len()).map(|item| selected.has(item)).collect();
            assert_eq!(found, expected, "{filter:?}");
            let num = expected.iter().filter(|kept| **kept).count();
            let mut gone = Selected::none(items.len());
            assert_eq!(selected.num_without(&gone, items.len()), num);
            gone.insert(1);
            assert_eq!(selected.num_without(&gone, items.len()), num - usize::from(expected[1]));
        }
        let told = columns.fields();
        let names: Vec<&str> = told.iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["odd", "price", "tags"]);
        assert_eq!((told[1].min, told[1].max, told[1].num_items), (Some(0.0), Some(6.0), 181));
        assert_eq!(told[0].values[0], Count { value: "true".into(), count: 91 });
        assert!(columns.unknown("colour").to_string().contains("odd, price, tags"));
    }
}
