//! Learns translations by IBM Model 1 (Brown et al., "The mathematics of statistical machine translation", 1993, section 4.1): each term of
//! a query comes from one term of its item or from none, all as likely. EM finds the T that makes the queries likeliest.
//!
//! ```text
//! E: c(t, x) += w · T(t | x) / Σ_x' T(t | x')    for each term t of a query, over the terms x' of its item and "none"
//! M: T(t | x) = c(t, x) / Σ_t' c(t', x)
//! ```
//!
//! A term of items with little evidence m = Σ w, over its pairs and their queries' terms, counts less: T · m / (m + 5).

use std::collections::HashMap;

use souk_io::domain::normalized_query;

use super::Translations;
use crate::Language;
use crate::analyser::Terms;

const ROUNDS: usize = 5;
/// Terms of a query or of an item; further ones are ignored.
const MAX_QUERY_TERMS: usize = 20;
const MAX_ITEM_TERMS: usize = 30;
/// Terms of fewer pairs are left out.
const MIN_ITEM_PAIRS: u32 = 5;
const MIN_QUERY_PAIRS: u32 = 2;
const SHRINKAGE: f64 = 5.0;
/// Less likely translations are dropped.
const MIN_PROBABILITY: f64 = 1e-3;
/// Number of "none", which a query's words of no item's words come from.
const NONE: u32 = 0;

/// Pairs of a query and an item that answers it.
pub struct TranslationPairs {
    numbers: HashMap<Box<str>, u32>,
    pairs: Vec<Pair>,
    /// Terms of the text just read.
    text: Terms,
}

#[derive(Clone)]
struct Pair {
    /// Normalized.
    text: String,
    query: Vec<u32>,
    item: Vec<u32>,
    weight: f64,
}

/// T(· | x) of one term x.
#[derive(Default)]
struct Row {
    /// Ascending.
    queries: Vec<u32>,
    probabilities: Vec<f64>,
    counts: Vec<f64>,
    evidence: f64,
}

impl Default for TranslationPairs {
    fn default() -> Self {
        Self::new(Language::default())
    }
}

impl TranslationPairs {
    pub fn new(language: Language) -> Self {
        Self { numbers: HashMap::from([("".into(), NONE)]), pairs: Vec::new(), text: Terms::new(language) }
    }

    /// Adds a pair. One without weight teaches nothing.
    pub fn add(&mut self, query: &str, item: &str, weight: f32) {
        if weight <= 0.0 {
            return;
        }
        let text = normalized_query(query);
        let query = self.read(query).take(MAX_QUERY_TERMS).collect();
        let mut distinct = Vec::new();
        for term in self.read(item) {
            if !distinct.contains(&term) {
                distinct.push(term);
                if distinct.len() == MAX_ITEM_TERMS {
                    break;
                }
            }
        }
        self.pairs.push(Pair { text, query, item: distinct, weight: f64::from(weight) });
    }

    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Numbers of the terms of a text, in order.
    fn read(&mut self, text: &str) -> impl Iterator<Item = u32> {
        let Self { numbers, text: terms, .. } = self;
        terms.read(text);
        terms.iter().map(|term| {
            let next = numbers.len() as u32;
            match numbers.get(term) {
                Some(number) => *number,
                None => *numbers.entry(term.into()).or_insert(next),
            }
        })
    }

    /// The queries, normalized; one that has several pairs is repeated.
    pub fn queries(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|pair| pair.text.as_str())
    }

    /// Learns from the pairs whose normalized query `is_used` selects.
    pub fn learn(&self, is_used: impl Fn(&str) -> bool) -> Translations {
        let pairs = self.without_rare_terms(is_used);
        let mut rows = self.rows(&pairs);
        for _ in 0..ROUNDS {
            count(&pairs, &mut rows);
            for row in &mut rows {
                let total = row.counts.iter().sum::<f64>().max(f64::MIN_POSITIVE);
                row.probabilities = row.counts.iter().map(|count| count / total).collect();
            }
        }
        let mut names = vec![""; self.numbers.len()];
        self.numbers.iter().for_each(|(term, number)| names[*number as usize] = term);
        let named = |number: u32| Box::<str>::from(names[number as usize]);
        Translations::new(rows.into_iter().zip(0..).skip(1).flat_map(|(row, item)| {
            let shrinkage = row.evidence / (row.evidence + SHRINKAGE);
            let likely = row.queries.into_iter().zip(row.probabilities).map(move |(query, t)| (query, t * shrinkage));
            let likely = likely.filter(move |(query, t)| *query != item && *t > MIN_PROBABILITY);
            likely.map(move |(query, t)| (named(query), named(item), t as f32)).collect::<Vec<_>>()
        }))
    }

    fn without_rare_terms(&self, is_used: impl Fn(&str) -> bool) -> Vec<Pair> {
        let mut pairs: Vec<Pair> = self.pairs.iter().filter(|pair| is_used(&pair.text)).cloned().collect();
        let (mut in_items, mut in_queries) = (vec![0_u32; self.numbers.len()], vec![0_u32; self.numbers.len()]);
        for pair in &pairs {
            pair.item.iter().for_each(|term| in_items[*term as usize] += 1);
            pair.query.iter().for_each(|term| in_queries[*term as usize] += 1);
        }
        for pair in &mut pairs {
            pair.item.retain(|term| in_items[*term as usize] >= MIN_ITEM_PAIRS);
            pair.query.retain(|term| in_queries[*term as usize] >= MIN_QUERY_PAIRS);
            pair.item.push(NONE);
        }
        pairs.retain(|pair| !pair.query.is_empty());
        pairs
    }

    /// A row for each term, with all terms of the queries of its pairs as likely.
    fn rows(&self, pairs: &[Pair]) -> Vec<Row> {
        let mut rows: Vec<Row> = std::iter::repeat_with(Row::default).take(self.numbers.len()).collect();
        for pair in pairs {
            for item in &pair.item {
                let row = &mut rows[*item as usize];
                row.queries.extend(&pair.query);
                row.evidence += pair.weight * pair.query.len() as f64;
            }
        }
        for row in &mut rows {
            row.queries.sort_unstable();
            row.queries.dedup();
            row.queries.shrink_to_fit();
            row.probabilities = vec![1.0 / row.queries.len() as f64; row.queries.len()];
        }
        rows
    }
}

