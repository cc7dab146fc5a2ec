//! Fits the weights of features, such as those of hybrid search, to judged queries: a listwise softmax over each query's candidates, whose targets are the gains
//! of their levels.
//!
//! ```text
//! L(w) = −1/Q Σ_q Σ_i g_i/Σg · log softmax(w·x)_i + κ/2Q Σ_f (w_f σ_f − u_f)²
//! ```
//!
//! `x`: features; `g`: gains; `σ_f`: the feature's deviation among the candidates of a query; `u_f`: its usual weight in such deviations,
//! and `κ` how firmly it holds. The loss is convex; Newton's method finds its minimum in a few steps.

use super::fitted::{FitQuality, NUM_FEATURES};

/// A feature that varies less says nothing.
const MIN_VARIANCE: f64 = 1e-6;
const MAX_STEPS: usize = 50;
const MAX_HALVINGS: i32 = 30;
const TOLERANCE: f64 = 1e-10;
const FOLDS: usize = 5;
/// Rank at which nDCG is cut.
const TOP: usize = 10;

/// The candidates of one query, in the order that fitted weights are compared with.
#[derive(Clone, Debug, Default)]
pub struct JudgedCandidates<const N: usize> {
    pub features: Vec<[f32; N]>,
    /// Gain of each candidate's level; 0 for an unjudged one.
    pub gains: Vec<f64>,
    /// Gains of all judged items, found or not.
    pub judged: Vec<f64>,
}

/// Weights that few queries leave nearly as they are.
#[derive(Clone, Copy, Debug)]
pub struct UsualWeights<const N: usize> {
    /// In deviations of the features.
    pub weights: [f64; N],
    /// κ.
    pub hold: f64,
}

impl<const N: usize> UsualWeights<N> {
    /// Nothing is known; the little hold keeps the minimum finite.
    pub const NONE: Self = Self { weights: [0.0; N], hold: 0.1 };
}

/// Usual weights of hybrid search, from what the raters of a shop gave several models (docs/decisions/0040-few-judged-queries.md).
pub const USUAL_WEIGHTS: UsualWeights<NUM_FEATURES> =
    UsualWeights { weights: [0.2, 0.3, 0.1, 0.5, -0.3, 1.0], hold: 30.0 };

/// The weights with the lowest loss; none if no query has a candidate with a gain.
pub fn fit<const N: usize>(queries: &[JudgedCandidates<N>], usual: &UsualWeights<N>) -> Option<[f32; N]> {
    let queries: Vec<&JudgedCandidates<N>> = queries.iter().collect();
    fit_among(&queries, usual).map(|weights| weights.map(|weight| weight as f32))
}

/// Compares fitted weights with the given order; none if there is nothing to fit on.
pub fn cross_validate<const N: usize>(queries: &[JudgedCandidates<N>], usual: &UsualWeights<N>) -> Option<FitQuality> {
    let (mut default, mut fitted, mut num) = (0.0, 0.0, 0);
    for fold in 0..FOLDS {
        let is_out = |at: usize| at % FOLDS == fold;
        let others: Vec<&JudgedCandidates<N>> =
            queries.iter().enumerate().filter(|(at, _)| !is_out(*at)).map(|(_, query)| query).collect();
        let weights = fit_among(&others, usual)?;
        for (_, query) in queries.iter().enumerate().filter(|(at, _)| is_out(*at)) {
            let as_given: Vec<usize> = (0..query.gains.len()).collect();
            let mut by_weights = as_given.clone();
            let score = |at: &usize| dot(&weights, &widen(&query.features[*at]));
            by_weights.sort_by(|a, b| score(b).total_cmp(&score(a)));
            if let (Some(before), Some(after)) = (query.ndcg(&as_given), query.ndcg(&by_weights)) {
                default += before;
                fitted += after;
                num += 1;
            }
        }
    }
    (num > 0).then(|| FitQuality { default: default / f64::from(num), fitted: fitted / f64::from(num) })
}

impl<const N: usize> JudgedCandidates<N> {
    fn ndcg(&self, order: &[usize]) -> Option<f64> {
        let dcg = |gains: &mut dyn Iterator<Item = f64>| -> f64 {
            gains.take(TOP).enumerate().map(|(rank, gain)| gain / (rank as f64 + 2.0).log2()).sum()
        };
        let mut best = self.judged.clone();
        best.sort_by(|a, b| b.total_cmp(a));
        let ideal = dcg(&mut best.into_iter());
        (ideal > 0.0).then(|| dcg(&mut order.iter().map(|at| self.gains[*at])) / ideal)
    }
}

