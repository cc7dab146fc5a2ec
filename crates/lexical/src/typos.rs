//! What a shopper meant. Takes a word that no item has, gives the word or the two words of the dictionary it is nearest
//! to. It never changes a number or a model number, nor the first letter.

use tantivy::Term;
use tantivy::query::FuzzyTermQuery;
use tantivy::schema::Field;
use tantivy::termdict::TermDictionary;

/// A shorter word has neighbours of every meaning.
const MIN_LETTERS: usize = 4;
/// Up to so many letters one slip is allowed, beyond two.
const MAX_LETTERS_OF_ONE_SLIP: usize = 5;
/// Words that were written in one have so many letters each.
const MIN_LETTERS_OF_PART: usize = 3;

/// The terms to search instead of `word`; none where nothing is near.
pub fn read_as(dictionary: &TermDictionary, word: &str) -> tantivy::Result<Vec<String>> {
    let letters = word.chars().count();
    if letters < MIN_LETTERS || !word.chars().all(char::is_alphabetic) {
        return Ok(Vec::new());
    }
    let slips = if letters > MAX_LETTERS_OF_ONE_SLIP { 2 } else { 1 };
    for distance in 1..=slips {
        if let Some(near) = nearest(dictionary, word, distance)? {
            return Ok(vec![near]);
        }
    }
    split(dictionary, word)
}

/// Of the words at most so many slips away, the one that most items have; of two such the first in the alphabet.
fn nearest(dictionary: &TermDictionary, word: &str, distance: u8) -> tantivy::Result<Option<String>> {
    // the automaton reads the text alone, so any field does
    let term = Term::from_field_text(Field::from_field_id(0), word);
    let automaton = FuzzyTermQuery::new(term, distance, true).automaton()?;
    let first = word.chars().next().map_or(0, char::len_utf8);
    // no UTF-8 has the byte 0xff
    let last = [&word.as_bytes()[..first], &[0xff]].concat();
    let mut near = dictionary.search(automaton).ge(&word[..first]).lt(last).into_stream()?;
    let mut best: Option<(u32, String)> = None;
    while near.advance() {
        let Ok(found) = std::str::from_utf8(near.key()) else { continue };
        let df = near.value().doc_freq;
        if found.chars().all(char::is_alphabetic) && best.as_ref().is_none_or(|(most, _)| df > *most) {
            best = Some((df, found.to_owned()));
        }
    }
    Ok(best.map(|(_, found)| found))
}

/// The two words that `word` is made of: those whose rarer one most items have.
fn split(dictionary: &TermDictionary, word: &str) -> tantivy::Result<Vec<String>> {
    let letters = word.chars().count();
    let mut best = None;
    for (number, (at, _)) in word.char_indices().enumerate() {
        if number < MIN_LETTERS_OF_PART || number + MIN_LETTERS_OF_PART > letters {
            continue;
        }
        let (Some(left), Some(right)) = (dictionary.get(&word[..at])?, dictionary.get(&word[at..])?) else { continue };
        let rarer = left.doc_freq.min(right.doc_freq);
        if best.is_none_or(|(most, _)| rarer > most) {
            best = Some((rarer, at));
        }
    }
    Ok(best.map_or_else(Vec::new, |(_, at)| vec![word[..at].to_owned(), word[at..].to_owned()]))
}

#[cfg(test)]
mod tests {
    use crate::{Lexical, LexicalOptions};

    fn shop(texts: &[&str]) -> Lexical {
        let options = LexicalOptions { typos: true, ..LexicalOptions::default() };
        Lexical::build_with(options, texts.iter().map(|text| Ok((*text).to_owned()))).unwrap()
    }

    #[test]
    fn a_word_is_read_as_the_nearest_that_is_known() {
        let shop =
            shop(&["toilet seat", "toilet brush", "toiled cloth", "wd-40 lawn oil", "mower", "door", "poor box"]);
        let read = |word: &str| shop.meant(word).unwrap();
        assert_eq!(read("toliet"), ["toilet"], "two letters the other way round");
        assert_eq!(read("toiletd"), ["toilet"], "one slip before two, and the more common word");
        assert_eq!(read("toilexx"), ["toilet"], "two slips");
        assert_eq!(read("moxxr"), [""; 0], "two slips in a short word");
        assert_eq!(read("foor"), [""; 0], "the first letter stays");
        assert_eq!(read("lawnmower"), ["lawn", "mower"]);
        assert_eq!(read("wd41"), [""; 0], "a model number stays");
        assert_eq!(read("oik"), [""; 0], "a short word stays");
    }

    #[test]
    fn a_typo_scores_and_overlaps_as_what_was_meant() {
        let shop = shop(&["toilet seat", "lawn mower", "oak desk"]);
        assert_eq!(shop.search("toliet saet", 5).unwrap(), shop.search("toilet seat", 5).unwrap());
        assert_eq!(shop.overlap("toliet seat", "toilet seat"), 1.0);
        assert_eq!(shop.overlap("toliet seat", "toliet seat"), 1.0, "the text has the typo itself");
        let mut strict = shop;
        strict.options.typos = false;
        assert_eq!(strict.search("toliet", 5).unwrap(), []);
        assert!(strict.overlap("toliet seat", "toilet seat") < 0.5);
    }
}
