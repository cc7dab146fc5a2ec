//! Whether the first row of a table has the column names. Takes the first row and the rows after it, compares what kinds
//! of values they have.

use super::names::is_known;
use super::profile::ValueKind;

/// Fraction of a column's values that makes a kind typical of it.
const TYPICAL: f64 = 0.8;
/// A name is shorter than most titles.
const MAX_NAME_CHARS: usize = 60;

/// `columns` has the values of each column below the first row.
pub fn has_header(first: &[String], columns: &[Vec<String>]) -> bool {
    let num_known = first.iter().filter(|name| is_known(name)).count();
    if columns.iter().all(Vec::is_empty) {
        return num_known > 0;
    }
    let (mut names, mut values) = (0, 0);
    for (cell, below) in first.iter().zip(columns) {
        match evidence(cell, below) {
            Evidence::Name => names += 1,
            Evidence::Value => values += 1,
            Evidence::None => {}
        }
    }
    if values > 0 {
        // a value can be spelled like a name: a search for `search`
        return num_known > 2 * values;
    }
    num_known + names > 0 || first.iter().all(|cell| is_identifier(cell))
}

enum Evidence {
    /// The cell differs from the values below as names do.
    Name,
    /// The cell is one more value.
    Value,
    None,
}

fn evidence(cell: &str, below: &[String]) -> Evidence {
    let filled: Vec<&String> = below.iter().filter(|value| !value.trim().is_empty()).collect();
    let first = ValueKind::of(cell);
    if filled.is_empty() || first == ValueKind::Empty {
        return Evidence::None;
    }
    let share = |kind| filled.iter().filter(|value| ValueKind::of(value) == kind).count() as f64 / filled.len() as f64;
    let typed = [ValueKind::Number, ValueKind::Time, ValueKind::Url, ValueKind::Code];
    if typed.contains(&first) && share(first) >= TYPICAL || cell.chars().count() > MAX_NAME_CHARS {
        return Evidence::Value;
    }
    if first == ValueKind::Number || !is_known(cell) && filled.iter().any(|value| value.trim() == cell.trim()) {
        return Evidence::Value;
    }
    let is_typed_below = typed.iter().map(|kind| share(*kind)).sum::<f64>() >= TYPICAL;
    if first == ValueKind::Text && is_typed_below { Evidence::Name } else { Evidence::None }
}

fn is_identifier(cell: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphabetic() || letter == '_';
    !cell.is_empty() && cell.chars().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[&[&str]]) -> bool {
        let first: Vec<String> = rows[0].iter().map(|cell| (*cell).to_owned()).collect();
        let columns: Vec<Vec<String>> =
            (0..first.len()).map(|at| rows[1..].iter().map(|row| row[at].to_owned()).collect()).collect();
        has_header(&first, &columns)
    }

    #[test]
    fn known_names_and_other_kinds_of_values_below_are_a_header() {
        assert!(of(&[&["sku", "product_name"], &["1", "Desk"]]));
        assert!(of(&[&["SKU", "Name"]]), "without rows");
        assert!(of(&[&["artikel", "was"], &["A-1", "Tisch"], &["A-2", "Lampe"]]), "codes below a word");
        assert!(of(&[&["wer", "wann"], &["x", "2025-07-31"]]), "times below a word");
        assert!(of(&[&["foo", "bar"], &["oak desk", "red lamp"]]), "single words of letters");
    }

    #[test]
    fn a_row_like_the_others_is_no_header() {
        assert!(!of(&[&["7", "Oak desk"], &["8", "Lamp"]]));
        assert!(!of(&[&["B00X1", "Oak desk"], &["B00X2", "Lamp"]]));
        assert!(!of(&[&["eac71", "Train set", "Hobbies > Trains", ""], &["b1752", "Lamp", "Hobbies > Trains", "x"]]));
        assert!(!of(&[&["Oak desk, solid", "oak"], &["Lamp", "oak"]]), "a value that comes again");
        assert!(
            !of(&[&["2025-07-31", "search", "7", "click"], &["2025-07-31", "tv", "8", "click"]]),
            "words that are names"
        );
        assert!(!of(&[&["7", "Oak desk"]]), "one row");
    }
}
