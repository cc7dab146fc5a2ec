//! Profile of a column: which kinds of values it has, how distinct and how long they are. Takes the sampled values, gives
//! fractions of the values that are not empty.

use std::collections::HashSet;

use crate::import::fields::price;
use crate::import::times::{self, DayOrder};

/// Kind of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Empty,
    Number,
    /// Date or time that is not a plain number.
    Time,
    Url,
    /// One word with a digit in it: an article number, a hash.
    Code,
    Text,
}

impl ValueKind {
    pub fn of(value: &str) -> Self {
        let value = value.trim();
        if value.is_empty() {
            Self::Empty
        } else if price(value).is_some() || value.parse::<f64>().is_ok() {
            Self::Number
        } else if is_time(value) {
            Self::Time
        } else if value.contains("://") || value.starts_with("www.") {
            Self::Url
        } else if !value.contains(char::is_whitespace) && value.contains(|letter: char| letter.is_ascii_digit()) {
            Self::Code
        } else {
            Self::Text
        }
    }
}

fn is_time(value: &str) -> bool {
    !times::is_number(value)
        && [DayOrder::MonthFirst, DayOrder::DayFirst].into_iter().any(|order| times::parse(value, order).is_some())
}

/// Values of a column in numbers. All but `filled` count only values that are not empty.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Fraction of the rows with a value.
    pub filled: f64,
    /// Distinct values by values.
    pub distinct: f64,
    pub num_distinct: usize,
    pub mean_chars: f64,
    pub mean_words: f64,
    pub numbers: f64,
    /// Numbers without a fraction.
    pub integers: f64,
    /// Numbers with a currency sign or two decimals.
    pub prices: f64,
    /// Plain numbers of seconds, milliseconds, … since 1970.
    pub epochs: f64,
    pub times: f64,
    pub urls: f64,
    /// Words with a digit in them.
    pub codes: f64,
    /// Values such as `Toys > Trains` or `toys/trains`.
    pub paths: f64,
    /// Values with more letters than digits.
    pub letters: f64,
    pub single_words: f64,
    /// Values equal to the one of the row before.
    pub repeats: f64,
    /// Values that are a whole number one above the row before.
    pub increments: f64,
    /// Values that as times are not before the row before.
    pub ascending: f64,
    pub largest: f64,
    pub smallest: f64,
}

impl Profile {
    pub fn of(values: &[String]) -> Self {
        let filled: Vec<&str> = values.iter().map(|value| value.trim()).filter(|value| !value.is_empty()).collect();
        if filled.is_empty() {
            return Self::default();
        }
        let fraction =
            |has: &dyn Fn(&str) -> bool| part(filled.iter().filter(|value| has(value)).count(), filled.len());
        let mean = |size: &dyn Fn(&str) -> usize| part(filled.iter().map(|value| size(value)).sum(), filled.len());
        let kind = |wanted: ValueKind| fraction(&|value| ValueKind::of(value) == wanted);
        let num_distinct = filled.iter().collect::<HashSet<_>>().len();
        let numbers = || filled.iter().filter_map(|value| price(value));
        let follows = |has: &dyn Fn(&str, &str) -> bool| {
            let pairs = filled.windows(2).filter(|pair| has(pair[0], pair[1])).count();
            part(pairs, filled.len().saturating_sub(1).max(1))
        };
        Self {
            filled: part(filled.len(), values.len()),
            distinct: part(num_distinct, filled.len()),
            num_distinct,
            mean_chars: mean(&|value| value.chars().count()),
            mean_words: mean(&|value| value.split_whitespace().count()),
            numbers: kind(ValueKind::Number),
            integers: fraction(&|value| whole_number(value).is_some()),
            prices: fraction(&is_price),
            epochs: fraction(&times::is_number),
            times: kind(ValueKind::Time),
            urls: kind(ValueKind::Url),
            codes: kind(ValueKind::Code),
            paths: fraction(&is_path),
            letters: fraction(&has_more_letters),
            single_words: fraction(&|value| !value.contains(char::is_whitespace)),
            repeats: follows(&|before, after| before == after),
            increments: follows(&|before, after| {
                whole_number(before).zip(whole_number(after)).is_some_and(|(before, after)| after == before + 1)
            }),
            ascending: follows(&|before, after| {
                let time = |value| times::parse(value, DayOrder::MonthFirst);
                time(before).zip(time(after)).is_some_and(|(before, after)| before <= after)
            }),
            largest: numbers().fold(f64::NEG_INFINITY, f64::max),
            smallest: numbers().fold(f64::INFINITY, f64::min),
        }
    }
}