fn fit_among<const N: usize>(queries: &[&JudgedCandidates<N>], usual: &UsualWeights<N>) -> Option<[f64; N]> {
    let queries: Vec<&JudgedCandidates<N>> =
        queries.iter().copied().filter(|query| query.gains.iter().sum::<f64>() > 0.0).collect();
    if queries.is_empty() {
        return None;
    }
    let holds = holds(&queries, usual);
    let mut weights = [0.0; N];
    let mut at = Loss::of(&queries, &weights, &holds);
    for _ in 0..MAX_STEPS {
        let step = solve(at.curvature, at.slope);
        let decrease = dot(&step, &at.slope);
        if decrease < TOLERANCE {
            break;
        }
        let halved = (0..MAX_HALVINGS).map(|halvings| 2.0_f64.powi(-halvings)).find_map(|share| {
            let moved: [f64; N] = std::array::from_fn(|f| weights[f] - share * step[f]);
            let there = Loss::of(&queries, &moved, &holds);
            (there.value < at.value).then_some((moved, there))
        });
        // no lower loss within rounding: the minimum
        let Some(lower) = halved else { break };
        (weights, at) = lower;
    }
    Some(weights)
}

/// A feature's part of the last term of the loss.
struct Hold {
    weight: f64,
    strength: f64,
}

fn holds<const N: usize>(queries: &[&JudgedCandidates<N>], usual: &UsualWeights<N>) -> [Hold; N] {
    let variances = variances(queries);
    let per_query = usual.hold / queries.len() as f64;
    std::array::from_fn(|f| {
        let weight = if variances[f] < MIN_VARIANCE { 0.0 } else { usual.weights[f] / variances[f].sqrt() };
        Hold { weight, strength: per_query * variances[f].max(MIN_VARIANCE) }
    })
}

/// Mean variance of each feature among the candidates of a query.
fn variances<const N: usize>(queries: &[&JudgedCandidates<N>]) -> [f64; N] {
    let mut sum = [0.0; N];
    for query in queries {
        let num = query.features.len() as f64;
        let mean: [f64; N] = std::array::from_fn(|f| query.features.iter().map(|x| f64::from(x[f])).sum::<f64>() / num);
        for features in &query.features {
            let features = widen(features);
            (0..N).for_each(|f| sum[f] += (features[f] - mean[f]).powi(2) / num);
        }
    }
    sum.map(|sum| sum / queries.len() as f64)
}

/// The loss at some weights, with its first and second derivatives.
struct Loss<const N: usize> {
    value: f64,
    slope: [f64; N],
    curvature: [[f64; N]; N],
}

impl<const N: usize> Loss<N> {
    fn of(queries: &[&JudgedCandidates<N>], weights: &[f64; N], holds: &[Hold; N]) -> Self {
        let mut loss = Self { value: 0.0, slope: [0.0; N], curvature: [[0.0; N]; N] };
        for query in queries {
            loss.add(query, weights, 1.0 / queries.len() as f64);
        }
        for (f, Hold { weight, strength }) in holds.iter().enumerate() {
            let away = weights[f] - weight;
            loss.value += strength * away * away / 2.0;
            loss.slope[f] += strength * away;
            loss.curvature[f][f] += strength;
        }
        loss
    }

    fn add(&mut self, query: &JudgedCandidates<N>, weights: &[f64; N], share: f64) {
        let scores: Vec<f64> = query.features.iter().map(|features| dot(weights, &widen(features))).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - highest).exp()).sum();
        let gains: f64 = query.gains.iter().sum();
        let mut mean = [0.0; N];
        for ((features, score), gain) in query.features.iter().zip(&scores).zip(&query.gains) {
            let (x, log_p) = (widen(features), score - highest - total.ln());
            let (p, target) = (log_p.exp(), gain / gains);
            self.value -= share * target * log_p;
            for f in 0..N {
                mean[f] += p * x[f];
                self.slope[f] += share * (p - target) * x[f];
                (0..N).for_each(|g| self.curvature[f][g] += share * p * x[f] * x[g]);
            }
        }
        for f in 0..N {
            (0..N).for_each(|g| self.curvature[f][g] -= share * mean[f] * mean[g]);
        }
    }
}

fn widen<const N: usize>(features: &[f32; N]) -> [f64; N] {
    features.map(f64::from)
}

fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// x with a·x = b, for a positive definite matrix, by Gaussian elimination.
fn solve<const N: usize>(mut a: [[f64; N]; N], mut b: [f64; N]) -> [f64; N] {
    for column in 0..N {
        let (pivot, pivot_b) = (a[column], b[column]);
        for row in column + 1..N {
            let factor = a[row][column] / pivot[column];
            (column..N).for_each(|at| a[row][at] -= factor * pivot[at]);
            b[row] -= factor * pivot_b;
        }
    }
    for row in (0..N).rev() {
        let known: f64 = (row + 1..N).map(|at| a[row][at] * b[at]).sum();
        b[row] = (b[row] - known) / a[row][row];
    }
    b
}

#[cfg(test)]
mod tests {
    use souk_io::splitmix::SplitMix64;

    use super::super::fitted::FeatureWeights;
    use super::*;

    const NONE: UsualWeights<NUM_FEATURES> = UsualWeights::NONE;

