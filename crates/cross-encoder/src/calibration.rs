//! Calibrates a model on pairs it was not trained on: the temperature and cutpoints that maximise the likelihood of the judged
//! levels, the thresholds that maximise agreement with them, and the calibration error (ECE) of P(Good).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agreement::place;
use super::head::{Grading, Loss, NUM_LEVELS};
use souk_io::domain::Level;

/// Number of equally wide bins of a reliability plot.
pub const NUM_BINS: usize = 10;
/// Search range of the temperature; beyond it, a model is all chance or all certainty.
const RANGE: (f64, f64) = (0.02, 50.0);
/// Rounds of coordinate-wise fitting.
const ROUNDS: usize = 30;

/// Objective of the choice of thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Maximise the pairs with the judged level.
    #[default]
    Agreement,
    /// The same with equal total weight for each level, however rare.
    Balanced,
}

/// Result of a calibration, on the pairs it was fitted to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    pub pairs: usize,
    pub temperature: f64,
    /// Cutpoints of an ordinal loss.
    pub cutpoints: [f64; 3],
    pub thresholds: [f64; 3],
    /// Mean negative log-likelihood of the judged level.
    pub nll_before: f64,
    pub nll_after: f64,
}

impl Calibration {
    /// Fits `grading` to the outputs and judged level of each pair.
    pub fn fit(grading: &mut Grading, pairs: &[(Vec<f32>, Level)], choice: Choice) -> Self {
        let nll_before = nll(grading, pairs);
        if !pairs.is_empty() {
            scale(grading, pairs);
            let scored = pairs.iter().map(|(outputs, level)| (grading.score(outputs), *level)).collect();
            grading.thresholds = thresholds(scored, choice);
        }
        Self {
            pairs: pairs.len(),
            temperature: grading.temperature,
            cutpoints: grading.cutpoints,
            thresholds: grading.thresholds,
            nll_before,
            nll_after: nll(grading, pairs),
        }
    }
}

fn nll(grading: &Grading, pairs: &[(Vec<f32>, Level)]) -> f64 {
    let one = |(outputs, level): &(Vec<f32>, Level)| -grading.probabilities(outputs)[place(*level)].max(1e-12).ln();
    pairs.iter().map(one).sum::<f64>() / pairs.len().max(1) as f64
}

/// Maximises the likelihood of the judged levels: coordinate-wise over temperature and, with an ordinal loss, cutpoints, until
/// nothing improves.
fn scale(grading: &mut Grading, pairs: &[(Vec<f32>, Level)]) {
    let outputs = || pairs.iter().filter_map(|(outputs, _)| outputs.first()).map(|output| f64::from(*output));
    let (least, most) = (outputs().fold(f64::INFINITY, f64::min), outputs().fold(f64::NEG_INFINITY, f64::max));
    let wide = (most - least).max(1.0);
    // flat regions can mislead the search, so a result that is not better is discarded
    let mut best = nll(grading, pairs);
    for _ in 0..ROUNDS {
        let before = best;
        let at = |log: f64| Grading { temperature: log.exp(), ..grading.clone() };
        let found = at(minimize(|log| nll(&at(log), pairs), RANGE.0.ln(), RANGE.1.ln()));
        take_better(grading, found, pairs, &mut best);
        for k in 0..3 {
            if grading.loss == Loss::FourWay {
                break;
            }
            let with = |cut: f64| {
                let mut moved = grading.clone();
                moved.cutpoints[k] = cut;
                moved
            };
            let low = if k == 0 { least - wide } else { grading.cutpoints[k - 1] };
            let high = if k == 2 { most + wide } else { grading.cutpoints[k + 1] };
            let found = with(minimize(|cut| nll(&with(cut), pairs), low, high));
            take_better(grading, found, pairs, &mut best);
        }
        if before - best < 1e-6 {
            break;
        }
    }
}

fn take_better(grading: &mut Grading, found: Grading, pairs: &[(Vec<f32>, Level)], best: &mut f64) {
    let reached = nll(&found, pairs);
    if reached < *best {
        (*grading, *best) = (found, reached);
    }
}

/// Minimises a unimodal function by golden-section search.
fn minimize(at: impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    let ratio = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut left, mut right) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut at_left, mut at_right) = (at(left), at(right));
    while high - low > 1e-4 {
        if at_left <= at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - ratio * (high - low);
            at_left = at(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + ratio * (high - low);
            at_right = at(right);
        }
    }
    (low + high) / 2.0
}

