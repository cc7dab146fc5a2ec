//! Other spellings of a query's words. Takes the terms of a query; returns the terms of the index to search for it, each with the number
//! of times that it counts. Numbers and model numbers have no other spelling.
//!
//! | query | also searched | counts |
//! |---|---|---|
//! | `toliet`, if no item has it | `toilet` (`typos`) | as the word itself |
//! | `dish washer` | `dishwasher`, if no fewer items have it than the rarer of its parts | 1 |
//! | `doorbell`, if few items have it | `door`, `bell` | 0.5 each |
//! | `steele`, if hardly any item has it | `steel`, if many have it | 0.5 |

use tantivy::postings::TermInfo;

use super::analyser::Terms;
use super::{Lexical, MAX_QUERY_TERMS, typos, unreadable};
use souk_io::error::Result;

const JOINED: f32 = 1.0;
const SPLIT: f32 = 0.5;
const COMMON: f32 = 0.5;

/// A word that fewer items have is also split in two.
const MAX_ITEMS_TO_SPLIT: u32 = 20;
/// Minimum items of each part.
const MIN_ITEMS_OF_PART: u32 = 10;
/// A word that at most this many items have may be a typing error that some item shares.
const MAX_ITEMS_OF_TYPO: u32 = 3;
/// How many times as many items must have the word that was probably meant.
const TIMES_AS_COMMON: u32 = 20;

/// Term of the index to search for a query.
pub struct SearchTerm {
    pub term: String,
    pub info: TermInfo,
    /// How many times the query has it; a fraction for another spelling.
    pub count: f32,
}

impl Lexical {
    /// Terms to search for the first `MAX_QUERY_TERMS` of a query, each once.
    pub fn search_terms(&self, terms: &Terms) -> Result<Vec<SearchTerm>> {
        let num_terms = terms.len().min(MAX_QUERY_TERMS);
        let mut found = Vec::with_capacity(num_terms);
        for term in terms.iter().take(num_terms) {
            if !self.add(&mut found, term, 1.0) {
                for corrected in self.correct(term)? {
                    self.add(&mut found, &corrected, 1.0);
                }
            }
        }
        if !self.options.typos {
            return Ok(found);
        }
        let known: Vec<(String, u32)> = found.iter().map(|known| (known.term.clone(), known.info.doc_freq)).collect();
        for at in 1..num_terms {
            if let Some(joined) = self.joined(terms.get(at - 1), terms.get(at)) {
                self.add(&mut found, &joined, JOINED);
            }
        }
        for (term, num_items) in known.iter().filter(|(term, _)| is_word(term)) {
            for (other, weight) in self.meant(term, *num_items)? {
                self.add(&mut found, &other, weight);
            }
        }
        Ok(found)
    }

    /// Two words written as one, if items usually have it so.
    fn joined(&self, left: &str, right: &str) -> Option<String> {
        let joined = Some([left, right].concat()).filter(|_| is_word(left) && is_word(right))?;
        let num_items = |term: &str| self.term_info(term).map_or(0, |info| info.doc_freq);
        (num_items(&joined) >= num_items(left).min(num_items(right)).max(1)).then_some(joined)
    }

    /// Words that a rare one may stand for: a more common one, or two.
    fn meant(&self, term: &str, num_items: u32) -> Result<Vec<(String, f32)>> {
        let mut meant = Vec::new();
        if num_items <= MAX_ITEMS_OF_TYPO {
            let common = typos::common(self.postings.terms(), term, TIMES_AS_COMMON * num_items).map_err(unreadable)?;
            meant.extend(common.map(|word| (word, COMMON)));
        }
        if num_items < MAX_ITEMS_TO_SPLIT {
            let parts = typos::split(self.postings.terms(), term, MIN_ITEMS_OF_PART).map_err(unreadable)?;
            meant.extend(parts.into_iter().map(|part| (part, SPLIT)));
        }
        Ok(meant)
    }

    /// Returns whether an item has the term.
    fn add(&self, found: &mut Vec<SearchTerm>, term: &str, count: f32) -> bool {
        if let Some(known) = found.iter_mut().find(|known| known.term == term) {
            known.count += count;
            return true;
        }
        let Some(info) = self.term_info(term) else { return false };
        found.push(SearchTerm { term: term.to_owned(), info, count });
        true
    }
}

fn is_word(term: &str) -> bool {
    term.chars().all(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LexicalOptions;

    /// A shop with these words, each in so many items.
    fn shop(options: LexicalOptions, words: &[(&str, usize)]) -> Lexical {
        let texts =
            words.iter().flat_map(|(word, num)| std::iter::repeat_n(*word, *num).map(|word| Ok(word.to_owned())));
        Lexical::build_with(options, texts).unwrap()
    }

    fn searched(shop: &Lexical, query: &str) -> Vec<(String, f32)> {
        let mut terms = Terms::new(shop.language());
        terms.read(query);
        shop.search_terms(&terms).unwrap().into_iter().map(|found| (found.term, found.count)).collect()
    }

    fn pairs(terms: &[(&str, f32)]) -> Vec<(String, f32)> {
        terms.iter().map(|(term, count)| ((*term).to_owned(), *count)).collect()
    }

    #[test]
    fn words_are_corrected_joined_and_split() {
        let words = [
            ("dish", 40),
            ("dishwasher", 30),
            ("washer", 30),
            ("lawn", 40),
            ("lawnmower", 29),
            ("mower", 30),
            ("doorbell", 19),
            ("door", 10),
            ("bell", 10),
            ("steele", 3),
            ("steel", 60),
            ("wd-40", 1),
        ];
        let shop = shop(LexicalOptions::default(), &words);
        for (query, expected) in [
            ("dish dish", &[("dish", 2.0)][..]),
            ("stele", &[("steel", 1.0)]),
            ("dish washer", &[("dish", 1.0), ("washer", 1.0), ("dishwasher", 1.0)]),
            ("lawn mower", &[("lawn", 1.0), ("mower", 1.0)]),
            ("doorbell", &[("doorbell", 1.0), ("door", 0.5), ("bell", 0.5)]),
            ("doorbell door", &[("doorbell", 1.0), ("door", 1.5), ("bell", 0.5)]),
            ("steele", &[("steele", 1.0), ("steel", 0.5)]),
            ("wd 40", &[("wd", 1.0), ("40", 1.0)]),
        ] {
            assert_eq!(searched(&shop, query), pairs(expected), "{query}");
        }
    }

    #[test]
    fn common_words_mean_themselves() {
        let shop = shop(
            LexicalOptions::default(),
            &[("doorbell", 20), ("door", 30), ("bell", 30), ("steele", 4), ("steel", 99)],
        );
        assert_eq!(searched(&shop, "doorbell"), pairs(&[("doorbell", 1.0)]));
        assert_eq!(searched(&shop, "steele"), pairs(&[("steele", 1.0)]));
    }

    #[test]
    fn without_typos_only_the_words_themselves_are_searched() {
        let shop = shop(LexicalOptions::LUCENE, &[("dish", 1), ("dishwasher", 1), ("washer", 1)]);
        assert_eq!(searched(&shop, "dish washer dsih"), pairs(&[("dish", 1.0), ("washer", 1.0)]));
    }

    #[test]
    fn two_words_find_what_is_written_as_one() {
        let shop = shop(LexicalOptions::default(), &[("oak desk", 5), ("dishwasher", 5)]);
        assert_eq!(shop.search("dish washer", 10).unwrap(), shop.search("dishwasher", 10).unwrap());
    }
}
