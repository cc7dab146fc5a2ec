//! Columns of the items' fields, for filters: find the matching items without parsing any item. Never holds titles or
//! texts.

use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::filter::{Condition, FieldValue, Filter, for_each_value};
use souk_io::domain::Item;
use souk_io::error::Error;
use souk_io::names::{NameList, did_you_mean};

/// Maximum bytes of a filterable value; longer texts are stored with the item only.
pub(super) const MAX_VALUE_BYTES: usize = 256;
/// Number of most frequent values reported for a field.
const NUM_TOP_VALUES: usize = 20;
const CACHE_SIZE: usize = 32;
/// Longest `in` list that is cached; longer lists rarely repeat and take memory.
const MAX_CACHED_LIST: usize = 100;

/// A filterable field and its most frequent values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Field {
    pub name: String,
    /// Number of items with this field.
    pub num_items: usize,
    /// Most frequent texts, most frequent first.
    pub values: Vec<ValueCount>,
    /// Range of the numeric values.
    pub min: Option<f64>,
    pub max: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueCount {
    pub value: String,
    pub count: usize,
}

#[derive(Default)]
pub struct Columns {
    num_items: usize,
    fields: BTreeMap<String, Column>,
}

/// Values of one field in item order; an item may have several values or none.
#[derive(Default)]
struct Column {
    texts: Vec<(u32, u32)>,
    names: Vec<Box<str>>,
    codes: HashMap<Box<str>, u32>,
    numbers: Vec<(u32, f64)>,
}

/// Bit set of items.
#[derive(Clone, Default)]
pub struct ItemSet {
    bits: Vec<u64>,
}

/// Cache of the item sets of recent filters; only valid for columns that do not change.
#[derive(Default)]
pub struct FilterCache {
    /// Least recently used first.
    last: Mutex<Vec<(Filter, Arc<ItemSet>)>>,
}

impl FilterCache {
    pub fn get_or_select(&self, columns: &Columns, filter: &Filter) -> Arc<ItemSet> {
        let known = {
            let mut last = self.last();
            let at = last.iter().position(|(known, _)| known == filter);
            at.map(|at| last.remove(at).1)
        };
        let selected = known.unwrap_or_else(|| Arc::new(columns.select(filter)));
        if filter.must.iter().filter_map(|condition| condition.one_of.as_ref()).any(|list| list.len() > MAX_CACHED_LIST)
        {
            return selected;
        }
        let mut last = self.last();
        if last.len() >= CACHE_SIZE {
            last.remove(0);
        }
        last.push((filter.clone(), selected.clone()));
        selected
    }

