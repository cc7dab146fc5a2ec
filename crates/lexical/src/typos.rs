//! Spelling correction. Takes a word that no item or hardly any has; returns the nearest word of the dictionary, or two words if
//! it was written without a space. Never changes a number, a model number, an everyday word or the first letter.

use tantivy::Term;
use tantivy::query::FuzzyTermQuery;
use tantivy::schema::Field;
use tantivy::termdict::TermDictionary;

/// Shortest word that is corrected; shorter words have too many unrelated neighbours.
const MIN_LETTERS: usize = 4;
/// Longest word with an edit distance of at most 1; longer words allow 2.
const MAX_LETTERS_OF_ONE_EDIT: usize = 5;
/// Shortest word that some items have and that may still be a typing error.
const MIN_LETTERS_OF_KNOWN: usize = 5;
/// Minimum letters of each part of a word that is split in two.
const MIN_LETTERS_OF_PART: usize = 3;

/// Terms to search instead of `word`; empty if no term is near.
pub fn correct(dictionary: &TermDictionary, word: &str) -> tantivy::Result<Vec<String>> {
    let num_letters = word.chars().count();
    if num_letters < MIN_LETTERS || !word.chars().all(char::is_alphabetic) {
        return Ok(Vec::new());
    }
    let max_distance = if num_letters > MAX_LETTERS_OF_ONE_EDIT { 2 } else { 1 };
    for distance in 1..=max_distance {
        if let Some((_, near)) = nearest(dictionary, word, distance)? {
            return Ok(vec![near]);
        }
    }
    split(dictionary, word, 1)
}

/// The word that was probably meant by a rare one: one edit away, in at least `min_items` items.
pub fn common(dictionary: &TermDictionary, word: &str, min_items: u32) -> tantivy::Result<Option<String>> {
    if word.chars().count() < MIN_LETTERS_OF_KNOWN {
        return Ok(None);
    }
    let near = nearest(dictionary, word, 1)?;
    Ok(near.filter(|(num_items, near)| *num_items >= min_items && near != word).map(|(_, near)| near))
}

/// Most common word within an edit distance, and the number of items that have it; of two equally common words, the first in
/// alphabetical order.
fn nearest(dictionary: &TermDictionary, word: &str, distance: u8) -> tantivy::Result<Option<(u32, String)>> {
    // the automaton only uses the text, so any field works
    let term = Term::from_field_text(Field::from_field_id(0), word);
    let automaton = FuzzyTermQuery::new(term, distance, true).automaton()?;
    let first = word.chars().next().map_or(0, char::len_utf8);
    // the byte 0xff does not occur in UTF-8
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
    Ok(best)
}

/// Splits `word` into two words that at least `min_items` items have each; of all splits, the one whose rarer word is most common.
pub fn split(dictionary: &TermDictionary, word: &str, min_items: u32) -> tantivy::Result<Vec<String>> {
    let num_letters = word.chars().count();
    let mut best = None;
    for (number, (at, _)) in word.char_indices().enumerate() {
        if number < MIN_LETTERS_OF_PART || number + MIN_LETTERS_OF_PART > num_letters {
            continue;
        }
        let (Some(left), Some(right)) = (dictionary.get(&word[..at])?, dictionary.get(&word[at..])?) else { continue };
        let rarer = left.doc_freq.min(right.doc_freq);
        if rarer >= min_items && best.is_none_or(|(most, _)| rarer > most) {
            best = Some((rarer, at));
        }
    }
    Ok(best.map_or_else(Vec::new, |(_, at)| vec![word[..at].to_owned(), word[at..].to_owned()]))
}

#[cfg(test)]
mod tests {
    use crate::Lexical;

    fn shop(texts: &[&str]) -> Lexical {
        Lexical::build(texts.iter().map(|text| Ok((*text).to_owned()))).unwrap()
    }

    #[test]
    fn corrects_to_the_nearest_known_word() {
        let shop =
            shop(&["toilet seat", "toilet brush", "toiled cloth", "wd-40 lawn oil", "mower", "door", "poor box"]);
        let correct = |word: &str| shop.correct(word).unwrap();
        assert_eq!(correct("toliet"), ["toilet"], "transposition");
        assert_eq!(correct("toiletd"), ["toilet"], "distance 1 before 2, then the more common word");
        assert_eq!(correct("toilexx"), ["toilet"], "distance 2");
        assert_eq!(correct("moxxr"), [""; 0], "distance 2 in a short word");
        assert_eq!(correct("foor"), [""; 0], "the first letter is kept");
        assert_eq!(correct("lawnmower"), ["lawn", "mower"]);
        assert_eq!(correct("wd41"), [""; 0], "model numbers are kept");
        assert_eq!(correct("oik"), [""; 0], "short words are kept");
        assert_eq!(correct("more"), [""; 0], "an everyday word is no typo of `mower`");
    }

    #[test]
    fn typos_score_like_their_correction() {
        let shop = shop(&["toilet seat", "lawn mower", "oak desk"]);
        assert_eq!(shop.search("toliet saet", 5).unwrap(), shop.search("toilet seat", 5).unwrap());
        let mut strict = shop;
        strict.options.typos = false;
        assert_eq!(strict.search("toliet", 5).unwrap(), []);
    }
}
