//! BM25 over product texts, the lexical channel of search. Takes the passages of a catalogue in order. Returns the rows
//! that share terms with a query, best first and independent of the number of threads, and the overlap of a query with
//! a text. An index never changes once built. `fusion` combines its hits with those of the dense channel.
//!
//! The score of an item is the sum, over the terms of the query, of `idf · tf / (tf + k1 · (1 − b + b · length /
//! mean))` with `idf = ln(1 + (N − df + 0.5) / (df + 0.5))`: as in Lucene, but with exact lengths. tantivy stores the
//! dictionary and the postings; its own scores are not used, because it rounds lengths above 40 terms.
//!
//! An item may have details beside its text (`Passage`), which count less, as a field does in BM25F (`norms`).
//!
//! ```
//! use souk_lexical::Lexical;
//!
//! let items = ["Red desk lamp", "Oak desk 120 cm"].map(|item| Ok(item.to_owned()));
//! let shop = Lexical::build(items.into_iter())?;
//! let hits = shop.search("desk lamps", 10)?;
//! assert_eq!(hits.iter().map(|hit| hit.row).collect::<Vec<_>>(), [0, 1]);
//! # Ok::<(), souk_io::error::Error>(())
//! ```

mod analyser;
mod features;
mod folder;
mod fusion;
mod language;
mod norms;
mod passage;
mod search;
mod spellings;
mod translations;
mod typos;
mod unindexed;
mod words;

use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tantivy::directory::RamDirectory;
use tantivy::index::InvertedIndexReader;
use tantivy::postings::TermInfo;

use analyser::Terms;
use norms::Norms;
use search::Searcher;
use souk_io::error::{Error, Result};

pub use features::{TermFeatures, TermMatcher};
pub use fusion::{
    ChannelHit, FUSION, FeatureWeights, FitQuality, FittedFusion, FittedOn, FusedHit, FusedPart, Fusion, Hybrid,
    JudgedCandidates, ModelFusion, NUM_FEATURES, TRANSLATION, USUAL_WEIGHTS, UsualWeights, Weights, candidates,
    cross_validate, fit, fuse, fusion_depth,
};
pub use language::Language;
pub use passage::Passage;
pub use translations::{QueryTranslations, TRANSLATIONS, TranslationPairs, Translations};
pub use unindexed::UnindexedTexts;

/// Upper bound of query terms, enough for any title; further terms are ignored.
const MAX_QUERY_TERMS: usize = 256;

/// Index terms of an English text, in order.
pub fn terms(text: &str) -> Vec<String> {
    terms_in(Language::English, text)
}

/// Index terms of a text, in order.
pub fn terms_in(language: Language, text: &str) -> Vec<String> {
    let mut terms = Terms::new(language);
    terms.read(text);
    terms.iter().map(str::to_owned).collect()
}

/// Options of scoring. The defaults are best for product titles, which are short and seldom repeat a word
/// (`docs/decisions/0024-lexical-defaults.md`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LexicalOptions {
    /// Saturation of term frequency, 0 to 100: the lower, the less repeated terms count.
    pub k1: f32,
    /// Length normalization, 0 (none) to 1 (full).
    pub b: f32,
    /// Replace a term that no item has by the nearest term of the index, and search other spellings of words too (`spellings`).
    pub typos: bool,
    /// Language of the items' texts and of the queries. `none` suits other languages, and catalogues in several.
    pub language: Language,
    /// Weight of a word in an item's other fields, such as brand and attributes, beside one in its text: 0 (these fields are not
    /// searched) to 1. Numbers, dates and addresses of pages and images are left out.
    pub details: f32,
}

impl Default for LexicalOptions {
    fn default() -> Self {
        Self { k1: 0.4, b: 0.75, typos: true, language: Language::English, details: 0.3 }
    }
}

impl LexicalOptions {
    /// Lucene's defaults, for comparisons with other engines.
    pub const LUCENE: Self = Self { k1: 1.2, b: 0.75, typos: false, language: Language::English, details: 0.0 };
}

/// Item that shares terms with the query; `row` is its row in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LexicalHit {
    pub row: u32,
    pub score: f32,
}

/// BM25 index of a catalogue.
pub struct Lexical {
    postings: Arc<InvertedIndexReader>,
    norms: Norms,
    options: LexicalOptions,
}

impl Lexical {
    /// Builds an index in memory from passages in catalogue order.
    pub fn build<P: Into<Passage>>(passages: impl Iterator<Item = Result<P>>) -> Result<Self> {
        Self::build_with(LexicalOptions::default(), passages)
    }

    pub fn build_with<P>(options: LexicalOptions, passages: impl Iterator<Item = Result<P>>) -> Result<Self>
    where
        P: Into<Passage>,
    {
        options.check()?;
        let index = folder::fill(RamDirectory::create(), options, passages)?;
        Self::open(&index, options)
    }