/// The three thresholds that agree best, over all possible ones; each lies midway between two scores.
fn thresholds(mut scored: Vec<(f64, Level)>, choice: Choice) -> [f64; 3] {
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut counts = [0_u64; NUM_LEVELS];
    scored.iter().for_each(|(_, level)| counts[place(*level)] += 1);
    let weight: [f64; NUM_LEVELS] = std::array::from_fn(|level| match choice {
        Choice::Agreement => 1.0,
        Choice::Balanced => 1.0 / counts[level].max(1) as f64,
    });
    // best[k]: largest weight that agrees if everything so far has levels up to k; begins[k]: where those levels start
    let mut best = [0.0; NUM_LEVELS];
    let mut begins = [[0_usize; 3]; NUM_LEVELS];
    let mut done = 0;
    for tied in scored.chunk_by(|a, b| a.0 == b.0) {
        for k in 1..NUM_LEVELS {
            if best[k - 1] > best[k] {
                best[k] = best[k - 1];
                begins[k] = begins[k - 1];
                begins[k][k - 1] = done;
            }
        }
        for (_, level) in tied {
            best[place(*level)] += weight[place(*level)];
        }
        done += tied.len();
    }
    let most = best.iter().fold(f64::NEG_INFINITY, |most, value| most.max(*value));
    let last = best.iter().position(|value| *value == most).unwrap_or(0);
    // levels above the last one do not occur
    let cut = |k: usize| if k < last { begins[last][k] } else { scored.len() };
    std::array::from_fn(|k| between(&scored, cut(k)))
}

/// A threshold that the scores from index `at` on reach, and the ones before do not.
fn between(scored: &[(f64, Level)], at: usize) -> f64 {
    match (at.checked_sub(1).and_then(|before| scored.get(before)), scored.get(at)) {
        (Some((below, _)), Some((above, _))) => (below + above) / 2.0,
        (None, _) => 0.0,
        // above every score
        (_, None) => 2.0,
    }
}

/// Reliability of predicted probabilities.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reliability {
    /// Expected calibration error: mean distance, over pairs, between a bin's mean probability and its fraction of Good pairs.
    pub ece: Option<f64>,
    pub bins: Vec<Bin>,
}

/// Pairs with similar P(Good).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bin {
    pub pairs: usize,
    /// Means of the bin; none if it is empty.
    pub probability: Option<f64>,
    pub good: Option<f64>,
}

