//! BM25 scores of texts added after an index was built. Uses idf and mean length of the index, so scores are comparable
//! with those of indexed items. Never changes the index.

use std::collections::HashMap;

use super::analyser::Terms;
use super::norms::{Counts, MAX_IN_DETAILS};
use super::{Language, Lexical, LexicalHit, MAX_QUERY_TERMS, Passage};
use souk_io::error::Result;

/// Terms of texts outside an index; `LexicalHit::row` is the number of a text, from 0.
pub struct UnindexedTexts {
    language: Language,
    /// For each term, the texts that have it, with its counts.
    postings: HashMap<Box<str>, Vec<(u32, Counts)>>,
    /// Number of terms of each text and of its details.
    lengths: Vec<Counts>,
}

impl UnindexedTexts {
    pub fn new(language: Language) -> Self {
        Self { language, postings: HashMap::new(), lengths: Vec::new() }
    }

    pub fn push(&mut self, passage: impl Into<Passage>) {
        let Passage { text, details } = passage.into();
        let (at, mut lengths) = (self.lengths.len() as u32, Counts::default());
        let mut terms = Terms::new(self.language);
        terms.read(&text);
        for term in terms.iter() {
            self.counts_of(term, at).text += 1;
            lengths.text += 1;
        }
        terms.read(&details);
        for term in terms.iter() {
            let counts = self.counts_of(term, at);
            if counts.details < MAX_IN_DETAILS {
                counts.details += 1;
                lengths.details += 1;
            }
        }
        self.lengths.push(lengths);
    }

    fn counts_of(&mut self, term: &str, at: u32) -> &mut Counts {
        let texts = self.postings.entry(term.into()).or_default();
        if texts.last().is_none_or(|(last, _)| *last != at) {
            texts.push((at, Counts::default()));
        }
        &mut texts.last_mut().expect("one was pushed").1
    }
}

impl Lexical {
    /// Texts that have a term of the query, in the order they were pushed.
    pub fn search_unindexed(&self, query: &str, texts: &UnindexedTexts) -> Result<Vec<LexicalHit>> {
        let mut scores: HashMap<u32, f32> = HashMap::new();
        for (term, weight) in self.weights(query)? {
            for (text, counts) in texts.postings.get(term.as_str()).into_iter().flatten() {
                *scores.entry(*text).or_default() += weight * self.norms.score(*counts, texts.lengths[*text as usize]);
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
        let texts = [
            ("oak desk lamp", "red red Acme"),
            ("oak chair", ""),
            ("red red red chair", "oak red"),
            ("", "lamp lamp lamp lamp"),
        ];
        let texts = texts.map(|(text, details)| Passage { text: text.into(), details: details.into() });
        let shop = Lexical::build(texts.iter().map(|text| Ok(text.clone()))).unwrap();
        let mut unindexed = UnindexedTexts::new(Language::English);
        texts.into_iter().for_each(|text| unindexed.push(text));
        for query in ["oak desk", "red lamp red", "chair", "of the", "acme", "lamp"] {
            let mut indexed = shop.search(query, 4).unwrap();
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

    #[test]
    fn the_first_items_of_an_empty_shop_have_scores() {
        let empty = Lexical::build(std::iter::empty::<Result<String>>()).unwrap();
        let mut texts = UnindexedTexts::new(Language::English);
        texts.push("oak desk");
        texts.push(Passage { text: "lamp".into(), details: "oak".into() });
        let hits = empty.search_unindexed("oak", &texts).unwrap();
        assert!(hits.len() == 2 && hits[0].score > hits[1].score && hits[1].score > 0.0, "{hits:?}");
    }
}
