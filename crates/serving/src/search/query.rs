//! Search by vectors, by terms, or hybrid with rank fusion. Each hit keeps the score of every channel.
//!
//! Reciprocal rank fusion (Cormack, Clarke, Büttcher, 2009): a hit's score is the sum over the channels of `weight /
//! (constant + rank)`.

use std::collections::{HashMap, HashSet};
use std::iter;

use serde::{Deserialize, Serialize};
use tracing::Instrument;

use crate::index::{Filter, Index, IndexHit, VectorQuery};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Hits per channel before fusion; ten or a hundred times as many when more are requested.
const MIN_DEPTH: usize = 100;
const DEPTH_FACTOR: usize = 10;
/// Hits per channel for each hit shown: deeper hits of the other channel could still change the order.
const HITS_PER_SHOWN: usize = 2;
const MAX_WEIGHT: f32 = 1e6;

/// Search method.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Channel {
    #[default]
    Dense,
    Lexical,
    Hybrid(Weights),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    pub dense: f32,
    pub lexical: f32,
    /// Higher values flatten the advantage of the first ranks.
    pub constant: f32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { dense: 1.0, lexical: 1.0, constant: 60.0 }
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
}

/// Parameters of a search.
pub struct SearchParams<'a> {
    /// Query text; required for lexical search.
    pub text: Option<&'a str>,
    /// Query vector; required for dense search.
    pub vector: Option<&'a [f32]>,
    pub k: usize,
    pub ef: Option<usize>,
    pub filter: Option<&'a Filter>,
    pub channel: Channel,
}

/// Score of one channel for a hit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChannelScore {
    pub score: f32,
    /// 1-based.
    pub rank: usize,
    pub weight: f32,
    /// Contribution to the hit's score.
    pub part: f32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RankedHit {
    pub item: Item,
    pub score: f32,
    pub dense: Option<ChannelScore>,
    pub lexical: Option<ChannelScore>,
}

/// The `k` best items of an index.
pub async fn find(index: &dyn Index, params: &SearchParams<'_>) -> Result<Vec<RankedHit>> {
    match params.channel {
        Channel::Dense => {
            Ok(single_channel(dense(index, params, params.k).await?, |ranked, part| ranked.dense = Some(part)))
        }
        Channel::Lexical => {
            Ok(single_channel(lexical(index, params, params.k).await?, |ranked, part| ranked.lexical = Some(part)))
        }
        Channel::Hybrid(weights) => {
            weights.check()?;
            let depth = depths().find(|depth| depth / HITS_PER_SHOWN >= params.k).unwrap_or(usize::MAX);
            let dense = dense(index, params, depth).await?;
            let lexical = lexical(index, params, depth).await?;
            Ok(page_hits(&dense, &lexical, weights, params.k))
        }
    }
}

fn depths() -> impl Iterator<Item = usize> {
    iter::successors(Some(MIN_DEPTH), |depth| depth.checked_mul(DEPTH_FACTOR))
}

/// First `k` fused hits. Pages are consistent: the first hits do not depend on `k`, because each depth keeps the hits
/// of the previous one and adds new ones.
fn page_hits(dense: &[IndexHit], lexical: &[IndexHit], weights: Weights, k: usize) -> Vec<RankedHit> {
    let (mut hits, mut ids): (Vec<RankedHit>, HashSet<String>) = (Vec::new(), HashSet::new());
    for depth in depths() {
        let first = |found: &[IndexHit]| found[..depth.min(found.len())].to_vec();
        let fused = fuse(first(dense), first(lexical), weights);
        let is_all = depth >= dense.len().max(lexical.len());
        let room = if is_all { usize::MAX } else { depth / HITS_PER_SHOWN - hits.len() };
        hits.extend(fused.into_iter().filter(|hit| ids.insert(hit.item.id.clone())).take(room));
        // hits cut off here can enter at the next depth
        ids = hits.iter().map(|hit| hit.item.id.clone()).collect();
        if is_all || hits.len() >= k {
            break;
        }
    }
    hits.truncate(k);
    hits
}

async fn dense(index: &dyn Index, params: &SearchParams<'_>, k: usize) -> Result<Vec<IndexHit>> {
    let vector = params.vector.ok_or_else(|| Error::input("vector search needs a query or a vector"))?;
    let span = tracing::info_span!("nearest", k);
    index.nearest(VectorQuery { vector, k, ef: params.ef }, params.filter).instrument(span).await
}

