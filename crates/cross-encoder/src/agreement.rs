//! Agreement of a model's scores and levels with judged levels.

use serde::Serialize;

use super::head::NUM_LEVELS;
use souk_io::domain::Level;

/// Agreement on one set of pairs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    pub pairs: usize,
    /// Fraction of pairs with the judged level.
    pub accuracy: Option<f64>,
    /// Cohen's kappa with quadratic weights: 0 is chance, 1 is agreement.
    pub kappa: Option<f64>,
    /// Probability that a Good pair scores above one that is not Good (AUC).
    pub auc_good: Option<f64>,
    /// Pair counts by judged level (rows) and predicted level (columns).
    pub confusion: [[u64; NUM_LEVELS]; NUM_LEVELS],
}

impl Agreement {
    /// Judged level, score and predicted level of each pair.
    pub fn of(pairs: &[(Level, f64, Level)]) -> Self {
        let mut confusion = [[0; NUM_LEVELS]; NUM_LEVELS];
        for (judged, _, found) in pairs {
            confusion[place(*judged)][place(*found)] += 1;
        }
        let same: u64 = (0..NUM_LEVELS).map(|level| confusion[level][level]).sum();
        let num = pairs.len();
        Self {
            pairs: num,
            accuracy: (num > 0).then(|| same as f64 / num as f64),
            kappa: kappa(&confusion),
            auc_good: auc(pairs.iter().map(|(judged, score, _)| (*score, judged.is_good())).collect()),
            confusion,
        }
    }
}

pub(super) fn place(level: Level) -> usize {
    usize::from(level.number() - 1)
}

/// None if one side has the same level everywhere.
fn kappa(confusion: &[[u64; NUM_LEVELS]; NUM_LEVELS]) -> Option<f64> {
    let row: [u64; NUM_LEVELS] = std::array::from_fn(|r| confusion[r].iter().sum());
    let column: [u64; NUM_LEVELS] = std::array::from_fn(|c| confusion.iter().map(|row| row[c]).sum());
    let num = row.iter().sum::<u64>() as f64;
    let (mut seen, mut chance) = (0.0, 0.0);
    for (r, of_row) in confusion.iter().enumerate() {
        for (c, count) in of_row.iter().enumerate() {
            let apart = (r.abs_diff(c) as f64).powi(2);
            seen += apart * *count as f64;
            chance += apart * row[r] as f64 * column[c] as f64 / num;
        }
    }
    (chance > 0.0).then(|| 1.0 - seen / chance)
}

/// From ranks, ties count half. None if all pairs are Good or none is.
fn auc(mut scored: Vec<(f64, bool)>) -> Option<f64> {
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    let num_good = scored.iter().filter(|(_, good)| *good).count() as f64;
    let others = scored.len() as f64 - num_good;
    let (mut ranks, mut before) = (0.0, 0);
    for tied in scored.chunk_by(|a, b| a.0 == b.0) {
        let rank = before as f64 + (tied.len() as f64 + 1.0) / 2.0;
        ranks += rank * tied.iter().filter(|(_, good)| *good).count() as f64;
        before += tied.len();
    }
    let wins = ranks - num_good * (num_good + 1.0) / 2.0;
    (num_good > 0.0 && others > 0.0).then(|| wins / (num_good * others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use souk_io::domain::Level::{L1, L2, L3, L4};

    #[test]
    fn numbers_checked_by_hand() {
        let pairs = [(L1, 0.1, L1), (L2, 0.4, L3), (L3, 0.4, L3), (L4, 0.9, L4), (L1, 0.3, L2)];
        let agreement = Agreement::of(&pairs);
        assert_eq!(agreement.accuracy, Some(0.6));
        // observed disagreement: two pairs one step apart. By chance: rows 2 1 1 1, columns 1 1 2 1, squared distances:
        // L1: 2·(0 + 1 + 2·4 + 9) = 36; L2: 1 + 0 + 2 + 4 = 7; L3: 4 + 1 + 0 + 1 = 6; L4: 9 + 4 + 2 + 0 = 15; 64 / 5
        assert!((agreement.kappa.unwrap() - (1.0 - 2.0 / 12.8)).abs() < 1e-12);
        // Good at 0.4 and 0.9, others at 0.1, 0.4, 0.3: five wins and a tie of six
        assert!((agreement.auc_good.unwrap() - 5.5 / 6.0).abs() < 1e-12);
        assert_eq!(agreement.confusion[0], [1, 1, 0, 0]);
    }

    #[test]
    fn what_cannot_be_said_is_not_a_number() {
        let agreement = Agreement::of(&[(L1, 0.1, L1), (L1, 0.3, L1)]);
        assert_eq!((agreement.kappa, agreement.auc_good, agreement.accuracy), (None, None, Some(1.0)));
        assert_eq!(Agreement::of(&[]).accuracy, None);
    }
}
