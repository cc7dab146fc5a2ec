//! Fusion of the dense and the lexical channel. An item's score is the sum over the channels of `weight * (s - floor) / best`, with
//! its score `s` in the channel, the channel's best score, and the score of the channel's hundredth hit as the floor (Bruch, Gai,
//! Ingber, 2023, compare such sums with ranks). An item that was not found has at most the score of the last hit, and counts with that.
//! BM25 gives 0 to an item without the query's words, so its floor is 0 if it has fewer hits. By default, the item's `TermFeatures` are
//! added with constant weights.
//!
//! With a constant it is reciprocal rank fusion instead: `weight / (constant + rank)` (Cormack, Clarke, Büttcher, 2009). With fitted
//! weights it is their sum over the scores as they are and over `TermFeatures` (`fitted`).

mod fit;
mod fitted;
mod weights;

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::iter;

use crate::TermFeatures;

pub use fit::{JudgedCandidates, USUAL_WEIGHTS, UsualWeights, cross_validate, fit};
pub use fitted::{FUSION, FeatureWeights, FitQuality, FittedFusion, FittedOn, ModelFusion, NUM_FEATURES, TRANSLATION};
pub use weights::{Fusion, Hybrid, Weights};

/// Hits per channel before fusion; ten or a hundred times as many when more are requested.
const MIN_DEPTH: usize = 100;
const DEPTH_FACTOR: usize = 10;
/// Hits per channel for each hit shown: deeper hits of the other channel could still change the order.
const HITS_PER_SHOWN: usize = 2;

/// Item of a channel's list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelHit<K> {
    pub key: K,
    pub score: f32,
}

/// Item of the fused list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedHit {
    pub score: f32,
    pub dense: Option<FusedPart>,
    pub lexical: Option<FusedPart>,
    /// If they are a part of the score.
    pub terms: Option<TermFeatures>,
}

/// Contribution of a channel to an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedPart {
    /// Place in the channel's list, from 0.
    pub place: usize,
    pub part: f32,
}

/// How a channel's hits become parts of scores.
struct Channel<'a, K> {
    hits: &'a [ChannelHit<K>],
    weight: f32,
    constant: Option<f32>,
    /// The same at every depth, so that scores can be compared over pages.
    floor: f32,
    best: f32,
    /// Part of an item that was not found at this depth.
    missing: f32,
}

impl<'a, K> Channel<'a, K> {
    /// `absent`: score of an item that a complete list lacks; None if a complete list has all items.
    fn new(all: &'a [ChannelHit<K>], depth: usize, weight: f32, fusion: &Fusion, absent: Option<f32>) -> Self {
        let floor_at = |depth: usize| {
            let last = all[..depth.min(all.len())].last().map_or(0.0, |hit| hit.score);
            absent.filter(|_| all.len() < depth).unwrap_or(last)
        };
        let best = all.first().map_or(0.0, |hit| hit.score.abs()).max(f32::MIN_POSITIVE);
        let (constant, floor, best) = match fusion {
            Fusion::Weights(weights) => (weights.constant, floor_at(MIN_DEPTH), best),
            Fusion::Fitted(_) => (None, 0.0, 1.0),
        };
        let missing = if constant.is_some() { 0.0 } else { weight * (floor_at(depth) - floor) / best };
        Self { hits: &all[..depth.min(all.len())], weight, constant, floor, best, missing }
    }

    fn part(&self, place: usize) -> FusedPart {
        let part = match self.constant {
            Some(constant) => self.weight / (constant + (place + 1) as f32),
            None => self.weight * (self.hits[place].score - self.floor) / self.best,
        };
        FusedPart { place, part }
    }
}

/// Hits of each channel that the first `k` fused hits need.
pub fn fusion_depth(k: usize) -> usize {
    depths().find(|depth| depth / HITS_PER_SHOWN >= k).unwrap_or(usize::MAX)
}

fn depths() -> impl Iterator<Item = usize> {
    iter::successors(Some(MIN_DEPTH), |depth| depth.checked_mul(DEPTH_FACTOR))
}

