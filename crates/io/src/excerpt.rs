//! Excerpts: a few words of an item's text, as somebody might type who looks for it.

use crate::splitmix::SplitMix64;

/// Only so many of a text's first words are drawn: a title comes before a description.
const FIRST_WORDS: usize = 32;
const MIN_WORDS: usize = 2;
const MAX_WORDS: usize = 5;

/// Two to five of a text's first words, in their order and in lower case, but never all of them; none if it has fewer than three.
pub fn excerpt(random: &mut SplitMix64, text: &str) -> Option<String> {
    let words = text.split_whitespace().map(|word| word.trim_matches(|letter: char| !letter.is_alphanumeric()));
    let mut words: Vec<&str> = words.filter(|word| !word.is_empty()).take(FIRST_WORDS).collect();
    let most = MAX_WORDS.min(words.len().saturating_sub(1));
    if most < MIN_WORDS {
        return None;
    }
    let num = MIN_WORDS + random.below(most - MIN_WORDS + 1);
    while words.len() > num {
        words.remove(random.below(words.len()));
    }
    Some(words.join(" ").to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_some_words_in_their_order() {
        let mut random = SplitMix64::new(1);
        let text = "BEHR Premium 1-gal. (Blue) Wood & Concrete Coating";
        let all = ["behr", "premium", "1-gal", "blue", "wood", "concrete", "coating"];
        let mut lengths = [0; 8];
        for _ in 0..300 {
            let drawn = excerpt(&mut random, text).unwrap();
            let places: Vec<usize> =
                drawn.split(' ').map(|word| all.iter().position(|known| *known == word).unwrap()).collect();
            assert!(places.is_sorted_by(|a, b| a < b), "{drawn}");
            lengths[places.len()] += 1;
        }
        assert!(lengths[2..=5].iter().all(|num| *num > 40) && lengths.iter().sum::<i32>() == 300, "{lengths:?}");
        assert_eq!(excerpt(&mut random, "oak desk -"), None, "two words");
        assert_eq!(excerpt(&mut random, "Oak desk lamp").unwrap().split(' ').count(), 2);
        let long = format!("{} last", "first ".repeat(40));
        assert!((0..200).all(|_| !excerpt(&mut random, &long).unwrap().contains("last")));
    }
}
