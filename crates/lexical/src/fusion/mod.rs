//! Fusion of the dense and the lexical channel. An item's score is the sum over the channels of `weight * (s - floor) / best`, with
//! its score `s` in the channel, the channel's best score, and the score of the channel's hundredth hit as the floor (Bruch, Gai,
//! Ingber, 2023, compare such sums with ranks). An item that was not found has at most the score of the last hit, and counts with that.
//! BM25 gives 0 to an item without the query's words, so its floor is 0 if it has fewer hits.
//!
//! With a constant it is reciprocal rank fusion instead: `weight / (constant + rank)` (Cormack, Clarke, Büttcher, 2009).

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::iter;

use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};

/// Hits per channel before fusion; ten or a hundred times as many when more are requested.
const MIN_DEPTH: usize = 100;
const DEPTH_FACTOR: usize = 10;
/// Hits per channel for each hit shown: deeper hits of the other channel could still change the order.
const HITS_PER_SHOWN: usize = 2;
const MAX_WEIGHT: f32 = 1e6;

/// Weights of the channels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    pub dense: f32,
    pub lexical: f32,
    /// Fuses ranks instead of scores. Higher values flatten the advantage of the first ranks; 60 is usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constant: Option<f32>,
}

/// Whether a search is hybrid, and with which weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected true, false, or weights: {\"dense\": 1, \"lexical\": 1}")]
pub enum Hybrid {
    Enabled(bool),
    Weighted(Weights),
}

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
}

/// Contribution of a channel to an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedPart {
    /// Place in the channel's list, from 0.
    pub place: usize,
    pub part: f32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { dense: 1.0, lexical: 1.0, constant: None }
    }
}

impl Default for Hybrid {
    fn default() -> Self {
        Self::Enabled(false)
    }
}

impl Hybrid {
    /// None if the search is not hybrid.
    pub fn weights(self) -> Option<Weights> {
        match self {
            Self::Enabled(false) => None,
            Self::Enabled(true) => Some(Weights::default()),
            Self::Weighted(weights) => Some(weights),
        }
    }
}

impl Weights {
    pub fn check(&self) -> Result<()> {
        let is_valid = |x: f32| (0.0..=MAX_WEIGHT).contains(&x);
        let are_valid = is_valid(self.dense) && is_valid(self.lexical) && self.constant.is_none_or(is_valid);
        if are_valid && self.dense + self.lexical > 0.0 {
            return Ok(());
        }
        Err(Error::input(format!(
            "set weights and constant to 0 to {MAX_WEIGHT}, and at least one weight above 0: got {} and {}{}",
            self.dense,
            self.lexical,
            self.constant.map_or_else(String::new, |constant| format!(", {constant}"))
        )))
    }
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
    fn new(all: &'a [ChannelHit<K>], depth: usize, weight: f32, constant: Option<f32>, absent: Option<f32>) -> Self {
        let floor_at = |depth: usize| {
            let last = all[..depth.min(all.len())].last().map_or(0.0, |hit| hit.score);
            absent.filter(|_| all.len() < depth).unwrap_or(last)
        };
        let best = all.first().map_or(0.0, |hit| hit.score.abs()).max(f32::MIN_POSITIVE);
        let floor = floor_at(MIN_DEPTH);
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

/// First `k` fused hits of two lists of items, best first. Pages are consistent: the first hits do not depend on `k`, because each
/// depth keeps the hits of the previous one and adds new ones.
pub fn fuse<K: Eq + Hash + Copy>(
    dense: &[ChannelHit<K>],
    lexical: &[ChannelHit<K>],
    weights: Weights,
    k: usize,
) -> Vec<FusedHit> {
    let place = |part: &Option<FusedPart>| part.map(|part| part.place);
    let key =
        |hit: &FusedHit| place(&hit.dense).map(|at| dense[at].key).or(place(&hit.lexical).map(|at| lexical[at].key));
    let (mut hits, mut seen): (Vec<FusedHit>, HashSet<K>) = (Vec::new(), HashSet::new());
    for depth in depths() {
        let fused = fuse_all(
            &Channel::new(dense, depth, weights.dense, weights.constant, None),
            &Channel::new(lexical, depth, weights.lexical, weights.constant, Some(0.0)),
        );
        let is_all = depth >= dense.len().max(lexical.len());
        let room = if is_all { usize::MAX } else { depth / HITS_PER_SHOWN - hits.len() };
        hits.extend(fused.into_iter().filter(|hit| key(hit).is_some_and(|key| !seen.contains(&key))).take(room));
        // hits cut off here can enter at the next depth
        seen = hits.iter().filter_map(key).collect();
        if is_all || hits.len() >= k {
            break;
        }
    }
    hits.truncate(k);
    hits
}

/// On equal scores, the better rank in the channel with the higher weight comes first.
fn fuse_all<K: Eq + Hash + Copy>(dense: &Channel<'_, K>, lexical: &Channel<'_, K>) -> Vec<FusedHit> {
    let places: HashMap<K, usize> = dense.hits.iter().map(|hit| hit.key).zip(0..).collect();
    let of_dense = (0..dense.hits.len()).map(|at| {
        let part = dense.part(at);
        FusedHit { score: part.part + lexical.missing, dense: Some(part), lexical: None }
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
            None => all.push(FusedHit { score: dense.missing + part.part, dense: None, lexical: Some(part) }),
        }
    }
    // a channel without weight adds no hits
    all.retain(|hit| hit.dense.is_some() && dense.weight > 0.0 || hit.lexical.is_some() && lexical.weight > 0.0);
    let rank = |hit: &FusedHit| {
        let part = if lexical.weight > dense.weight { hit.lexical } else { hit.dense };
        part.map_or(usize::MAX, |part| part.place)
    };
    all.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| rank(a).cmp(&rank(b))));
    all
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