fn part(of: usize, all: usize) -> f64 {
    of as f64 / all as f64
}

/// `7`, and `7.0` as some tools write it.
pub fn whole_number(value: &str) -> Option<i64> {
    let value = value.trim();
    let whole =
        value.split_once('.').filter(|(_, rest)| rest.bytes().all(|digit| digit == b'0')).map(|(whole, _)| whole);
    whole.unwrap_or(value).parse().ok()
}

fn is_price(value: &str) -> bool {
    let has_sign = value.contains(['$', '£', '€', '¥', '₹']);
    let decimals = value.trim_end_matches(|letter: char| !letter.is_ascii_digit()).rsplit(['.', ',']).next();
    price(value).is_some() && (has_sign || value.contains(['.', ',']) && decimals.is_some_and(|part| part.len() == 2))
}

fn is_path(value: &str) -> bool {
    let parts: Vec<&str> = match value {
        value if value.contains("://") => return false,
        value if value.contains('>') => value.split('>').collect(),
        value if value.contains('|') => value.split('|').collect(),
        value => value.split('/').collect(),
    };
    parts.len() > 1 && parts.iter().all(|part| part.trim().chars().next().is_some_and(char::is_alphabetic))
}

fn has_more_letters(value: &str) -> bool {
    let letters = value.chars().filter(|letter| letter.is_alphabetic()).count();
    letters > value.chars().filter(char::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(values: &[&str]) -> Profile {
        Profile::of(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn kinds_of_values() {
        for (value, kind) in [
            (" ", ValueKind::Empty),
            ("7", ValueKind::Number),
            ("$1,999.00", ValueKind::Number),
            ("-3", ValueKind::Number),
            ("2025-07-31 22:00", ValueKind::Time),
            ("31/07/2025 22:00", ValueKind::Time),
            ("1753999220", ValueKind::Number),
            ("https://x.y/z", ValueKind::Url),
            ("B00X-12", ValueKind::Code),
            ("oak", ValueKind::Text),
            ("oak desk 120", ValueKind::Text),
        ] {
            assert_eq!(ValueKind::of(value), kind, "{value}");
        }
    }

    #[test]
    fn numbers_of_a_column() {
        let prices = profile(&["$5", "12.50", "3", "", "7.5"]);
        assert_eq!((prices.filled, prices.numbers, prices.prices, prices.integers), (0.8, 1.0, 0.5, 0.25));
        assert_eq!((prices.smallest, prices.largest), (3.0, 12.5));
        let ranks = profile(&["1", "2", "3.0", "1", "1"]);
        assert_eq!((ranks.increments, ranks.repeats, ranks.integers), (0.5, 0.25, 1.0));
        assert_eq!((ranks.distinct, ranks.num_distinct), (0.6, 3));
    }

    #[test]
    fn paths_are_told_from_titles() {
        assert_eq!(profile(&["Toys > Trains", "toys/trains", "Toys|Trains", "Toys"]).paths, 0.75);
        assert_eq!(profile(&["1/2 in. pipe", "https://a/b", "3/4", "Light /"]).paths, 0.0);
        let titles = profile(&["Oak desk", "Lamp 5"]);
        assert_eq!((titles.letters, titles.mean_words, titles.single_words), (1.0, 2.0, 0.0));
    }
}
