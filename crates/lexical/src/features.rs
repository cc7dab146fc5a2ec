//! How well a text matches the words of a query: features between 0 and 1 (a count for numbers) that `fitted` weighs. Takes a query
//! once and any number of texts. Knows nothing of scores or ranks.

use super::analyser::Terms;
use super::{Lexical, MAX_QUERY_TERMS};

/// Letters of a trigram, 21 bits each.
const LETTER_BITS: u32 = 21;
const TRIGRAM: usize = 3;

/// How well a text matches a query.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TermFeatures {
    /// Fraction of the query's terms, weighted by idf, that the text has. A term that no item has gets the largest weight. 0 for a
    /// query without terms.
    pub overlap: f32,
    /// Fraction of the query's sequences of three letters that the text has, which forgives typos and joined words.
    pub trigrams: f32,
    /// Number of the query's numbers that the text lacks.
    pub missing_numbers: f32,
}

/// A query, prepared to be compared with texts.
#[derive(Clone)]
pub struct TermMatcher {
    terms: Vec<QueryTerm>,
    /// Sorted.
    trigrams: Vec<u64>,
    text: Terms,
}

#[derive(Clone)]
struct QueryTerm {
    term: String,
    /// Weight if the text has the term.
    weight: f32,
    /// Terms that stand for a misspelled one, and the weight if the text lacks the term itself.
    corrected: Vec<String>,
    corrected_weight: f32,
}

impl TermMatcher {
    fn new(lexical: &Lexical, query: &str) -> Self {
        let mut text = Terms::default();
        text.read(query);
        let mut terms: Vec<QueryTerm> = Vec::new();
        for term in text.iter().take(MAX_QUERY_TERMS) {
            if terms.iter().all(|known| known.term != term) {
                terms.push(lexical.query_term(term));
            }
        }
        let mut trigrams: Vec<u64> = trigrams(text.folded()).collect();
        trigrams.sort_unstable();
        trigrams.dedup();
        Self { terms, trigrams, text }
    }

    pub fn compare(&mut self, text: &str) -> TermFeatures {
        self.text.read(text);
        let mut of_text: Vec<&str> = self.text.iter().collect();
        of_text.sort_unstable();
        let has = |term: &str| of_text.binary_search(&term).is_ok();
        let (mut matched, mut total, mut missing_numbers) = (0.0, 0.0, 0.0);
        for QueryTerm { term, weight, corrected, corrected_weight } in &self.terms {
            let has_term = has(term);
            let has_any = has_term || !corrected.is_empty() && corrected.iter().all(|term| has(term));
            let weight = if has_term { *weight } else { *corrected_weight };
            total += weight;
            matched += if has_any { weight } else { 0.0 };
            missing_numbers += f32::from(!has_term && term.starts_with(|letter: char| letter.is_ascii_digit()));
        }
        let overlap = if total > 0.0 { matched / total } else { 0.0 };
        TermFeatures { overlap, trigrams: self.trigram_share(), missing_numbers }
    }

    /// Share of the query's trigrams that the text just read has.
    fn trigram_share(&self) -> f32 {
        let mut found = vec![false; self.trigrams.len()];
        for trigram in trigrams(self.text.folded()) {
            if let Ok(at) = self.trigrams.binary_search(&trigram) {
                found[at] = true;
            }
        }
        let num = found.iter().filter(|found| **found).count();
        num as f32 / self.trigrams.len().max(1) as f32
    }
}

impl Lexical {
    /// Prepares a query to be compared with texts.
    pub fn matcher(&self, query: &str) -> TermMatcher {
        TermMatcher::new(self, query)
    }

    fn query_term(&self, term: &str) -> QueryTerm {
        let known = self.term_info(term).map(|info| self.idf(info.doc_freq));
        let weight = known.unwrap_or(self.idf(0));
        let corrected = if known.is_some() { Vec::new() } else { self.correct(term).unwrap_or_default() };
        let weights = corrected.iter().filter_map(|term| self.term_info(term)).map(|info| self.idf(info.doc_freq));
        let corrected_weight = weights.reduce(|a, b| a + b).unwrap_or(weight);
        QueryTerm { term: term.to_owned(), weight, corrected, corrected_weight }
    }
}

/// Each three neighbouring letters, spaces included.
fn trigrams(text: &str) -> impl Iterator<Item = u64> {
    let mut window = 0_u64;
    text.chars().enumerate().filter_map(move |(at, letter)| {
        window = (window << LETTER_BITS | u64::from(u32::from(letter))) & ((1 << (LETTER_BITS * TRIGRAM as u32)) - 1);
        (at + 1 >= TRIGRAM).then_some(window)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LexicalOptions;

    fn shop(texts: &[&str]) -> Lexical {
        Lexical::build_with(LexicalOptions::LUCENE, texts.iter().map(|text| Ok((*text).to_owned()))).unwrap()
    }

    #[test]
    fn overlap_weights_terms_by_idf() {
        let shop = shop(&["oak desk lamp", "oak chair", "red red red chair"]);
        let idf = |df: f32| (1.0 + (3.0 - df + 0.5) / (df + 0.5)).ln();
        let (oak, desk, unknown) = (idf(2.0), idf(1.0), idf(0.0));
        for (query, text, expected) in [
            ("oak desk", "an oak table", oak / (oak + desk)),
            ("oak oak desk", "oak desks, two", 1.0),
            ("oak desk", "red chair", 0.0),
            ("oak xylophone", "oak desk", oak / (oak + unknown)),
            ("of the", "of the", 0.0),
        ] {
            let found = shop.matcher(query).compare(text).overlap;
            assert!((found - expected).abs() < 1e-6, "{query} in {text}: {found} is not {expected}");
        }
    }

    #[test]
    fn a_typo_counts_like_its_correction_or_as_itself() {
        let texts = ["toilet seat", "lawn mower", "oak desk"].into_iter().map(|text| Ok(text.to_owned()));
        let tolerant = Lexical::build(texts).unwrap();
        let overlap = |shop: &Lexical, text: &str| shop.matcher("toliet seat").compare(text).overlap;
        assert_eq!(overlap(&tolerant, "toilet seat"), 1.0);
        assert_eq!(overlap(&tolerant, "toliet seat"), 1.0, "the text has the typo itself");
        assert!(overlap(&shop(&["toilet seat", "lawn mower", "oak desk"]), "toilet seat") < 0.5);
    }

    #[test]
    fn trigrams_and_numbers_by_hand() {
        let shop = shop(&["oak desk 120 cm"]);
        // `oak desk`: oak, ak_, k_d, _de, des, esk
        let trigrams = |text: &str| shop.matcher("oak desk").compare(text).trigrams;
        assert_eq!(trigrams("Oak desk"), 1.0);
        assert_eq!(trigrams("oakdesk"), 3.0 / 6.0);
        assert_eq!(trigrams("oa"), 0.0);
        assert_eq!(shop.matcher("ok").compare("oak"), TermFeatures::default(), "too short for a trigram");
        let missing = |query: &str, text: &str| shop.matcher(query).compare(text).missing_numbers;
        assert_eq!(missing("2x4 stud 8 ft", "2 in. x 4 in. x 96 in. stud"), 1.0);
        assert_eq!(missing("1/2 in. pipe", "3/4 in. pipe"), 1.0);
        assert_eq!(missing("oak desk", "lamp"), 0.0);
    }
}