    /// Builds an index in a folder, which must be new or empty.
    pub fn build_in<P>(dir: &Path, options: LexicalOptions, passages: impl Iterator<Item = Result<P>>) -> Result<Self>
    where
        P: Into<Passage>,
    {
        options.check()?;
        folder::save(dir, options, passages)?;
        Self::load(dir)
    }

    /// Loads an index that `build_in` wrote.
    pub fn load(dir: &Path) -> Result<Self> {
        let (index, options) = folder::load(dir)?;
        Self::open(&index, options)
    }

    /// How it was built.
    pub fn options(&self) -> LexicalOptions {
        self.options
    }

    /// Language of its texts and queries.
    pub fn language(&self) -> Language {
        self.options.language
    }

    fn open(index: &tantivy::Index, options: LexicalOptions) -> Result<Self> {
        let (postings, lengths) = folder::read(index, options.has_details()).map_err(unreadable)?;
        Ok(Self { postings, norms: Norms::new(options, &lengths), options })
    }

    pub fn num_items(&self) -> u32 {
        self.norms.num_items() as u32
    }

    /// Best `k` rows that have a term of the query; equal scores are ordered by row.
    pub fn search(&self, query: &str, k: usize) -> Result<Vec<LexicalHit>> {
        Searcher::new(self).search(query, k)
    }

    /// Searches many queries on all cores; results are in the order of the queries.
    pub fn search_many(&self, queries: &[&str], k: usize) -> Result<Vec<Vec<LexicalHit>>> {
        search::search_many(self, queries, k)
    }

    /// Location of a term's postings, if an item has the term.
    fn term_info(&self, term: &str) -> Option<TermInfo> {
        self.postings.terms().get(term).ok().flatten()
    }

    /// Spelling correction of a term that no item has.
    fn correct(&self, term: &str) -> Result<Vec<String>> {
        if !self.options.typos {
            return Ok(Vec::new());
        }
        if self.language().is_everyday_word(term) {
            return Ok(Vec::new());
        }
        typos::correct(self.postings.terms(), term).map_err(unreadable)
    }

    /// ln(1 + (N − df + 0.5) / (df + 0.5))
    fn idf(&self, df: u32) -> f32 {
        let (items, df) = (f64::from(self.num_items()), f64::from(df));
        ((items - df + 0.5) / (df + 0.5)).ln_1p() as f32
    }
}

impl LexicalOptions {
    /// Whether details are searched.
    pub fn has_details(&self) -> bool {
        self.details > 0.0
    }

    fn check(&self) -> Result<()> {
        let problem = match self {
            Self { k1, .. } if !(0.0..=100.0).contains(k1) => format!("k1 = {k1}: set it to 0 to 100, such as 0.4"),
            Self { b, .. } if !(0.0..=1.0).contains(b) => format!("b = {b}: set it to 0 to 1, such as 0.75"),
            Self { details, .. } if !(0.0..=1.0).contains(details) => {
                format!("details = {details}: set it to 0 to 1, such as 0.3")
            }
            _ => return Ok(()),
        };
        Err(Error::config("lexical", problem))
    }
}

