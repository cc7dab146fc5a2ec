//! Other people's grades as levels 1 to 4. Takes a map from the user or the largest grade of a folder; never guesses at a
//! scale it does not know.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use super::intake::Refusal;
use souk_io::domain::Level;
use souk_io::error::{Error, Result};

/// Which level each grade stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale(BTreeMap<String, Level>);

impl FromStr for Scale {
    type Err = Error;

    /// `0=1,1=4` or `Exact=4,Partial=2`.
    fn from_str(text: &str) -> Result<Self> {
        let pair = |pair: &str| {
            let (grade, level) = pair.split_once('=')?;
            Some((plain(grade.trim()), Level::from_number(level.trim().parse().ok()?)?))
        };
        let problem = || Error::input(format!("`{text}` maps no grades to levels: say for example 0=1,1=4"));
        text.split(',').map(|text| pair(text).ok_or_else(problem)).collect::<Result<_>>().map(Self)
    }
}

impl Scale {
    pub fn of(pairs: &[(&str, Level)]) -> Self {
        Self(pairs.iter().map(|(grade, level)| ((*grade).to_owned(), *level)).collect())
    }

    /// The scale of a folder whose grades are whole numbers between `least` and `most`. A folder with only 1s has listed
    /// what is relevant and left out the 0s. From 1 to 2 or 3, these may be grades or levels: that is asked.
    pub fn of_range(least: i64, most: i64, folder: &Path) -> Result<Self> {
        use Level::{L1, L2, L3, L4};
        let mut scale = match most {
            i64::MIN..=1 => Self::of(&[("0", L1), ("1", L4)]),
            2 if least <= 0 => Self::of(&[("0", L1), ("1", L3), ("2", L4)]),
            3 if least <= 0 => Self::of(&[("0", L1), ("1", L2), ("2", L3), ("3", L4)]),
            4 if least >= 1 => Self::of(&[("1", L1), ("2", L2), ("3", L3), ("4", L4)]),
            _ => {
                let problem = format!(
                    "its grades go from {least} to {most}, and it is not known what they mean: say it with --levels, \
                     such as --levels 0=1,1=2,2=2,3=3,4=4, or --levels 1=1,2=2,3=3,4=4 where they are levels already"
                );
                return Err(Error::config(folder.display(), problem));
            }
        };
        // below zero, TREC's judges say "junk"
        for grade in least.clamp(-10, 0)..0 {
            scale.0.insert(grade.to_string(), L1);
        }
        Ok(scale)
    }

    pub fn level(&self, grade: &str) -> std::result::Result<Level, Refusal> {
        let known = || self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let unknown = || Refusal::with("a grade the scale does not have", format!("`{grade}` is none of {}", known()));
        self.0.get(&plain(grade)).copied().ok_or_else(unknown)
    }

    /// For the summary.
    pub fn numbers(&self) -> BTreeMap<String, u8> {
        self.0.iter().map(|(grade, level)| (grade.clone(), level.number())).collect()
    }
}

/// A grade as a whole number, where it is one: `1`, `1.0`, `+1`.
pub fn whole(grade: &str) -> Option<i64> {
    let number: f64 = grade.parse().ok()?;
    (number.fract() == 0.0 && number.abs() < 1e9).then_some(number as i64)
}

fn plain(grade: &str) -> String {
    whole(grade).map_or_else(|| grade.to_owned(), |number| number.to_string())
}