/// First `k` fused hits of two lists of items, best first. `compare` gives the terms of an item; it is called if they have a weight.
/// Pages are consistent: the first hits do not depend on `k`, because each depth keeps the hits of the previous one and adds new ones
/// below them.
pub fn fuse<K: Eq + Hash + Copy>(
    dense: &[ChannelHit<K>],
    lexical: &[ChannelHit<K>],
    fusion: &Fusion,
    k: usize,
    mut compare: impl FnMut(K) -> TermFeatures,
) -> Vec<FusedHit> {
    let place = |part: &Option<FusedPart>| part.map(|part| part.place);
    let key =
        |hit: &FusedHit| place(&hit.dense).map(|at| dense[at].key).or(place(&hit.lexical).map(|at| lexical[at].key));
    let (dense_weight, lexical_weight) = fusion.channel_weights();
    let (mut hits, mut seen): (Vec<FusedHit>, HashSet<K>) = (Vec::new(), HashSet::new());
    for depth in depths() {
        let mut fused = merge(
            &Channel::new(dense, depth, dense_weight, fusion, None),
            &Channel::new(lexical, depth, lexical_weight, fusion, Some(0.0)),
        );
        fused.retain(|hit| key(hit).is_some_and(|key| !seen.contains(&key)));
        if let Some(weights) = fusion.term_weights() {
            for hit in &mut fused {
                let terms = key(hit).map(&mut compare).unwrap_or_default();
                hit.score += weights.of_terms(&terms);
                hit.terms = Some(terms);
            }
        }
        sort(&mut fused, lexical_weight > dense_weight);
        let is_all = depth >= dense.len().max(lexical.len());
        let room = if is_all { usize::MAX } else { depth / HITS_PER_SHOWN - hits.len() };
        let highest = hits.last().map_or(f32::INFINITY, |hit| hit.score);
        fused.iter_mut().for_each(|hit| hit.score = hit.score.min(highest));
        hits.extend(fused.into_iter().take(room));
        // hits cut off here can enter at the next depth
        seen = hits.iter().filter_map(key).collect();
        if is_all || hits.len() >= k {
            break;
        }
    }
    hits.truncate(k);
    hits
}

/// The candidates that a search for few hits would fuse, in the order of the default weights, with the features that fitted weights are
/// multiplied with: an item's scores in both channels and its terms.
pub fn candidates<K: Eq + Hash + Copy>(
    dense: &[ChannelHit<K>],
    lexical: &[ChannelHit<K>],
    compare: impl FnMut(K) -> TermFeatures,
) -> Vec<(K, [f32; NUM_FEATURES])> {
    let (dense, lexical) = (&dense[..dense.len().min(MIN_DEPTH)], &lexical[..lexical.len().min(MIN_DEPTH)]);
    let plain = Fusion::Fitted(ModelFusion::default());
    let missing = (
        Channel::new(dense, MIN_DEPTH, 1.0, &plain, None).missing,
        Channel::new(lexical, MIN_DEPTH, 1.0, &plain, Some(0.0)).missing,
    );
    let fused = fuse(dense, lexical, &Fusion::default(), usize::MAX, compare);
    let features = fused.into_iter().filter_map(|hit| {
        let in_dense = hit.dense.map(|part| dense[part.place]);
        let in_lexical = hit.lexical.map(|part| lexical[part.place]);
        let key = in_dense.or(in_lexical)?.key;
        let TermFeatures { overlap, trigrams, missing_numbers, translation } = hit.terms.unwrap_or_default();
        let scores = (in_dense.map_or(missing.0, |hit| hit.score), in_lexical.map_or(missing.1, |hit| hit.score));
        Some((key, [scores.0, scores.1, overlap, trigrams, missing_numbers, translation]))
    });
    features.collect()
}

/// Items of both channels, each once, with the channels' parts of its score.
fn merge<K: Eq + Hash + Copy>(dense: &Channel<'_, K>, lexical: &Channel<'_, K>) -> Vec<FusedHit> {
    let places: HashMap<K, usize> = dense.hits.iter().map(|hit| hit.key).zip(0..).collect();
    let of_dense = (0..dense.hits.len()).map(|at| {
        let part = dense.part(at);
        FusedHit { score: part.part + lexical.missing, dense: Some(part), lexical: None, terms: None }
    });
    let mut all: Vec<FusedHit> = of_dense.collect();
    for (at, hit) in lexical.hits.iter().enumerate() {
        let part = lexical.part(at);
        match places.get(&hit.key) {
            Some(place) => {
                let hit = &mut all[*place];
                hit.score = hit.dense.map_or(0.0, |dense| dense.part) + part.part;
                hit.lexical = Some(part);
            }
            None => {
                let score = dense.missing + part.part;
                all.push(FusedHit { score, dense: None, lexical: Some(part), terms: None });
            }
        }
    }
    // a channel without weight adds no hits
    all.retain(|hit| hit.dense.is_some() && dense.weight != 0.0 || hit.lexical.is_some() && lexical.weight != 0.0);
    all
}

