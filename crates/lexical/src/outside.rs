//! Texts that came after an index was built, scored as if they stood in it: by the rarity of terms and the mean length that
//! the index knows.

use std::collections::HashMap;

use super::analyser::Terms;
use super::{Lexical, LexicalHit, MAX_QUERY_TERMS};
use souk_io::error::Result;

/// The terms of such texts; a text is named by its place.
#[derive(Default)]
pub struct Outside {
    /// The texts that have a term, and how often.
    held: HashMap<Box<str>, Vec<(u32, u32)>>,
    /// Terms of each text.
    lengths: Vec<u32>,
}

impl Outside {
    pub fn push(&mut self, text: &str) {
        let mut terms = Terms::default();
        terms.read(text);
        let (at, mut length) = (self.lengths.len() as u32, 0);
        for term in terms.iter() {
            length += 1;
            if !self.held.contains_key(term) {
                self.held.insert(term.into(), Vec::new());
            }
            let Some(texts) = self.held.get_mut(term) else { continue };
            match texts.last_mut() {
                Some((last, count)) if *last == at => *count += 1,
                _ => texts.push((at, 1)),
            }
        }
        self.lengths.push(length);
    }
}

impl Lexical {
    /// The texts that have a term of the query, in their order.
    pub fn search_outside(&self, query: &str, outside: &Outside) -> Result<Vec<LexicalHit>> {
        let mut scores: HashMap<u32, f32> = HashMap::new();
        for (term, weight) in self.weights(query)? {
            for (text, count) in outside.held.get(term.as_str()).into_iter().flatten() {
                let (count, norm) = (*count as f32, self.norm(outside.lengths[*text as usize]));
                *scores.entry(*text).or_default() += weight * (count / (count + norm));
            }
        }
        let mut hits: Vec<_> = scores.into_iter().map(|(row, score)| LexicalHit { row, score }).collect();
        hits.sort_unstable_by_key(|hit| hit.row);
        Ok(hits)
    }

    /// What the terms of a query weigh.
    fn weights(&self, query: &str) -> Result<Vec<(String, f32)>> {
        let mut terms = Terms::default();
        terms.read(query);
        let mut weights: Vec<(String, f32)> = Vec::new();
        for term in terms.iter().take(MAX_QUERY_TERMS) {
            let known = self.known(term).map(|info| self.idf(info.doc_freq));
            add(&mut weights, term, known.unwrap_or(self.idf(0)));
            if known.is_none() {
                for meant in self.meant(term)? {
                    if let Some(info) = self.known(&meant) {
                        add(&mut weights, &meant, self.idf(info.doc_freq));
                    }
                }
            }
        }
        Ok(weights)
    }
}

fn add(weights: &mut Vec<(String, f32)>, term: &str, weight: f32) {
    match weights.iter_mut().find(|(known, _)| known == term) {
        Some((_, sum)) => *sum += weight,
        None => weights.push((term.to_owned(), weight)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text scores what it scores inside the index, and a new word counts as the rarest.
    #[test]
    fn an_outside_text_scores_as_one_inside() {
        let texts = ["oak desk lamp", "oak chair", "red red red chair"];
        let shop = Lexical::build(texts.iter().map(|text| Ok((*text).to_owned()))).unwrap();
        let mut outside = Outside::default();
        texts.iter().for_each(|text| outside.push(text));
        for query in ["oak desk", "red lamp red", "chair", "of the"] {
            let mut inside = shop.search(query, 3).unwrap();
            inside.sort_unstable_by_key(|hit| hit.row);
            let found = shop.search_outside(query, &outside).unwrap();
            assert_eq!(found.len(), inside.len(), "{query}");
            for (out, inside) in found.iter().zip(&inside) {
                assert_eq!(out.row, inside.row, "{query}");
                assert!((out.score - inside.score).abs() < 1e-6, "{query}: {out:?} {inside:?}");
            }
        }
        outside.push("a xylophone of oak");
        outside.push("a desk of oak");
        let first = |query| shop.search_outside(query, &outside).unwrap().last().unwrap().score;
        assert!(first("xylophone") > first("desk"));
    }
}