    fn last(&self) -> MutexGuard<'_, Vec<(Filter, Arc<ItemSet>)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Columns {
    pub fn push(&mut self, item: &Item) {
        let at = self.num_items as u32;
        for_each_value(item, |field, value| {
            if matches!(value, FieldValue::Text(text) if text.len() > MAX_VALUE_BYTES) {
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

    pub fn has_field(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    /// Items that match a filter.
    pub fn select(&self, filter: &Filter) -> ItemSet {
        let mut all: Option<ItemSet> = None;
        for condition in &filter.must {
            let mut kept = ItemSet::none(self.num_items);
            if let Some(column) = self.fields.get(&condition.field) {
                column.select(condition, &mut kept);
            }
            all = Some(match all {
                None => kept,
                Some(before) => before.intersect(&kept),
            });
        }
        all.unwrap_or_else(|| ItemSet::all(self.num_items))
    }

    pub fn fields(&self) -> Vec<Field> {
        self.fields.iter().map(|(name, column)| column.summary(name)).collect()
    }

    /// Error for a field that no item has; without it, a typo would look like an empty result.
    pub fn unknown_field(&self, field: &str) -> Error {
        let names = || self.fields.keys().map(String::as_str);
        let (similar, list) = (did_you_mean(field, names()), NameList::of(names()));
        let rest = if list.is_cut { " (`GET /fields` lists all)" } else { "" };
        Error::input(format!("no item has a field `{field}` to filter by{similar}; fields: {}{rest}", list.text))
    }
}

impl Column {
    fn push(&mut self, item: u32, value: FieldValue<'_>) {
        match value {
            FieldValue::Number(number) => self.numbers.push((item, number)),
            FieldValue::Text(text) => {
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

    fn select(&self, condition: &Condition, kept: &mut ItemSet) {
        let matcher = condition.matcher();
        let codes: Vec<u32> = matcher.texts().filter_map(|text| self.codes.get(text).copied()).collect();
        if !codes.is_empty() {
            let mut fits = vec![false; self.names.len()];
            codes.into_iter().for_each(|code| fits[code as usize] = true);
            for (item, code) in &self.texts {
                kept.add(*item, fits[*code as usize]);
            }
        }
        for (item, number) in &self.numbers {
            kept.add(*item, matcher.matches(FieldValue::Number(*number)));
        }
    }

    fn summary(&self, name: &str) -> Field {
        let mut counts = vec![0; self.names.len()];
        self.texts.iter().for_each(|(_, code)| counts[*code as usize] += 1);
        let mut values: Vec<(usize, &str)> = counts.into_iter().zip(self.names.iter().map(|name| &**name)).collect();
        values.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        values.truncate(NUM_TOP_VALUES);
        let mut items: Vec<u32> = self.texts.iter().map(|(item, _)| *item).collect();
        items.extend(self.numbers.iter().map(|(item, _)| *item));
        items.sort_unstable();
        items.dedup();
        let numbers = || self.numbers.iter().map(|(_, number)| *number);
        Field {
            name: name.into(),
            num_items: items.len(),
            values: values.into_iter().map(|(count, value)| ValueCount { value: value.into(), count }).collect(),
            min: numbers().reduce(f64::min),
            max: numbers().reduce(f64::max),
        }
    }
}

impl ItemSet {
    pub fn none(num: usize) -> Self {
        Self { bits: vec![0; num.div_ceil(64)] }
    }

    pub fn all(num: usize) -> Self {
        let mut all = Self { bits: vec![u64::MAX; num / 64] };
        if !num.is_multiple_of(64) {
            all.bits.push((1 << (num % 64)) - 1);
        }
        all
    }

    fn add(&mut self, item: u32, matches: bool) {
        self.bits[item as usize / 64] |= u64::from(matches) << (item % 64);
    }

    /// Intersection of two sets.
    pub fn intersect(mut self, other: &Self) -> Self {
        self.bits.iter_mut().zip(&other.bits).for_each(|(a, b)| *a &= b);
        self
    }

    pub fn has(&self, item: usize) -> bool {
        self.bits[item / 64] >> (item % 64) & 1 == 1
    }

    pub fn num(&self) -> usize {
        self.bits.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Items in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.bits.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(at * 64 + bit)
            })
        })
    }

    /// Adds an item numbered after all others.
    pub fn push(&mut self, item: usize) {
        self.bits.resize(item / 64 + 1, 0);
        self.add(item as u32, true);
    }

    pub fn remove(&mut self, item: usize) {
        self.bits[item / 64] &= !(1 << (item % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Filtering by columns equals filtering item by item.
    #[test]
    fn column_filter_matches_item_filter() {
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
            let expected: Vec<bool> = items.iter().map(|item| filter.matches(item)).collect();
            let found: Vec<bool> = (0..items.len()).map(|item| selected.has(item)).collect();
            assert_eq!(found, expected, "{filter:?}");
            let kept: Vec<usize> = (0..items.len()).filter(|item| expected[*item]).collect();
            assert_eq!(selected.iter().collect::<Vec<_>>(), kept);
            let mut there = ItemSet::none(0);
            (0..items.len()).for_each(|item| there.push(item));
            assert_eq!(there.num(), ItemSet::all(items.len()).num());
            there.remove(1);
            assert_eq!(selected.intersect(&there).num(), kept.len() - usize::from(expected[1]));
        }
        let fields = columns.fields();
        let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["odd", "price", "tags"]);
        assert_eq!((fields[1].min, fields[1].max, fields[1].num_items), (Some(0.0), Some(6.0), 181));
        assert_eq!(fields[0].values[0], ValueCount { value: "true".into(), count: 91 });
        let problem = columns.unknown_field("prise").to_string();
        assert!(
            problem.contains("`prise` to filter by (did you mean `price`?); fields: odd, price, tags"),
            "{problem}"
        );
    }
}