/// Best first. On equal scores, the better rank in the channel with the higher weight comes first.
fn sort(hits: &mut [FusedHit], by_lexical: bool) {
    let rank = |hit: &FusedHit| {
        let part = if by_lexical { hit.lexical } else { hit.dense };
        part.map_or(usize::MAX, |part| part.place)
    };
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| rank(a).cmp(&rank(b))));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<K: Copy>(hits: &[(K, f32)]) -> Vec<ChannelHit<K>> {
        hits.iter().map(|(key, score)| ChannelHit { key: *key, score: *score }).collect()
    }

    fn part(place: usize, part: f32) -> Option<FusedPart> {
        Some(FusedPart { place, part })
    }

    fn fitted(weights: FeatureWeights) -> Fusion {
        Fusion::Fitted(ModelFusion { weights, ..ModelFusion::default() })
    }

    fn by_weights<K: Eq + Hash + Copy>(
        dense: &[ChannelHit<K>],
        lexical: &[ChannelHit<K>],
        weights: Weights,
        k: usize,
    ) -> Vec<FusedHit> {
        fuse(dense, lexical, &Fusion::Weights(weights), k, |_| unreachable!("no terms are needed"))
    }

    #[test]
    fn ranks_are_fused_by_the_formula() {
        let weights = Weights { lexical: 2.0, constant: Some(60.0), ..Weights::default() };
        let (dense, lexical) = (list(&[("a", 0.9), ("b", 0.8), ("c", 0.7)]), list(&[("c", 5.0), ("d", 4.0)]));
        let expected = [
            FusedHit {
                score: 1.0 / 63.0 + 2.0 / 61.0,
                dense: part(2, 1.0 / 63.0),
                lexical: part(0, 2.0 / 61.0),
                terms: None,
            },
            FusedHit { score: 2.0 / 62.0, dense: None, lexical: part(1, 2.0 / 62.0), terms: None },
            FusedHit { score: 1.0 / 61.0, dense: part(0, 1.0 / 61.0), lexical: None, terms: None },
        ];
        assert_eq!(by_weights(&dense, &lexical, weights, 3), expected);
        // a channel with weight 0 adds no hits
        let none = Weights { lexical: 0.0, ..weights };
        assert_eq!(by_weights(&list(&[("a", 1.0)]), &list(&[("b", 1.0)]), none, 3).len(), 1);
    }

    #[test]
    fn scores_are_fused_by_the_formula() {
        let weights = Weights { lexical: 2.0, ..Weights::default() };
        let (dense, lexical) = (list(&[("a", 0.8), ("b", 0.6), ("c", 0.4)]), list(&[("c", 8.0), ("d", 3.0)]));
        let found = by_weights(&dense, &lexical, weights, 9);
        // dense: the floor is 0.4; lexical: both hits are all there are, so the floor is 0
        let expected = [("c", 2.0), ("d", 2.0 * 3.0 / 8.0), ("a", (0.8 - 0.4) / 0.8), ("b", (0.6 - 0.4) / 0.8)];
        let key = |hit: &FusedHit| hit.dense.map_or_else(|| "d", |at| dense[at.place].key);
        assert_eq!(found.iter().map(key).collect::<Vec<_>>(), expected.map(|(key, _)| key));
        for (hit, (_, score)) in found.iter().zip(expected) {
            assert!((hit.score - score).abs() < 1e-6, "{hit:?} is not {score}");
        }
        // a list that was cut: what it lacks may have up to its last score
        let many: Vec<_> = (0..MIN_DEPTH).map(|at| (at, 100.0 - at as f32 / 2.0)).collect();
        let cut = by_weights(&list(&[(500, 1.0)]), &list(&many), weights, 1);
        assert_eq!(cut[0].lexical, part(0, 2.0 * (100.0 - 50.5) / 100.0));
        assert!(by_weights(&list::<u32>(&[]), &list(&[]), weights, 3).is_empty());
        assert_eq!(
            by_weights(&list(&[(1, 0.0), (2, 0.0)]), &list(&[]), weights, 3).len(),
            2,
            "no score is not a number"
        );
        // a channel without weight does not decide between equal scores
        let none = Weights { dense: 0.0, ..weights };
        let lexical = by_weights(&list(&[(2, 0.9), (1, 0.8)]), &list(&[(1, 3.0), (2, 3.0)]), none, 2);
        assert_eq!(lexical.iter().map(|hit| hit.lexical.unwrap().place).collect::<Vec<_>>(), [0, 1]);
    }

    /// The first hits do not depend on `k`, and none repeats.
    #[test]
    fn hits_do_not_depend_on_k() {
        let order =
            |step: usize| (0..3000).map(|i| (i * step % 3000, 1.0 - i as f32 / 3000.0)).collect::<Vec<(usize, f32)>>();
        let (dense, lexical) = (list(&order(7)), list(&order(11)));
        for constant in [None, Some(60.0)] {
            let weights = Weights { constant, ..Weights::default() };
            let items = |k| -> Vec<usize> {
                let item = |hit: FusedHit| {
                    hit.dense.map_or_else(|| lexical[hit.lexical.unwrap().place].key, |at| dense[at.place].key)
                };
                by_weights(&dense, &lexical, weights, k).into_iter().map(item).collect()
            };
            let all = items(3000);
            let scores: Vec<f32> = by_weights(&dense, &lexical, weights, 3000).iter().map(|hit| hit.score).collect();
            assert!(scores[..50].iter().all(|first| scores[500..].iter().all(|later| first > later)), "over pages");
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), 3000);
            for k in [0, 1, 49, 50, 51, 300, 500, 501, 2000] {
                assert_eq!(items(k), all[..k]);
            }
        }
        assert_eq!([1, 50, 51, 500, 501].map(fusion_depth), [100, 100, 1000, 1000, 10_000]);
    }

    #[test]
    fn fitted_weights_add_scores_and_terms() {
        let weights = FeatureWeights::from_array([2.0, 0.5, 3.0, 1.0, -4.0, 0.5]);
        let fusion = fitted(weights);
        let (dense, lexical) = (list(&[("a", 0.8), ("b", 0.6)]), list(&[("b", 8.0), ("c", 3.0)]));
        let terms = |key: &str| match key {
            "c" => TermFeatures { overlap: 1.0, trigrams: 0.5, translation: 4.0, ..TermFeatures::default() },
            _ => TermFeatures { missing_numbers: 1.0, ..TermFeatures::default() },
        };
        let found = fuse(&dense, &lexical, &fusion, 9, terms);
        // an item that vectors did not find counts with their last score, one without terms with 0
        let expected = [2.0 * 0.6 + 0.5 * 3.0 + 3.0 + 0.5 + 2.0, 2.0 * 0.6 + 0.5 * 8.0 - 4.0, 2.0 * 0.8 - 4.0];
        for (hit, expected) in found.iter().zip(expected) {
            assert!((hit.score - expected).abs() < 1e-6, "{hit:?} is not {expected}");
        }
        assert_eq!(found[0].terms, Some(terms("c")));
    }

    #[test]
    fn the_default_adds_terms_to_scaled_scores() {
        let terms = TermFeatures { overlap: 0.5, trigrams: 0.25, missing_numbers: 1.0, translation: 9.0 };
        let compare = |key| if key == "b" { terms } else { TermFeatures::default() };
        let (dense, lexical) = (list(&[("a", 0.8), ("b", 0.4)]), list(&[("a", 8.0), ("b", 2.0)]));
        let found = fuse(&dense, &lexical, &Fusion::default(), 9, compare);
        let expected = [(0.8 - 0.4) / 0.8 + 1.0, 2.0 / 8.0 + 0.5 * 0.5 + 0.7 * 0.25 - 0.2];
        for (hit, expected) in found.iter().zip(expected) {
            assert!((hit.score - expected).abs() < 1e-6, "{hit:?} is not {expected}");
        }
        assert_eq!(found[1].terms, Some(terms));
    }

    #[test]
    fn candidates_have_the_features_that_fitted_weights_multiply() {
        let weights = FeatureWeights::from_array([2.0, 0.5, 3.0, 1.0, -4.0, 0.5]);
        let fusion = fitted(weights);
        let dense: Vec<_> = (0..100).map(|at| (at, 1.0 - at as f32 / 200.0)).collect();
        let lexical: Vec<_> = (50..90).map(|at| (3 * at, 90.0 - at as f32)).collect();
        let terms = |key: i32| TermFeatures {
            overlap: 1.0 / (1 + key) as f32,
            trigrams: 0.5,
            missing_numbers: 1.0,
            translation: (key % 7) as f32,
        };
        let found = candidates(&list(&dense), &list(&lexical), terms);
        let fused = fuse(&list(&dense), &list(&lexical), &fusion, usize::MAX, terms);
        assert_eq!(found.len(), fused.len());
        for hit in fused {
            let key = hit.dense.map_or_else(|| lexical[hit.lexical.unwrap().place].0, |part| dense[part.place].0);
            let (_, features) = found.iter().find(|(of, _)| *of == key).unwrap();
            let score: f32 = weights.named().iter().zip(features).map(|((_, weight), x)| weight * x).sum();
            assert!((score - hit.score).abs() < 1e-5, "{key}: {score} is not {}", hit.score);
        }
    }

    #[test]
    fn deeper_hits_stay_below_those_of_earlier_pages() {
        let weights = FeatureWeights { dense: 1.0, trigrams: 1.0, ..FeatureWeights::default() };
        let fusion = fitted(weights);
        let dense: Vec<_> = (0..1000).map(|at| (at, 1.0 - at as f32 / 1000.0)).collect();
        let terms = |key: usize| TermFeatures { trigrams: key as f32, ..TermFeatures::default() };
        let found = |k| fuse(&list(&dense), &list::<usize>(&[]), &fusion, k, terms);
        let all = found(1000);
        assert_eq!(found(50), all[..50]);
        assert!(all.is_sorted_by(|a, b| a.score >= b.score));
        assert_eq!(all[0].dense.unwrap().place, 99, "the last of the first hundred has the best terms");
    }
}
