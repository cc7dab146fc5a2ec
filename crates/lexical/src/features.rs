//! How well an item matches the words of a query: features that `fitted` weighs. Takes a query once and any number of items. Knows
//! nothing of scores or ranks.

use super::analyser::Terms;
use super::translations::probability;
use super::{Language, Lexical, LexicalOptions, MAX_QUERY_TERMS, QueryTranslations, Translations};
use souk_io::fnv::hash_text;
use souk_io::splitmix::mix;

/// Letters of a trigram, 21 bits each.
const LETTER_BITS: u32 = 21;
const TRIGRAM: usize = 3;
/// Share of a query's terms that the item itself has, against translations of its terms.
const OWN_TERMS: f32 = 0.5;
/// Share of a query's terms that no item explains.
const BACKGROUND: f32 = 0.02;

/// How well an item matches a query by its text and its details.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TermFeatures {
    /// Fraction of the query's terms, weighted by idf, that the item has. A term that no item has gets the largest weight. 0 for a
    /// query without terms.
    pub overlap: f32,
    /// Fraction of the query's sequences of three letters that the item has, which forgives typos and joined words.
    pub trigrams: f32,
    /// Number of the query's numbers that the item lacks.
    pub missing_numbers: f32,
    /// How much likelier the query's terms are from the terms of the item's text, and from their translations, than from all items:
    /// the mean of ln(1 + 0.98 p / (0.02 b)). 0 without translations.
    pub translation: f32,
}

/// A query, prepared to be compared with texts.
#[derive(Clone)]
pub struct TermMatcher {
    terms: Vec<QueryTerm>,
    /// Sorted.
    trigrams: Vec<u64>,
    /// A bit for each of them, by `filter_bit`: most of a text's trigrams need no search.
    trigram_filter: [u64; 4],
    text: Words,
    details: Words,
    has_details: bool,
    /// Whether there are any translations.
    translates: bool,
}

/// Terms of a text, and their hashes.
#[derive(Clone)]
struct Words {
    terms: Terms,
    hashes: Vec<u64>,
}

/// A term and its hash, which is compared first.
#[derive(Clone)]
struct HashedTerm {
    hash: u64,
    text: String,
}

#[derive(Clone)]
struct QueryTerm {
    term: HashedTerm,
    /// Weight if the item has the term.
    weight: f32,
    /// Terms that stand for a misspelled one, and the weight if the item lacks the term itself.
    corrected: Vec<HashedTerm>,
    corrected_weight: f32,
    translations: QueryTranslations,
    /// The term's share of the terms of all items.
    background: f32,
}

impl TermMatcher {
    /// Prepares a query for an index that does not tell how common its terms are: all weigh the same, and translations say nothing.
    pub fn unweighted(language: Language, query: &str) -> Self {
        let options = LexicalOptions { language, details: 0.0, ..LexicalOptions::default() };
        Self::new(options, query, |term| QueryTerm {
            term: HashedTerm::new(term.to_owned()),
            weight: 1.0,
            corrected: Vec::new(),
            corrected_weight: 1.0,
            translations: QueryTranslations::default(),
            background: 1.0,
        })
    }

    fn new(options: LexicalOptions, query: &str, query_term: impl Fn(&str) -> QueryTerm) -> Self {
        let mut text = Words::new(options.language);
        let details = text.clone();
        text.read(query);
        let mut terms: Vec<QueryTerm> = Vec::new();
        for term in text.terms.iter().take(MAX_QUERY_TERMS) {
            if terms.iter().all(|known| known.term.text != term) {
                terms.push(query_term(term));
            }
        }
        let mut trigrams: Vec<u64> = trigrams(text.terms.folded()).collect();
        trigrams.sort_unstable();
        trigrams.dedup();
        let mut trigram_filter = [0; 4];
        for trigram in &trigrams {
            let (word, bit) = filter_bit(*trigram);
            trigram_filter[word] |= bit;
        }
        Self { terms, trigrams, trigram_filter, text, details, has_details: options.has_details(), translates: false }
    }

    /// Compares with translations of the text's terms too.
    pub fn with_translations(mut self, translations: &Translations) -> Self {
        self.translates = !translations.is_empty();
        self.terms.iter_mut().for_each(|term| term.translations = translations.of(&term.term.text));
        self
    }

    /// Whether the details of items say anything.
    pub fn has_details(&self) -> bool {
        self.has_details
    }