/// Error of tantivy. On an index in memory it only occurs if the machine fails.
fn unreadable(cause: impl Into<souk_io::error::Cause>) -> Error {
    Error::data(Path::new("lexical index"), None, "cannot be read or written: build it again").because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shop(texts: &[&str]) -> Lexical {
        Lexical::build_with(LexicalOptions::LUCENE, texts.iter().map(|text| Ok((*text).to_owned()))).unwrap()
    }

    fn rows(hits: &[LexicalHit]) -> Vec<u32> {
        hits.iter().map(|hit| hit.row).collect()
    }

    #[test]
    fn scores_are_bm25_by_hand() {
        // N = 3, lengths 3, 2 and 4, mean 3; oak is in two texts, desk in one
        let shop = shop(&["oak desk lamp", "oak chair", "red red red chair"]);
        let idf = |df: f64| (1.0 + (3.0 - df + 0.5) / (df + 0.5)).ln();
        let norm = |length: f64| 1.2 * (0.25 + 0.75 * length / 3.0);
        let expected = [
            ("oak desk", 0, idf(2.0) / (1.0 + norm(3.0)) + idf(1.0) / (1.0 + norm(3.0))),
            ("oak desk", 1, idf(2.0) / (1.0 + norm(2.0))),
            ("red", 2, idf(1.0) * 3.0 / (3.0 + norm(4.0))),
            ("red lamp red", 2, 2.0 * idf(1.0) * 3.0 / (3.0 + norm(4.0))),
        ];
        for (query, row, score) in expected {
            let hits = shop.search(query, 10).unwrap();
            let hit = hits.iter().find(|hit| hit.row == row).unwrap();
            assert!((f64::from(hit.score) - score).abs() < 1e-6, "{query}: {} is not {score}", hit.score);
        }
        assert_eq!(rows(&shop.search("oak desk", 10).unwrap()), [0, 1]);
        assert_eq!(rows(&shop.search("oak desk", 1).unwrap()), [0]);
        assert_eq!(shop.search("oak", 0).unwrap(), []);
        assert_eq!(shop.search("of the xylophone", 10).unwrap(), []);
    }

    #[test]
    fn equal_scores_are_in_catalogue_order_for_any_k() {
        let texts: Vec<String> = (0..20_000).map(|row| format!("oak {}", ["desk", "lamp"][row % 2])).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let shop = shop(&texts);
        assert_eq!(rows(&shop.search("desk", 3).unwrap()), [0, 2, 4]);
        let all = rows(&shop.search("desk", 20_000).unwrap());
        assert_eq!(all, (0..20_000).step_by(2).collect::<Vec<_>>());
        assert_eq!(rows(&shop.search("oak", 5).unwrap()), [0, 1, 2, 3, 4]);
        assert_eq!(rows(&shop.search("lamp oak", 10_002).unwrap())[9_998..], [19_997, 19_999, 0, 2]);
    }

    #[test]
    fn search_many_equals_single_searches() {
        let shop = shop(&["oak desk", "pine desk", "", "oak"]);
        assert_eq!(shop.num_items(), 4);
        let queries = ["desk", "", "oak", "pine oak desk"];
        let each: Vec<_> = queries.iter().map(|query| shop.search(query, 2).unwrap()).collect();
        assert_eq!(shop.search_many(&queries, 2).unwrap(), each);
        assert_eq!(shop.search_many(&[], 2).unwrap(), Vec::<Vec<LexicalHit>>::new());
    }

    #[test]
    fn details_are_bm25f_by_hand() {
        let item = |text: &str, details: &str| Ok(Passage { text: text.into(), details: details.into() });
        let items = [
            item("oak desk lamp", "white white white white"),
            item("oak chair", "white Acme"),
            item("white wall paint", ""),
            item("", "Acme lamp"),
        ];
        let options = LexicalOptions { details: 0.25, ..LexicalOptions::LUCENE };
        let shop = Lexical::build_with(options, items.into_iter()).unwrap();
        let idf = |df: f64| (1.0 + (4.0 - df + 0.5) / (df + 0.5)).ln();
        // mean lengths are 8 / 4 and 7 / 4, since a term of the details counts three times at most
        let text = |count: f64, length: f64| count / (0.25 + 0.75 * length / 2.0);
        let details = |count: f64, length: f64| 0.25 * count / (0.25 + 0.75 * length / 1.75);
        let expected = [
            ("white", 0, idf(3.0), details(3.0, 3.0)),
            ("white", 1, idf(3.0), details(1.0, 2.0)),
            ("white", 2, idf(3.0), text(1.0, 3.0)),
            ("lamp", 0, idf(2.0), text(1.0, 3.0)),
            ("lamp", 3, idf(2.0), details(1.0, 2.0)),
            ("Acme oak", 1, idf(2.0), details(1.0, 2.0)),
        ];
        for (query, row, idf, count) in expected {
            let mut score = idf * count / (count + 1.2);
            if query == "Acme oak" {
                score += idf * text(1.0, 2.0) / (text(1.0, 2.0) + 1.2);
            }
            let hits = shop.search(query, 10).unwrap();
            let hit = hits.iter().find(|hit| hit.row == row).unwrap();
            assert!((f64::from(hit.score) - score).abs() < 1e-6, "{query}: {} is not {score}", hit.score);
        }
        assert_eq!(rows(&shop.search("white", 10).unwrap()), [2, 0, 1]);
    }

    #[test]
    fn a_term_in_details_scores_even_if_lengths_or_repetitions_do_not_count() {
        let items = || {
            [("", "oak"), ("oak", "")].map(|(text, details)| Ok(Passage { text: text.into(), details: details.into() }))
        };
        for (k1, b) in [(0.0, 0.75), (1.2, 1.0), (0.0, 1.0), (1.2, 0.0)] {
            let options = LexicalOptions { k1, b, ..LexicalOptions::default() };
            let hits = Lexical::build_with(options, items().into_iter()).unwrap().search("oak", 2).unwrap();
            assert!(
                hits.len() == 2 && hits.iter().all(|hit| hit.score > 0.0 && hit.score.is_finite()),
                "{k1} {b}: {hits:?}"
            );
        }
    }

    #[test]
    fn empty_catalogue_returns_no_hits() {
        let shop = shop(&[]);
        assert_eq!(shop.num_items(), 0);
        assert_eq!(shop.search("oak", 3).unwrap(), []);
    }

    #[test]
    fn build_returns_errors_of_texts_and_options() {
        let texts = [Ok("oak".to_owned()), Err(Error::input("no more"))];
        assert_eq!(Lexical::build(texts.into_iter()).err().unwrap().to_string(), "no more");
        let options = LexicalOptions { b: 2.0, ..LexicalOptions::default() };
        let error = Lexical::build_with(options, std::iter::empty::<Result<String>>()).err().unwrap();
        assert_eq!(error.to_string(), "lexical: b = 2: set it to 0 to 1, such as 0.75");
    }
}
