//! Texts that came after an index was built, scored as if they stood in it: by the rarity of terms and the mean length that
//! the index knows.

use super::analyser::Terms;
use super::{Lexical, MAX_QUERY_TERMS};
use crate::error::Result;

/// A query, and what its terms weigh.
pub struct Asked<'a> {
    lexical: &'a Lexical,
    weights: Vec<(String, f32)>,
}

impl Lexical {
    /// Reads a query once for many texts.
    pub fn asked(&self, query: &str) -> Result<Asked<'_>> {
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
        Ok(Asked { lexical: self, weights })
    }
}

fn add(weights: &mut Vec<(String, f32)>, term: &str, weight: f32) {
    match weights.iter_mut().find(|(known, _)| known == term) {
        Some((_, sum)) => *sum += weight,
        None => weights.push((term.to_owned(), weight)),
    }
}

impl Asked<'_> {
    /// 0 where the text has no term of the query.
    pub fn score(&self, text: &str) -> f32 {
        let mut held = Terms::default();
        held.read(text);
        let norm = self.lexical.norm(held.iter().count() as u32);
        let of = |(term, weight): &(String, f32)| {
            let count = held.iter().filter(|held| held == term).count() as f32;
            weight * (count / (count + norm))
        };
        self.weights.iter().map(of).sum()
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
        for query in ["oak desk", "red lamp red", "chair", "of the"] {
            let (asked, hits) = (shop.asked(query).unwrap(), shop.search(query, 3).unwrap());
            for (row, text) in texts.iter().enumerate() {
                let inside = hits.iter().find(|hit| hit.row == row as u32).map_or(0.0, |hit| hit.score);
                assert!((asked.score(text) - inside).abs() < 1e-6, "{query}: {text}");
            }
        }
        let asked = shop.asked("xylophone").unwrap();
        assert!(asked.score("a xylophone of oak") > shop.asked("desk").unwrap().score("a desk of oak"));
    }
}