    #[test]
    fn ranks_are_fused_by_the_formula() {
        let weights = Weights { dense: 1.0, lexical: 2.0, constant: Some(60.0) };
        let (dense, lexical) = (list(&[("a", 0.9), ("b", 0.8), ("c", 0.7)]), list(&[("c", 5.0), ("d", 4.0)]));
        let expected = [
            FusedHit { score: 1.0 / 63.0 + 2.0 / 61.0, dense: part(2, 1.0 / 63.0), lexical: part(0, 2.0 / 61.0) },
            FusedHit { score: 2.0 / 62.0, dense: None, lexical: part(1, 2.0 / 62.0) },
            FusedHit { score: 1.0 / 61.0, dense: part(0, 1.0 / 61.0), lexical: None },
        ];
        assert_eq!(fuse(&dense, &lexical, weights, 3), expected);
        // a channel with weight 0 adds no hits
        let none = Weights { lexical: 0.0, ..weights };
        assert_eq!(fuse(&list(&[("a", 1.0)]), &list(&[("b", 1.0)]), none, 3).len(), 1);
        assert!(Weights { dense: 0.0, lexical: 0.0, constant: None }.check().is_err());
        assert!(Weights { dense: f32::NAN, ..Weights::default() }.check().is_err());
        assert!(Weights { constant: Some(-1.0), ..Weights::default() }.check().is_err());
    }

    #[test]
    fn scores_are_fused_by_the_formula() {
        let weights = Weights { dense: 1.0, lexical: 2.0, constant: None };
        let (dense, lexical) = (list(&[("a", 0.8), ("b", 0.6), ("c", 0.4)]), list(&[("c", 8.0), ("d", 3.0)]));
        let found = fuse(&dense, &lexical, weights, 9);
        // dense: the floor is 0.4; lexical: both hits are all there are, so the floor is 0
        let expected = [("c", 2.0), ("d", 2.0 * 3.0 / 8.0), ("a", (0.8 - 0.4) / 0.8), ("b", (0.6 - 0.4) / 0.8)];
        let key = |hit: &FusedHit| hit.dense.map_or_else(|| "d", |at| dense[at.place].key);
        assert_eq!(found.iter().map(key).collect::<Vec<_>>(), expected.map(|(key, _)| key));
        for (hit, (_, score)) in found.iter().zip(expected) {
            assert!((hit.score - score).abs() < 1e-6, "{hit:?} is not {score}");
        }
        // a list that was cut: what it lacks may have up to its last score
        let many: Vec<_> = (0..MIN_DEPTH).map(|at| (at, 100.0 - at as f32 / 2.0)).collect();
        let cut = fuse(&list(&[(500, 1.0)]), &list(&many), weights, 1);
        assert_eq!(cut[0].lexical, part(0, 2.0 * (100.0 - 50.5) / 100.0));
        assert!(fuse(&list::<u32>(&[]), &list(&[]), weights, 3).is_empty());
        assert_eq!(fuse(&list(&[(1, 0.0), (2, 0.0)]), &list(&[]), weights, 3).len(), 2, "no score is not a number");
        // a channel without weight does not decide between equal scores
        let none = Weights { dense: 0.0, ..weights };
        let lexical = fuse(&list(&[(2, 0.9), (1, 0.8)]), &list(&[(1, 3.0), (2, 3.0)]), none, 2);
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
                fuse(&dense, &lexical, weights, k).into_iter().map(item).collect()
            };
            let all = items(3000);
            let scores: Vec<f32> = fuse(&dense, &lexical, weights, 3000).iter().map(|hit| hit.score).collect();
            assert!(scores[..50].iter().all(|first| scores[500..].iter().all(|later| first > later)), "over pages");
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), 3000);
            for k in [0, 1, 49, 50, 51, 300, 500, 501, 2000] {
                assert_eq!(items(k), all[..k]);
            }
        }
        assert_eq!([1, 50, 51, 500, 501].map(fusion_depth), [100, 100, 1000, 1000, 10_000]);
    }

    #[test]
    fn a_setting_is_a_switch_or_weights() {
        let read = |text: &str| serde_json::from_str::<Hybrid>(text).map(Hybrid::weights);
        assert_eq!(read("false").unwrap(), None);
        assert_eq!(read("true").unwrap(), Some(Weights::default()));
        assert_eq!(read("{\"lexical\": 2}").unwrap(), Some(Weights { lexical: 2.0, ..Weights::default() }));
        let ranks = Weights { constant: Some(60.0), ..Weights::default() };
        assert_eq!(read("{\"constant\": 60}").unwrap(), Some(ranks));
        assert!(read("\"yes\"").unwrap_err().to_string().contains("expected true, false, or weights"));
    }
}