    /// Compares an item's text and its details.
    pub fn compare(&mut self, text: &str, details: &str) -> TermFeatures {
        self.text.read(text);
        self.details.read(if self.has_details { details } else { "" });
        let has = |term: &HashedTerm| self.text.has(term) || self.details.has(term);
        let (mut matched, mut total, mut missing_numbers) = (0.0, 0.0, 0.0);
        for QueryTerm { term, weight, corrected, corrected_weight, .. } in &self.terms {
            let has_term = has(term);
            let has_any = has_term || !corrected.is_empty() && corrected.iter().all(has);
            let weight = if has_term { *weight } else { *corrected_weight };
            total += weight;
            matched += if has_any { weight } else { 0.0 };
            missing_numbers += f32::from(!has_term && term.text.starts_with(|letter: char| letter.is_ascii_digit()));
        }
        let overlap = if total > 0.0 { matched / total } else { 0.0 };
        let translation = if self.translates { self.translation() } else { 0.0 };
        TermFeatures { overlap, trigrams: self.trigram_share(), missing_numbers, translation }
    }

    /// Share of the query's trigrams that the text just read or its details have.
    fn trigram_share(&self) -> f32 {
        let mut found = vec![false; self.trigrams.len()];
        for trigram in [&self.text, &self.details].into_iter().flat_map(|words| trigrams(words.terms.folded())) {
            let (word, bit) = filter_bit(trigram);
            if self.trigram_filter[word] & bit != 0
                && let Ok(at) = self.trigrams.binary_search(&trigram)
            {
                found[at] = true;
            }
        }
        let num = found.iter().filter(|found| **found).count();
        num as f32 / self.trigrams.len().max(1) as f32
    }

    /// The feature `translation` of the text just read.
    fn translation(&self) -> f32 {
        let of_text = self.text.hashes.iter().enumerate().map(|(at, hash)| (*hash, self.text.terms.get(at)));
        let mut of_text: Vec<(u64, &str)> = of_text.collect();
        of_text.sort_unstable();
        of_text.dedup();
        let (num_terms, num_query_terms) = (of_text.len().max(1) as f32, self.terms.len().max(1) as f32);
        let log_ratio = |QueryTerm { term, translations, background, .. }: &QueryTerm| {
            let (mut own, mut translated) = (0.0, 0.0);
            for (hash, of_item) in &of_text {
                if *hash == term.hash && *of_item == term.text {
                    own = 1.0;
                } else {
                    translated += probability(translations, of_item, *hash).unwrap_or(0.0);
                }
            }
            let p = (OWN_TERMS * own + (1.0 - OWN_TERMS) * translated) / num_terms;
            ((1.0 - BACKGROUND) * p / (BACKGROUND * background)).ln_1p()
        };
        self.terms.iter().map(log_ratio).sum::<f32>() / num_query_terms
    }
}

impl Lexical {
    /// Prepares a query to be compared with texts.
    pub fn matcher(&self, query: &str) -> TermMatcher {
        TermMatcher::new(self.options, query, |term| self.query_term(term))
    }

    fn query_term(&self, term: &str) -> QueryTerm {
        let doc_freq = self.term_info(term).map_or(0, |info| info.doc_freq);
        let weight = self.idf(doc_freq);
        let corrected = if doc_freq > 0 { Vec::new() } else { self.correct(term).unwrap_or_default() };
        let weights = corrected.iter().filter_map(|term| self.term_info(term)).map(|info| self.idf(info.doc_freq));
        let corrected_weight = weights.reduce(|a, b| a + b).unwrap_or(weight);
        let num_terms = self.norms.num_terms().max(1.0);
        let background = ((f64::from(doc_freq) + 0.5) / num_terms) as f32;
        let translations = QueryTranslations::default();
        let corrected = corrected.into_iter().map(HashedTerm::new).collect();
        let term = HashedTerm::new(term.to_owned());
        QueryTerm { term, weight, corrected, corrected_weight, translations, background }
    }
}

impl Words {
    fn new(language: Language) -> Self {
        Self { terms: Terms::new(language), hashes: Vec::new() }
    }

    fn read(&mut self, text: &str) {
        self.terms.read(text);
        self.hashes.clear();
        self.hashes.extend(self.terms.iter().map(hash_text));
    }

    fn has(&self, HashedTerm { hash, text }: &HashedTerm) -> bool {
        let same = self.hashes.iter().enumerate().filter(|(_, own)| *own == hash);
        same.map(|(at, _)| self.terms.get(at)).any(|term| term == text)
    }
}

impl HashedTerm {
    fn new(text: String) -> Self {
        Self { hash: hash_text(&text), text }
    }
}