impl Reliability {
    /// P(Good) of each pair, and whether it is Good.
    pub fn of(pairs: impl Iterator<Item = (f64, bool)>) -> Self {
        let mut sums = [(0_usize, 0.0, 0_usize); NUM_BINS];
        for (probability, good) in pairs {
            let bin = &mut sums[((probability * NUM_BINS as f64) as usize).min(NUM_BINS - 1)];
            *bin = (bin.0 + 1, bin.1 + probability, bin.2 + usize::from(good));
        }
        let num: usize = sums.iter().map(|(pairs, _, _)| pairs).sum();
        let far = sums.iter().map(|(_, probability, good)| (probability - *good as f64).abs()).sum::<f64>();
        let bin = |(pairs, probability, good): (usize, f64, usize)| Bin {
            pairs,
            probability: (pairs > 0).then(|| probability / pairs as f64),
            good: (pairs > 0).then(|| good as f64 / pairs as f64),
        };
        Self { ece: (num > 0).then(|| far / num as f64), bins: sums.into_iter().map(bin).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use souk_io::domain::Level::{L1, L2, L3, L4};

    #[test]
    fn ece_is_checked_by_hand() {
        let pairs = [(0.05, false), (0.15, false), (0.15, true), (0.95, true), (1.0, true), (0.92, false)];
        let reliability = Reliability::of(pairs.into_iter());
        // bins: 0.05 with 0 of 1; 0.15 with 1 of 2; 0.9567 with 2 of 3
        let expected = (0.05 + (1.0 - 0.3) + (2.87 - 2.0)) / 6.0;
        assert!((reliability.ece.unwrap() - expected).abs() < 1e-12);
        assert_eq!(reliability.bins.iter().map(|bin| bin.pairs).collect::<Vec<_>>(), [1, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!((reliability.bins[1].good, reliability.bins[2].good), (Some(0.5), None));
        assert_eq!(Reliability::of(std::iter::empty()).ece, None);
    }

    #[test]
    fn thresholds_are_checked_by_hand() {
        let scored = vec![(0.1, L1), (0.2, L2), (0.3, L1), (0.4, L2), (0.5, L3), (0.7, L3), (0.9, L4)];
        let cut = thresholds(scored, Choice::Agreement);
        // 1 1 1 | 2 | 3 3 | 4 agrees in six of seven; so does 1 | 2 2 2 | 3 3 | 4
        assert!((cut[1] - 0.45).abs() < 1e-12 && (cut[2] - 0.8).abs() < 1e-12, "{cut:?}");
        let unseen = thresholds(vec![(0.2, L1), (0.5, L2)], Choice::Agreement);
        assert_eq!(unseen, [0.35, 2.0, 2.0], "levels that were never judged are never given");
        let high = thresholds(vec![(0.2, L3), (0.5, L4)], Choice::Agreement);
        assert_eq!(high, [0.0, 0.0, 0.35]);
        let rare = vec![(0.1, L1), (0.2, L1), (0.3, L1), (0.35, L2), (0.4, L1), (0.5, L1)];
        assert_eq!(thresholds(rare.clone(), Choice::Agreement), [2.0; 3]);
        assert!((thresholds(rare, Choice::Balanced)[0] - 0.325).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn no_other_thresholds_agree_better(pairs in prop::collection::vec((0..12_u8, 1..5_i64), 1..14)) {
            let scored: Vec<(f64, Level)> =
                pairs.iter().map(|(s, l)| (f64::from(*s) / 12.0, Level::from_number(*l).unwrap())).collect();
            let agree = |cut: [f64; 3]| {
                let grading = Grading { thresholds: cut, ..Grading::plain(Loss::Ordinal, [0.0; 3]) };
                scored.iter().filter(|(score, level)| grading.level(*score) == *level).count()
            };
            let found = agree(thresholds(scored.clone(), Choice::Agreement));
            let places: Vec<f64> = (0..=12).map(|at| (f64::from(at) - 0.5) / 12.0).chain([2.0]).collect();
            for (a, b) in places.iter().flat_map(|a| places.iter().map(move |b| (*a, *b))) {
                for c in places.iter().filter(|c| **c >= b && b >= a) {
                    prop_assert!(agree([a, b, *c]) <= found);
                }
            }
        }
    }

    #[test]
    fn cutpoints_that_lie_wrong_are_moved_where_the_levels_are() {
        // at output s the levels are those of cutpoints -2, 0, 3 and temperature 1, counted in hundreds
        let truth = Grading::plain(Loss::Ordinal, [-2.0, 0.0, 3.0]);
        let mut pairs: Vec<(Vec<f32>, Level)> = Vec::new();
        for step in -16..=16 {
            let output = step as f32 / 4.0;
            for (level, share) in Level::ALL.into_iter().zip(truth.probabilities(&[output])) {
                pairs.extend((0..(share * 300.0).round() as usize).map(|_| (vec![output], level)));
            }
        }
        let mut grading = Grading::plain(Loss::Ordinal, [0.0, 0.7, 1.4]);
        Calibration::fit(&mut grading, &pairs, Choice::Agreement);
        assert!((grading.temperature - 1.0).abs() < 0.03, "{grading:?}");
        for (found, wanted) in grading.cutpoints.iter().zip(truth.cutpoints) {
            assert!((found - wanted).abs() < 0.05, "{grading:?}");
        }
    }

    #[test]
    fn a_temperature_undoes_overconfidence() {
        // nine of ten are right, but predicted with near certainty
        let mut pairs: Vec<(Vec<f32>, Level)> = (0..90).map(|_| (vec![8.0], L4)).collect();
        pairs.extend((0..10).map(|_| (vec![8.0], L1)));
        pairs.extend((0..90).map(|_| (vec![-8.0], L1)));
        pairs.extend((0..10).map(|_| (vec![-8.0], L4)));
        let mut grading = Grading::plain(Loss::Ordinal, [-0.1, 0.0, 0.1]);
        let ece = |grading: &Grading| {
            Reliability::of(pairs.iter().map(|(outputs, level)| (grading.good(outputs), level.is_good()))).ece.unwrap()
        };
        let before = ece(&grading);
        let fit = Calibration::fit(&mut grading, &pairs, Choice::Agreement);
        assert!(fit.temperature > 2.0 && fit.nll_after < fit.nll_before, "{fit:?}");
        assert!(ece(&grading) < 0.02 && before > 0.09, "{before} {}", ece(&grading));
    }
}
