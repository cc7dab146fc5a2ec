//! Statistical significance: bootstrap intervals, paired tests and Holm's correction. Takes one value per query and
//! returns intervals and p-values. All draws come from a seed, so the same input gives the same result.

use serde::{Deserialize, Serialize};
use souk_io::splitmix::SplitMix64;
use statrs::function::beta::beta_reg;

/// Bootstrap samples.
const NUM_DRAWS: usize = 10_000;
/// Samples of a randomisation test. Its smallest p-value must stay significant after a correction for hundreds of tests.
const NUM_FLIPS: usize = 50_000;
/// Up to this many differences, all sign patterns are enumerated: there are fewer than `NUM_FLIPS`.
const MAX_FLIPPED: usize = 15;

/// 95 % interval.
pub type Interval = [f64; 2];

/// Paired comparison of two engines on the same queries: the second minus the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedTest {
    /// Queries with a value under both engines.
    pub num_queries: usize,
    pub difference: f64,
    pub interval: Interval,
    /// Student's t; 0 if no query differs, and `None` if all differ by the same amount.
    pub t: Option<f64>,
    /// Two-sided p-value of the t-test.
    pub p_t: f64,
    pub p_randomised: f64,
}

/// Percentile bootstrap intervals of the means of several columns, from the same samples of queries. A query without a
/// value is left out of its column; a column without values has no interval.
pub fn bootstrap(columns: &[Vec<Option<f64>>], seed: u64) -> Vec<Option<Interval>> {
    let num = columns.first().map_or(0, Vec::len);
    let mut dice = SplitMix64::new(seed);
    let mut times = vec![0_u32; num];
    let mut drawn = vec![Vec::with_capacity(NUM_DRAWS); columns.len()];
    for _ in 0..if num == 0 { 0 } else { NUM_DRAWS } {
        times.fill(0);
        (0..num).for_each(|_| times[dice.below(num)] += 1);
        for (column, drawn) in columns.iter().zip(&mut drawn) {
            let (mut sum, mut count) = (0.0, 0);
            for (value, times) in column.iter().zip(&times) {
                sum += value.unwrap_or(0.0) * f64::from(*times);
                count += if value.is_some() { *times } else { 0 };
            }
            if count > 0 {
                drawn.push(sum / f64::from(count));
            }
        }
    }
    drawn.into_iter().map(middle).collect()
}

/// The middle 95 % of the samples.
fn middle(mut drawn: Vec<f64>) -> Option<Interval> {
    drawn.sort_unstable_by(f64::total_cmp);
    (!drawn.is_empty()).then(|| [quantile(&drawn, 0.025), quantile(&drawn, 0.975)])
}

/// Quantile of sorted values, interpolated linearly.
fn quantile(sorted: &[f64], level: f64) -> f64 {
    let place = level * (sorted.len() - 1) as f64;
    let (low, rest) = (place.floor() as usize, place.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + rest * (sorted[high] - sorted[low])
}

/// Compares two engines query by query; `None` if no query has a value under both.
pub fn paired(reference: &[Option<f64>], other: &[Option<f64>], seed: u64) -> Option<PairedTest> {
    let differences: Vec<f64> = reference.iter().zip(other).filter_map(|(a, b)| Some((*b)? - (*a)?)).collect();
    if differences.is_empty() {
        return None;
    }
    let num = differences.len() as f64;
    let difference = differences.iter().sum::<f64>() / num;
    let column = differences.iter().copied().map(Some).collect();
    let interval = bootstrap(&[column], seed).pop().flatten()?;
    let (t, p_t) = t_test(&differences);
    let p_randomised = randomisation(&differences, seed);
    Some(PairedTest { num_queries: differences.len(), difference, interval, t, p_t, p_randomised })
}

/// One-sample t-test that the mean difference is 0: Student's t and the two-sided p-value.
pub fn t_test(differences: &[f64]) -> (Option<f64>, f64) {
    let num = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / num;
    if differences.iter().all(|difference| *difference == 0.0) {
        return (Some(0.0), 1.0);
    }
    let squares: f64 = differences.iter().map(|difference| (difference - mean).powi(2)).sum();
    let freedom = num - 1.0;
    let error = (squares / freedom / num).sqrt();
    if freedom < 1.0 {
        // the variance of one query is unknown
        (None, 1.0)
    } else if error == 0.0 {
        (None, 0.0)
    } else {
        (Some(mean / error), student((mean / error).powi(2), freedom))
    }
}

/// P-value of the randomisation test: how often the sum of the differences with random signs is at least as far from 0.
/// Exact for few differences; for many, sampled, with the observed signs counted as one sample.
pub fn randomisation(differences: &[f64], seed: u64) -> f64 {
    let found = differences.iter().sum::<f64>().abs();
    // sums in another order differ in their last bits
    let reached = |sum: f64| sum.abs() >= found - 1e-12 * found.max(f64::MIN_POSITIVE);
    let sum = |mut signs: u64, part: &[f64]| -> f64 {
        let mut sum = 0.0;
        for difference in part {
            sum += if signs & 1 == 1 { -difference } else { *difference };
            signs >>= 1;
        }
        sum
    };
    if differences.len() <= MAX_FLIPPED {
        let all = 1_u64 << differences.len();
        return (0..all).filter(|signs| reached(sum(*signs, differences))).count() as f64 / all as f64;
    }
    let mut dice = SplitMix64::new(seed);
    let draws = (0..NUM_FLIPS).map(|_| differences.chunks(64).map(|part| sum(dice.next_bits(), part)).sum());
    let extreme = draws.filter(|sum| reached(*sum)).count();
    (extreme + 1) as f64 / (NUM_FLIPS + 1) as f64
}

/// Holm's correction of p-values for multiple tests.
pub fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
    let (mut corrected, mut largest) = (vec![0.0; probabilities.len()], 0.0_f64);
    for (rank, at) in order.into_iter().enumerate() {
        largest = largest.max((probabilities.len() - rank) as f64 * probabilities[at]).min(1.0);
        corrected[at] = largest;
    }
    corrected
}

