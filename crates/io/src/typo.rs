//! Typing errors. Never changes numbers: a size with a wrong digit would be another size.

use crate::splitmix::SplitMix64;

/// Mistypes one word; texts without a long enough word stay unchanged.
pub fn mistype(random: &mut SplitMix64, text: &str) -> String {
    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let long: Vec<usize> = (0..words.len())
        .filter(|at| words[*at].len() > 4 && words[*at].chars().all(|c| c.is_ascii_alphabetic()))
        .collect();
    if long.is_empty() {
        return text.to_owned();
    }
    let word = &mut words[long[random.below(long.len())]];
    // never the first letter
    let at = 1 + random.below(word.len() - 2);
    let mut letters: Vec<char> = word.chars().collect();
    match random.below(4) {
        0 => letters.swap(at, at + 1),
        1 => drop(letters.remove(at)),
        2 => letters.insert(at, letters[at]),
        _ => letters[at] = neighbour(random, letters[at]),
    }
    *word = letters.into_iter().collect();
    words.join(" ")
}

/// Key next to the right one.
fn neighbour(random: &mut SplitMix64, letter: char) -> char {
    const ROWS: [&str; 3] = ["qwertyuiop", "asdfghjkl", "zxcvbnm"];
    let row = ROWS.iter().find_map(|row| row.find(letter.to_ascii_lowercase()).map(|at| (row.as_bytes(), at)));
    match row {
        Some((row, at)) if at + 1 < row.len() && (at == 0 || random.unit() < 0.5) => char::from(row[at + 1]),
        Some((row, at)) if at > 0 => char::from(row[at - 1]),
        _ => 'e',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistypes_one_long_word_and_no_number() {
        let mut random = SplitMix64::new(1);
        for _ in 0..200 {
            let typed = mistype(&mut random, "black kettle 1700ml red");
            let words: Vec<&str> = typed.split(' ').collect();
            assert_eq!((words.len(), words[2], words[3]), (4, "1700ml", "red"), "{typed}");
        }
        assert_eq!(mistype(&mut random, "red 12345 XL"), "red 12345 XL");
    }
}
