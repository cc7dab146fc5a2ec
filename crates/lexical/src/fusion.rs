//! Reciprocal rank fusion of the dense and the lexical channel (Cormack, Clarke, Büttcher, 2009): the score of an item is the sum
//! over the channels of `weight / (constant + rank)`.

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

/// Weights of rank fusion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    pub dense: f32,
    pub lexical: f32,
    /// Higher values flatten the advantage of the first ranks.
    pub constant: f32,
}

/// Whether a search is hybrid, and with which weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected true, false, or weights: {\"dense\": 1, \"lexical\": 1, \"constant\": 60}")]
pub enum Hybrid {
    Enabled(bool),
    Weighted(Weights),
}

/// Item of the fused list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedHit {
    pub score: f32,
    /// Places in the lists of the channels, from 0.
    pub dense: Option<usize>,
    pub lexical: Option<usize>,
}

impl Default for Weights {
    fn default() -> Self {
        Self { dense: 1.0, lexical: 1.0, constant: 60.0 }
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
        let are_valid = is_valid(self.dense) && is_valid(self.lexical) && is_valid(self.constant);
        if are_valid && self.dense + self.lexical > 0.0 {
            return Ok(());
        }
        Err(Error::input(format!(
            "set weights and constant to 0 to {MAX_WEIGHT}, and at least one weight above 0: got {} and {}, {}",
            self.dense, self.lexical, self.constant
        )))
    }

    /// Contribution of a place to an item's score.
    pub fn part(&self, weight: f32, place: usize) -> f32 {
        weight / (self.constant + (place + 1) as f32)
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
pub fn fuse<K: Eq + Hash + Copy>(dense: &[K], lexical: &[K], weights: Weights, k: usize) -> Vec<FusedHit> {
    let key = |hit: &FusedHit| hit.dense.map(|at| dense[at]).or(hit.lexical.map(|at| lexical[at]));
    let (mut hits, mut seen): (Vec<FusedHit>, HashSet<K>) = (Vec::new(), HashSet::new());
    for depth in depths() {
        let fused = fuse_all(&dense[..depth.min(dense.len())], &lexical[..depth.min(lexical.len())], weights);
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

/// On equal scores, the better dense rank comes first.
fn fuse_all<K: Eq + Hash + Copy>(dense: &[K], lexical: &[K], weights: Weights) -> Vec<FusedHit> {
    let places: HashMap<K, usize> = dense.iter().copied().zip(0..).collect();
    let part = |place| weights.part(weights.dense, place);
    let mut all: Vec<FusedHit> =
        (0..dense.len()).map(|at| FusedHit { score: part(at), dense: Some(at), lexical: None }).collect();
    for (at, key) in lexical.iter().enumerate() {
        let part = weights.part(weights.lexical, at);
        match places.get(key) {
            Some(place) => {
                all[*place].score += part;
                all[*place].lexical = Some(at);
            }
            None => all.push(FusedHit { score: part, dense: None, lexical: Some(at) }),
        }
    }
    all.retain(|hit| hit.score > 0.0);
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fusion_matches_the_formula() {
        let weights = Weights { dense: 1.0, lexical: 2.0, constant: 60.0 };
        let (dense, lexical) = (["a", "b", "c"], ["c", "d"]);
        let expected = [
            FusedHit { score: 1.0 / 63.0 + 2.0 / 61.0, dense: Some(2), lexical: Some(0) },
            FusedHit { score: 2.0 / 62.0, dense: None, lexical: Some(1) },
            FusedHit { score: 1.0 / 61.0, dense: Some(0), lexical: None },
        ];
        assert_eq!(fuse(&dense, &lexical, weights, 3), expected);
        // a channel with weight 0 adds no hits
        assert_eq!(fuse(&["a"], &["b"], Weights { lexical: 0.0, ..Weights::default() }, 3).len(), 1);
        assert!(Weights { dense: 0.0, lexical: 0.0, constant: 1.0 }.check().is_err());
        assert!(Weights { dense: f32::NAN, ..Weights::default() }.check().is_err());
    }

    /// The first hits do not depend on `k`, and none repeats.
    #[test]
    fn hits_do_not_depend_on_k() {
        let order = |step: usize| (0..3000).map(|i| i * step % 3000).collect::<Vec<_>>();
        let (dense, lexical) = (order(7), order(11));
        let items = |k| -> Vec<usize> {
            let item = |hit: FusedHit| hit.dense.map_or_else(|| lexical[hit.lexical.unwrap()], |at| dense[at]);
            fuse(&dense, &lexical, Weights::default(), k).into_iter().map(item).collect()
        };
        let all = items(3000);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 3000);
        for k in [0, 1, 49, 50, 51, 300, 500, 501, 2000] {
            assert_eq!(items(k), all[..k]);
        }
        assert_eq!([1, 50, 51, 500, 501].map(fusion_depth), [100, 100, 1000, 1000, 10_000]);
    }

    #[test]
    fn a_setting_is_a_switch_or_weights() {
        let read = |text: &str| serde_json::from_str::<Hybrid>(text).map(Hybrid::weights);
        assert_eq!(read("false").unwrap(), None);
        assert_eq!(read("true").unwrap(), Some(Weights::default()));
        assert_eq!(read("{\"lexical\": 2}").unwrap(), Some(Weights { lexical: 2.0, ..Weights::default() }));
        assert!(read("\"yes\"").unwrap_err().to_string().contains("expected true, false, or weights"));
    }
}