/// Two-sided probability that Student's t with `freedom` degrees of freedom has a square above `squared`.
fn student(squared: f64, freedom: f64) -> f64 {
    beta_reg(freedom / 2.0, 0.5, (freedom / (freedom + squared)).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn holm_by_hand() {
        // sorted: 0.01 · 4, 0.02 · 3, 0.03 · 2, 0.5 · 1, never falling, never above 1
        assert_eq!(holm(&[0.02, 0.5, 0.01, 0.03]), [0.06, 0.5, 0.04, 0.06]);
        assert_eq!(holm(&[0.6, 0.7]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn all_signs_by_hand() {
        // 1 + 2 + 4 = 7 is reached by all plus and all minus only
        assert_eq!(randomisation(&[1.0, 2.0, 4.0], 1), 0.25);
        assert_eq!(randomisation(&[1.0, -1.0], 1), 1.0);
        assert_eq!(randomisation(&[0.0; 20], 1), 1.0);
        let many = randomisation(&[1.0; 20], 1);
        assert!(many < 0.001, "2 of a million: {many}");
    }

    #[test]
    fn student_by_hand() {
        // one degree of freedom is Cauchy's: p = 1 − 2 atan(t) / π
        for t in [0.1, 1.0, 3.0, 100.0_f64] {
            let expected = 1.0 - 2.0 * t.atan() / std::f64::consts::PI;
            assert!((student(t * t, 1.0) - expected).abs() < 1e-13, "{t}");
        }
        // two: p = 1 − t / √(2 + t²)
        for t in [0.1, 1.0, 3.0_f64] {
            assert!((student(t * t, 2.0) - (1.0 - t / (2.0 + t * t).sqrt())).abs() < 1e-13, "{t}");
        }
        assert_eq!(t_test(&[0.0, 0.0]), (Some(0.0), 1.0));
        assert_eq!(t_test(&[2.0, 2.0]), (None, 0.0));
        assert_eq!(t_test(&[2.0]), (None, 1.0));
    }

    #[test]
    fn an_interval_is_where_the_means_of_draws_lie() {
        // 100 coins, half of them heads: the mean's spread is 0.05
        let coins: Vec<Option<f64>> = (0..100).map(|at| Some(f64::from(at % 2))).collect();
        let interval = |column: &Vec<Option<f64>>, seed| bootstrap(std::slice::from_ref(column), seed)[0];
        let [low, high] = interval(&coins, 7).unwrap();
        assert!((low - 0.402).abs() < 0.011 && (high - 0.598).abs() < 0.011, "{low} {high}");
        let steps: Vec<Option<f64>> = (0..100).map(|at| Some(f64::from(at).sqrt())).collect();
        assert_eq!(interval(&steps, 7), interval(&steps, 7));
        assert_ne!(interval(&steps, 7), interval(&steps, 8));
        let some: Vec<Option<f64>> = (0..100).map(|at| (at < 50).then_some(3.0)).collect();
        assert_eq!(bootstrap(&[coins, some, vec![None; 100]], 7)[1..], [Some([3.0, 3.0]), None]);
        assert!(interval(&Vec::new(), 7).is_none());
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.75), 3.0);
    }

    #[test]
    fn only_queries_with_both_values_are_compared() {
        let (a, b) = ([Some(1.0), None, Some(2.0)], [Some(2.0), Some(9.0), Some(3.0)]);
        let found = paired(&a, &b, 1).unwrap();
        assert_eq!((found.num_queries, found.difference, found.interval), (2, 1.0, [1.0, 1.0]));
        assert!(paired(&[None], &[Some(1.0)], 1).is_none());
    }

    proptest! {
        #[test]
        fn tests_are_symmetric_and_probabilities(differences in prop::collection::vec(-50.0..50.0_f64, 2..40)) {
            let turned: Vec<f64> = differences.iter().map(|difference| -difference).collect();
            let ((_, p), (_, turned_p)) = (t_test(&differences), t_test(&turned));
            prop_assert!((p - turned_p).abs() < 1e-12 && (0.0..=1.0).contains(&p));
            let p = randomisation(&differences, 1);
            prop_assert!(p > 0.0 && p <= 1.0);
            prop_assert!((p - randomisation(&turned, 1)).abs() < 0.05);
            let corrected = holm(&differences.iter().map(|difference| difference.abs() / 50.0).collect::<Vec<_>>());
            prop_assert!(corrected.iter().zip(&differences).all(|(c, d)| *c >= d.abs() / 50.0 && *c <= 1.0));
        }
    }
}
