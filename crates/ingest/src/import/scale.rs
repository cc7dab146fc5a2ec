//! Conversion of foreign grades to levels 1 to 4. Takes a map from the user, or the smallest and largest grade of a
//! folder. Never guesses an ambiguous scale.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use super::rejection::Rejection;
use souk_io::domain::Level;
use souk_io::error::{Error, Result};

/// Map from grades to levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale(BTreeMap<String, Level>);

impl FromStr for Scale {
    type Err = Error;

    /// Parses `0=1,1=4` or `Exact=4,Partial=2`.
    fn from_str(text: &str) -> Result<Self> {
        let pair = |pair: &str| {
            let (grade, level) = pair.split_once('=')?;
            Some((canonical_grade(grade.trim()), Level::from_number(level.trim().parse().ok()?)?))
        };
        let problem =
            || Error::input(format!("`{text}` does not map grades to levels: use GRADE=LEVEL pairs such as 0=1,1=4"));
        text.split(',').map(|text| pair(text).ok_or_else(problem)).collect::<Result<_>>().map(Self)
    }
}

impl Scale {
    pub fn from_pairs(pairs: &[(&str, Level)]) -> Self {
        Self(pairs.iter().map(|(grade, level)| ((*grade).to_owned(), *level)).collect())
    }

    /// Returns the scale for whole-number grades between `min` and `max`. A folder with only 1s lists relevant items
    /// and omits the 0s. 1 to 2 and 1 to 3 are ambiguous, grades or levels, so they are an error.
    pub fn from_range(min: i64, max: i64, folder: &Path) -> Result<Self> {
        use Level::{L1, L2, L3, L4};
        let mut scale = match max {
            i64::MIN..=1 => Self::from_pairs(&[("0", L1), ("1", L4)]),
            2 if min <= 0 => Self::from_pairs(&[("0", L1), ("1", L3), ("2", L4)]),
            3 if min <= 0 => Self::from_pairs(&[("0", L1), ("1", L2), ("2", L3), ("3", L4)]),
            4 if min >= 1 => Self::from_pairs(&[("1", L1), ("2", L2), ("3", L3), ("4", L4)]),
            _ => {
                let problem = format!(
                    "grades from {min} to {max} are ambiguous: set --levels, for example --levels 0=1,1=2,2=2,3=3,4=4, \
                     or --levels 1=1,2=2,3=3,4=4 if they are levels already"
                );
                return Err(Error::config(folder.display(), problem));
            }
        };
        // TREC grades below zero mean "junk"
        for grade in min.clamp(-10, 0)..0 {
            scale.0.insert(grade.to_string(), L1);
        }
        Ok(scale)
    }

    pub fn level(&self, grade: &str) -> std::result::Result<Level, Rejection> {
        let known = || self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let unknown = || Rejection::with("grade not in the scale", format!("`{grade}`; known grades: {}", known()));
        self.0.get(&canonical_grade(grade)).copied().ok_or_else(unknown)
    }

    /// Level numbers by grade, for the summary.
    pub fn numbers(&self) -> BTreeMap<String, u8> {
        self.0.iter().map(|(grade, level)| (grade.clone(), level.number())).collect()
    }
}

/// Parses a grade that is a whole number: `1`, `1.0`, `+1`.
pub fn whole_number(grade: &str) -> Option<i64> {
    let number: f64 = grade.parse().ok()?;
    (number.fract() == 0.0 && number.abs() < 1e9).then_some(number as i64)
}

/// Canonical form of a grade, so that `1.0` and `1` are equal.
fn canonical_grade(grade: &str) -> String {
    whole_number(grade).map_or_else(|| grade.to_owned(), |number| number.to_string())
}
