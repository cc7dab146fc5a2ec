//! BM25 scores of texts added after an index was built. Uses idf and mean length of the index, so scores are comparable
//! with those of indexed items. Never changes the index.

use std::collections::HashMap;

use super::analyser::Terms;
use super::{Language, Lexical, LexicalHit, MAX_QUERY_TERMS};
use souk_io::error::Result;

/// Terms of texts outside an index; `LexicalHit::row` is the number of a text, from 0.
pub struct UnindexedTexts {
    language: Language,
    /// For each term, the texts that have it, with its count.
    postings: HashMap<Box<str>, Vec<(u32, u32)>>,
    /// Number of terms of each text.
    lengths: Vec<u32>,
}

impl UnindexedTexts {
    pub fn new(language: Language) -> Self {
        Self { language, postings: HashMap::new(), lengths: Vec::new() }
    }

    pub fn push(&mut self, text: &str) {
        let mut terms = Terms::new(self.language);
        terms.read(text);
        let (at, mut length) = (self.lengths.len() as u32, 0);
        for term in terms.iter() {
            length += 1;
            if !self.postings.contains_key(term) {
                self.postings.insert(term.into(), Vec::new());
            }
            let Some(texts) = self.postings.get_mut(term) else { continue };
            match texts.last_mut() {
                Some((last, count)) if *last == at => *count += 1,
                _ => texts.push((at, 1)),
            }
        }
        self.lengths.push(length);
    }
}

impl Lexical {
    /// Texts that have a term of the query, in the order they were pushed.
    pub fn search_unindexed(&self, query: &str, texts: &UnindexedTexts) -> Result<Vec<LexicalHit>> {
        let mut scores: HashMap<u32, f32> = HashMap::new();
        for (term, weight) in self.weights(query)? {
            for (text, count) in texts.postings.get(term.as_str()).into_iter().flatten() {
                let (count, norm) = (*count as f32, self.norm(texts.lengths[*text as usize]));
                *scores.entry(*text).or_default() += weight * (count / (count + norm));
            }
        }
        let mut hits: Vec<_> = scores.into_iter().map(|(row, score)| LexicalHit { row, score }).collect();
        hits.sort_unstable_by_key(|hit| hit.row);
        Ok(hits)
    }

    /// Weights of the terms of a query. A term that no item has may be in one of the texts.
    fn weights(&self, query: &str) -> Result<Vec<(String, f32)>> {
        let mut terms = Terms::new(self.language());
        terms.read(query);
        let found = self.search_terms(&terms)?;
        let mut weights: Vec<(String, f32)> =
            found.into_iter().map(|found| (found.term, found.count * self.idf(found.info.doc_freq))).collect();
        for term in terms.iter().take(MAX_QUERY_TERMS).filter(|term| self.term_info(term).is_none()) {
            match weights.iter_mut().find(|(known, _)| known == term) {
                Some((_, sum)) => *sum += self.idf(0),
                None => weights.push((term.to_owned(), self.idf(0))),
            }
        }
        Ok(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_equal_those_of_indexed_texts_and_new_words_count_as_rarest() {
        let texts = ["oak desk lamp", "oak chair", "red red red chair"];
        let shop = Lexical::build(texts.iter().map(|text| Ok((*text).to_owned()))).unwrap();
        let mut unindexed = UnindexedTexts::new(Language::English);
        texts.iter().for_each(|text| unindexed.push(text));
        for query in ["oak desk", "red lamp red", "chair", "of the"] {
            let mut indexed = shop.search(query, 3).unwrap();
            indexed.sort_unstable_by_key(|hit| hit.row);
            let found = shop.search_unindexed(query, &unindexed).unwrap();
            assert_eq!(found.len(), indexed.len(), "{query}");
            for (out, expected) in found.iter().zip(&indexed) {
                assert_eq!(out.row, expected.row, "{query}");
                assert!((out.score - expected.score).abs() < 1e-6, "{query}: {out:?} {expected:?}");
            }
        }
        unindexed.push("a xylophone of oak");
        unindexed.push("a desk of oak");
        let first = |query| shop.search_unindexed(query, &unindexed).unwrap().last().unwrap().score;
        assert!(first("xylophone") > first("desk"));
    }
}
