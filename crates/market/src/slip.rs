//! Slips of the hand, and large letters. Never touches numbers: a size with a wrong digit would be another wish.

use super::dice::Dice;

/// One mistyped word; the text as it is where no word is long enough.
pub fn slip(dice: &mut Dice, text: &str) -> String {
    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let long: Vec<usize> = (0..words.len())
        .filter(|at| words[*at].len() > 4 && words[*at].chars().all(|c| c.is_ascii_alphabetic()))
        .collect();
    if long.is_empty() {
        return text.to_owned();
    }
    let word = &mut words[*dice.pick(&long)];
    // the first letter is seldom wrong
    let at = 1 + dice.below(word.len() - 2);
    let mut letters: Vec<char> = word.chars().collect();
    match dice.below(4) {
        0 => letters.swap(at, at + 1),
        1 => drop(letters.remove(at)),
        2 => letters.insert(at, letters[at]),
        _ => letters[at] = neighbour(dice, letters[at]),
    }
    *word = letters.into_iter().collect();
    words.join(" ")
}

/// A key beside the right one.
fn neighbour(dice: &mut Dice, letter: char) -> char {
    const ROWS: [&str; 3] = ["qwertyuiop", "asdfghjkl", "zxcvbnm"];
    let row = ROWS.iter().find_map(|row| row.find(letter.to_ascii_lowercase()).map(|at| (row.as_bytes(), at)));
    match row {
        Some((row, at)) if at + 1 < row.len() && (at == 0 || dice.chance(0.5)) => char::from(row[at + 1]),
        Some((row, at)) if at > 0 => char::from(row[at - 1]),
        _ => 'e',
    }
}

pub fn first_capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_changes_one_long_word_and_no_number() {
        let mut dice = Dice::new(&[1]);
        for _ in 0..200 {
            let slipped = slip(&mut dice, "black kettle 1700ml red");
            let words: Vec<&str> = slipped.split(' ').collect();
            assert_eq!((words.len(), words[2], words[3]), (4, "1700ml", "red"), "{slipped}");
        }
        assert_eq!(slip(&mut dice, "red 12345 XL"), "red 12345 XL");
        assert_eq!(first_capital("élan vital"), "Élan vital");
    }
}