/// A bit of the filter: the word that it is in, and its mask.
fn filter_bit(trigram: u64) -> (usize, u64) {
    let hash = mix(trigram);
    ((hash >> 62) as usize, 1 << (hash >> 56 & 63))
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
    use crate::Passage;

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
            let found = shop.matcher(query).compare(text, "").overlap;
            assert!((found - expected).abs() < 1e-6, "{query} in {text}: {found} is not {expected}");
        }
    }

    #[test]
    fn terms_without_weights_count_alike() {
        let compared = TermMatcher::unweighted(Language::English, "oak desk 120").compare("an oak table, 120 cm", "");
        assert_eq!((compared.overlap, compared.missing_numbers), (2.0 / 3.0, 0.0));
    }

    #[test]
    fn a_typo_counts_like_its_correction_or_as_itself() {
        let texts = ["toilet seat", "lawn mower", "oak desk"].into_iter().map(|text| Ok(text.to_owned()));
        let tolerant = Lexical::build(texts).unwrap();
        let overlap = |shop: &Lexical, text: &str| shop.matcher("toliet seat").compare(text, "").overlap;
        assert_eq!(overlap(&tolerant, "toilet seat"), 1.0);
        assert_eq!(overlap(&tolerant, "toliet seat"), 1.0, "the text has the typo itself");
        assert!(overlap(&shop(&["toilet seat", "lawn mower", "oak desk"]), "toilet seat") < 0.5);
    }

    #[test]
    fn translation_by_hand() {
        // 6 terms in all, of which oak has 2 and desk 1
        let shop = shop(&["oak desk lamp", "oak chair table"]);
        let home = tempfile::tempdir().unwrap();
        let text = "query\titem\tprobability\ndesk\ttable\t0.25\ndesk\toak\t0.125\nsofa\tchair\t0.5\n";
        std::fs::write(home.path().join(crate::TRANSLATIONS), text).unwrap();
        let translations = Translations::load(home.path()).unwrap();
        let part = |p: f32, df: f32| (1.0 + 0.98 * p / (0.02 * (df + 0.5) / 6.0)).ln();
        for (query, text, expected) in [
            ("desk", "oak chair table", part(0.5 * (0.25 + 0.125) / 3.0, 1.0)),
            ("desk", "desk", part(0.5, 1.0)),
            ("desk desk", "oak oak desk", part((0.5 + 0.5 * 0.125) / 2.0, 1.0)),
            ("oak desk", "table", part(0.5 * 0.25, 1.0) / 2.0),
            ("sofa", "red chair", part(0.5 * 0.5 / 2.0, 0.0)),
            ("oak", "", 0.0),
            ("", "oak", 0.0),
        ] {
            let found = shop.matcher(query).with_translations(&translations).compare(text, "").translation;
            assert!((found - expected).abs() < 1e-5, "{query} in {text}: {found} is not {expected}");
            assert_eq!(shop.matcher(query).compare(text, "").translation, 0.0);
        }
    }

    #[test]
    fn trigrams_and_numbers_by_hand() {
        let shop = shop(&["oak desk 120 cm"]);
        // `oak desk`: oak, ak_, k_d, _de, des, esk
        let trigrams = |text: &str| shop.matcher("oak desk").compare(text, "").trigrams;
        assert_eq!(trigrams("Oak desk"), 1.0);
        assert_eq!(trigrams("oakdesk"), 3.0 / 6.0);
        assert_eq!(trigrams("oa"), 0.0);
        assert_eq!(shop.matcher("ok").compare("oak", ""), TermFeatures::default(), "too short for a trigram");
        let missing = |query: &str, text: &str| shop.matcher(query).compare(text, "").missing_numbers;
        assert_eq!(missing("2x4 stud 8 ft", "2 in. x 4 in. x 96 in. stud"), 1.0);
        assert_eq!(missing("1/2 in. pipe", "3/4 in. pipe"), 1.0);
        assert_eq!(missing("oak desk", "lamp"), 0.0);
    }

    #[test]
    fn details_count_like_the_text_but_not_for_translations() {
        let passage = |(text, details): (&str, &str)| Ok(Passage { text: text.into(), details: details.into() });
        let items = [("oak desk 120", "Acme solid"), ("pine chair", "")];
        let build = |details| {
            let options = LexicalOptions { details, ..LexicalOptions::default() };
            Lexical::build_with(options, items.into_iter().map(passage)).unwrap()
        };
        let compared =
            |shop: &Lexical, query: &str, (text, details): (&str, &str)| shop.matcher(query).compare(text, details);
        let shop = build(0.3);
        for query in ["acme desk", "Acme 120", "solid", "acmee"] {
            let found = compared(&shop, query, items[0]);
            assert_eq!((found.overlap, found.missing_numbers), (1.0, 0.0), "{query}");
            assert!(compared(&build(0.0), query, items[0]).overlap < 1.0, "{query} without details");
        }
        assert_eq!(compared(&shop, "acme", items[0]).trigrams, 1.0);
        assert_eq!(compared(&shop, "8 acme", ("desk", "8 Acme")).missing_numbers, 0.0);
        assert_eq!(compared(&build(0.0), "8 acme", ("desk", "8 Acme")).missing_numbers, 1.0);
    }
}