    /// Queries whose gains follow known weights, with noise.
    fn queries(num: usize) -> Vec<JudgedCandidates<NUM_FEATURES>> {
        let mut random = SplitMix64::new(5);
        let mut uniform = || random.below(1 << 20) as f32 / (1 << 20) as f32;
        let query = |_| {
            let features: Vec<[f32; NUM_FEATURES]> = (0..20).map(|_| std::array::from_fn(|_| uniform())).collect();
            let score = |x: &[f32; NUM_FEATURES]| 6.0 * x[0] + 3.0 * x[3] - 3.0 * x[4];
            let best = (0..20).max_by(|a, b| score(&features[*a]).total_cmp(&score(&features[*b]))).unwrap();
            let gains: Vec<f64> = (0..20).map(|at| if at == best { 7.0 } else { 0.0 }).collect();
            JudgedCandidates { features, judged: gains.clone(), gains }
        };
        (0..num).map(query).collect()
    }

    #[test]
    fn the_slope_is_zero_at_the_fitted_weights_and_equals_finite_differences() {
        let queries = queries(50);
        let all: Vec<&JudgedCandidates<NUM_FEATURES>> = queries.iter().collect();
        let usual = UsualWeights { weights: [0.3, 0.1, 0.0, 0.5, -0.4, 0.2], hold: 3.0 };
        let holds = holds(&all, &usual);
        let fitted = fit_among(&all, &usual).unwrap();
        assert!(Loss::of(&all, &fitted, &holds).slope.iter().all(|slope| slope.abs() < 1e-6));
        let at = [0.5, -0.2, 0.1, 1.0, -0.7, 0.3];
        let Loss { slope, curvature, .. } = Loss::of(&all, &at, &holds);
        for f in 0..NUM_FEATURES {
            let moved = |by: f64| {
                let mut weights = at;
                weights[f] += by;
                Loss::of(&all, &weights, &holds)
            };
            let (up, down) = (moved(1e-5), moved(-1e-5));
            assert!(((up.value - down.value) / 2e-5 - slope[f]).abs() < 1e-7);
            for (g, curvature) in curvature[f].iter().enumerate() {
                assert!(((up.slope[g] - down.slope[g]) / 2e-5 - curvature).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn known_weights_are_found_and_cross_validation_says_what_they_bring() {
        let queries = queries(400);
        let weights = FeatureWeights::from_array(fit(&queries, &NONE).unwrap());
        let share = |weight: f32| weight / weights.dense;
        assert!((share(weights.trigrams) - 0.5).abs() < 0.1, "{weights:?}");
        assert!((share(weights.missing_numbers) + 0.5).abs() < 0.1, "{weights:?}");
        assert!(share(weights.lexical).abs() < 0.1 && share(weights.overlap).abs() < 0.1, "{weights:?}");
        let quality = cross_validate(&queries, &NONE).unwrap();
        assert!(quality.fitted > 0.9 && quality.default < 0.4, "{quality:?}");
    }

    #[test]
    fn few_queries_keep_the_usual_weights_and_many_leave_them() {
        let queries = queries(400);
        let all: Vec<&JudgedCandidates<NUM_FEATURES>> = queries.iter().collect();
        // wrong: the third feature says nothing, the first one most
        let usual = UsualWeights { weights: [0.0, 0.0, 2.0, 0.0, 0.0, 0.0], hold: 3.0 };
        let share = |num: usize| {
            let weights = fit_among(&all[..num], &usual).unwrap();
            weights[2] / weights[0]
        };
        let shares = [2, 20, 400].map(share);
        assert!(shares[0] > 1.0 && shares[0] > 2.0 * shares[1] && shares[2] < 0.1, "{shares:?}");
        // what all candidates share has no weight
        let constant: Vec<_> = queries[..20]
            .iter()
            .cloned()
            .map(|mut query| {
                query.features.iter_mut().for_each(|features| features[2] = 7.0);
                query
            })
            .collect();
        assert!(fit(&constant, &usual).unwrap()[2].abs() < 1e-3);
    }

    #[test]
    fn ndcg_is_the_formula_and_nothing_is_fitted_without_gains() {
        let query = JudgedCandidates {
            features: vec![[0.0; NUM_FEATURES]; 3],
            gains: vec![0.0, 3.0, 7.0],
            judged: vec![7.0, 3.0, 7.0],
        };
        let ideal = 7.0 + 7.0 / 3.0_f64.log2() + 3.0 / 2.0;
        assert!((query.ndcg(&[0, 1, 2]).unwrap() - (3.0 / 3.0_f64.log2() + 7.0 / 2.0) / ideal).abs() < 1e-12);
        let none = JudgedCandidates { gains: vec![0.0; 3], judged: vec![0.0; 3], ..query };
        assert_eq!(none.ndcg(&[0, 1, 2]), None);
        assert_eq!((fit(std::slice::from_ref(&none), &NONE), fit(&[], &NONE)), (None, None));
        assert_eq!(cross_validate(&[none], &NONE), None);
    }
}