async fn lexical(index: &dyn Index, params: &SearchParams<'_>, k: usize) -> Result<Vec<IndexHit>> {
    let text = params.text.ok_or_else(|| Error::input("lexical search needs a query, not only a vector"))?;
    let span = tracing::info_span!("terms", k);
    let found = index.lexical(text, k, params.filter).instrument(span).await?;
    found.ok_or_else(|| Error::input("this index has no lexical search: leave out `hybrid`"))
}

fn single_channel(found: Vec<IndexHit>, set: impl Fn(&mut RankedHit, ChannelScore)) -> Vec<RankedHit> {
    let ranked = found.into_iter().enumerate().map(|(at, IndexHit { score, item })| {
        let mut ranked = RankedHit { item, score, dense: None, lexical: None };
        set(&mut ranked, ChannelScore { score, rank: at + 1, weight: 1.0, part: score });
        ranked
    });
    ranked.collect()
}

/// Reciprocal rank fusion; on equal scores, the better dense rank comes first.
fn fuse(dense: Vec<IndexHit>, lexical: Vec<IndexHit>, weights: Weights) -> Vec<RankedHit> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut all: Vec<RankedHit> = Vec::new();
    let part = |score, at: usize, weight: f32| {
        let rank = at + 1;
        ChannelScore { score, rank, weight, part: weight / (weights.constant + rank as f32) }
    };
    for (at, IndexHit { score, item }) in dense.into_iter().enumerate() {
        let part = part(score, at, weights.dense);
        places.insert(item.id.clone(), at);
        all.push(RankedHit { item, score: part.part, dense: Some(part), lexical: None });
    }
    for (at, IndexHit { score, item }) in lexical.into_iter().enumerate() {
        let part = part(score, at, weights.lexical);
        match places.get(&item.id) {
            Some(place) => {
                all[*place].score += part.part;
                all[*place].lexical = Some(part);
            }
            None => all.push(RankedHit { item, score: part.part, dense: None, lexical: Some(part) }),
        }
    }
    all.retain(|ranked| ranked.score > 0.0);
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ids: &[&str]) -> Vec<IndexHit> {
        let item = |id: &&str| Item {
            id: (*id).into(),
            title: String::new(),
            text: String::new(),
            fields: serde_json::Map::new(),
        };
        ids.iter().enumerate().map(|(at, id)| IndexHit { score: 1.0 - at as f32 / 10.0, item: item(id) }).collect()
    }

    #[test]
    fn fusion_matches_the_formula() {
        let weights = Weights { dense: 1.0, lexical: 2.0, constant: 60.0 };
        let hits = page_hits(&found(&["a", "b", "c"]), &found(&["c", "d"]), weights, 3);
        let got: Vec<(&str, f32)> = hits.iter().map(|hit| (hit.item.id.as_str(), hit.score)).collect();
        assert_eq!(got, [("c", 1.0 / 63.0 + 2.0 / 61.0), ("d", 2.0 / 62.0), ("a", 1.0 / 61.0)]);
        let first = &hits[0];
        assert_eq!((first.dense.unwrap().rank, first.lexical.unwrap().rank), (3, 1));
        assert_eq!(first.lexical.unwrap().part, 2.0 / 61.0);
        // a channel with weight 0 adds no hits
        let hits = page_hits(&found(&["a"]), &found(&["b"]), Weights { lexical: 0.0, ..Weights::default() }, 3);
        assert_eq!(hits.len(), 1);
        assert!(Weights { dense: 0.0, lexical: 0.0, constant: 1.0 }.check().is_err());
        assert!(Weights { dense: f32::NAN, ..Weights::default() }.check().is_err());
    }

    /// The first hits do not depend on `k`, and none repeats.
    #[test]
    fn hits_do_not_depend_on_k() {
        let names: Vec<String> = (0..3000).map(|i| i.to_string()).collect();
        let order = |step: usize| (0..3000).map(|i| names[i * step % 3000].as_str()).collect::<Vec<_>>();
        let (dense, lexical) = (found(&order(7)), found(&order(11)));
        let ids = |k| -> Vec<String> {
            page_hits(&dense, &lexical, Weights::default(), k).into_iter().map(|hit| hit.item.id).collect()
        };
        let all = ids(3000);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 3000);
        for k in [0, 1, 49, 50, 51, 300, 500, 501, 2000] {
            assert_eq!(ids(k), all[..k]);
        }
    }
}