/// The E step.
fn count(pairs: &[Pair], rows: &mut [Row]) {
    for row in &mut *rows {
        row.counts = vec![0.0; row.queries.len()];
    }
    let mut places = Vec::with_capacity(MAX_ITEM_TERMS + 1);
    for Pair { query, item, weight, .. } in pairs {
        for term in query {
            places.clear();
            let mut total = 0.0;
            for item in item {
                let row = &rows[*item as usize];
                let Ok(place) = row.queries.binary_search(term) else { continue };
                places.push((*item as usize, place));
                total += row.probabilities[place];
            }
            for (item, place) in &places {
                rows[*item].counts[*place] += weight * rows[*item].probabilities[*place] / total;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(pairs: &[(&str, &str, f32)], repeats: usize) -> Translations {
        let mut all = TranslationPairs::default();
        for (query, item, weight) in std::iter::repeat_n(pairs, repeats).flatten() {
            all.add(query, item, *weight);
        }
        all.learn(|_| true)
    }

    fn probability(translations: &Translations, query: &str, item: &str) -> Option<f32> {
        translations.of(query).iter().find(|known| &*known.item == item).map(|known| known.probability)
    }

    #[test]
    fn one_query_for_an_item_is_certain_up_to_the_evidence() {
        let learned = learned(&[("sofa", "couch", 1.0)], 10);
        assert_eq!(probability(&learned, "sofa", "couch"), Some(10.0 / 15.0));
        assert_eq!(learned.len(), 1, "a term translates to itself, and none to nothing");
    }

    #[test]
    fn a_pair_without_weight_changes_nothing() {
        let weighted = [("sofa", "couch", 1.0)];
        assert_eq!(learned(&[weighted[0], ("bench", "couch seat", 0.0)], 10), learned(&weighted, 10));
    }

    #[test]
    fn rare_terms_are_left_out() {
        let pairs = [("sofa", "couch", 1.0)];
        assert!(learned(&pairs, 4).is_empty());
        let mut rare_query = TranslationPairs::default();
        rare_query.add("settee", "couch", 1.0);
        (0..5).for_each(|_| rare_query.add("sofa", "couch", 1.0));
        let learned = rare_query.learn(|_| true);
        assert!(probability(&learned, "settee", "couch").is_none() && learned.len() == 1);
    }

    #[test]
    fn only_the_selected_queries_are_learned_from() {
        let mut pairs = TranslationPairs::default();
        for _ in 0..5 {
            pairs.add("Sofa ", "couch", 1.0);
            pairs.add("settee", "couch", 1.0);
        }
        assert_eq!(pairs.queries().collect::<Vec<_>>()[..2], ["sofa", "settee"]);
        let learned = pairs.learn(|query| query != "settee");
        assert!(probability(&learned, "settee", "couch").is_none() && learned.len() == 1);
        assert_eq!(pairs.learn(|_| true).len(), 2);
    }

    /// Against an implementation with NumPy that lists all pairs of words.
    #[test]
    fn five_rounds_equal_another_implementation() {
        let pairs = [
            ("outlet white", "duplex receptacle white", 1.0),
            ("outlet", "duplex receptacle ivory", 1.0),
            ("white paint", "white interior paint", 0.5),
            ("wall plate", "duplex wall plate white", 1.0),
        ];
        let learned = learned(&pairs, 5);
        let expected = [
            ("outlet", "duplex", 0.552390),
            ("outlet", "ivory", 0.500000),
            ("outlet", "receptacle", 0.623018),
            ("outlet", "white", 0.042645),
            ("paint", "interior", 0.369231),
            ("paint", "white", 0.003805),
            ("plate", "duplex", 0.084178),
            ("plate", "wall", 0.333333),
            ("plate", "white", 0.082079),
            ("wall", "duplex", 0.084178),
            ("wall", "plate", 0.333333),
            ("wall", "white", 0.082079),
            ("white", "duplex", 0.112587),
            ("white", "interior", 0.130769),
            ("white", "paint", 0.130769),
            ("white", "receptacle", 0.126982),
        ];
        assert_eq!(learned.len(), expected.len());
        for (query, item, t) in expected {
            let found = probability(&learned, query, item).unwrap();
            assert!((found - t).abs() < 1e-6, "T({query} | {item}) = {found}, not {t}");
        }
    }
}
