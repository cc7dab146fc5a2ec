//! A query in, hits out: by vectors, by terms, or by both, whose ranks are fused. What each channel said of a hit is kept.
//!
//! Fusion is by reciprocal ranks (Cormack, Clarke, Büttcher, 2009): a hit's score is the sum over the channels of
//! `weight / (constant + rank)`.

use std::collections::{HashMap, HashSet};
use std::iter;

use serde::{Deserialize, Serialize};
use tracing::Instrument;

use crate::index::{Ask, Filter, Found, Index};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Each channel gives this many hits, and ten times and a hundred times as many where more are asked for.
const MIN_DEPTH: usize = 100;
const DEEPER: usize = 10;
/// Of a depth one hit in so many is shown: below, what the other channel has further down would count.
const DEPTH: usize = 2;
const MAX_WEIGHT: f32 = 1e6;

/// How a query finds items.
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
    /// The higher, the less the first ranks stand out.
    pub constant: f32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { dense: 1.0, lexical: 1.0, constant: 60.0 }
    }
}

impl Weights {
    pub fn check(&self) -> Result<()> {
        let fine = |x: f32| (0.0..=MAX_WEIGHT).contains(&x);
        match fine(self.dense) && fine(self.lexical) && fine(self.constant) {
            true if self.dense + self.lexical > 0.0 => Ok(()),
            _ => Err(Error::input(format!(
                "weights and constant are 0 to {MAX_WEIGHT}, and one weight is above 0: got {} and {}, {}",
                self.dense, self.lexical, self.constant
            ))),
        }
    }
}

/// What is looked for.
pub struct Wanted<'a> {
    /// What the shopper typed; needed to search by terms.
    pub text: Option<&'a str>,
    /// Needed to search by vectors.
    pub vector: Option<&'a [f32]>,
    pub k: usize,
    pub reach: Option<usize>,
    pub filter: Option<&'a Filter>,
    pub channel: Channel,
}

/// What one channel said of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Part {
    pub score: f32,
    /// From 1.
    pub rank: usize,
    pub weight: f32,
    /// Of the hit's score.
    pub part: f32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    pub item: Item,
    pub score: f32,
    pub dense: Option<Part>,
    pub lexical: Option<Part>,
}

/// The `k` best items of an index.
pub async fn find(index: &dyn Index, wanted: &Wanted<'_>) -> Result<Vec<Ranked>> {
    match wanted.channel {
        Channel::Dense => Ok(alone(dense(index, wanted, wanted.k).await?, |ranked, part| ranked.dense = Some(part))),
        Channel::Lexical => {
            Ok(alone(lexical(index, wanted, wanted.k).await?, |ranked, part| ranked.lexical = Some(part)))
        }
        Channel::Hybrid(weights) => {
            weights.check()?;
            let most = depths().find(|depth| depth / DEPTH >= wanted.k).unwrap_or(usize::MAX);
            let dense = dense(index, wanted, most).await?;
            let lexical = lexical(index, wanted, most).await?;
            Ok(paged(&dense, &lexical, weights, wanted.k))
        }
    }
}

fn depths() -> impl Iterator<Item = usize> {
    iter::successors(Some(MIN_DEPTH), |depth| depth.checked_mul(DEEPER))
}

/// Pages follow one another: whatever `k` is, the first hits are the same. What is found at one depth stays where it is, and
/// the next depth adds what is not there yet.
fn paged(dense: &[Found], lexical: &[Found], weights: Weights, k: usize) -> Vec<Ranked> {
    let (mut hits, mut ids): (Vec<Ranked>, HashSet<String>) = (Vec::new(), HashSet::new());
    for depth in depths() {
        let first = |found: &[Found]| found[..depth.min(found.len())].to_vec();
        let fused = fused(first(dense), first(lexical), weights);
        let is_all = depth >= dense.len().max(lexical.len());
        let room = if is_all { usize::MAX } else { depth / DEPTH - hits.len() };
        hits.extend(fused.into_iter().filter(|hit| ids.insert(hit.item.id.clone())).take(room));
        // what found no room here may find it at the next depth
        ids = hits.iter().map(|hit| hit.item.id.clone()).collect();
        if is_all || hits.len() >= k {
            break;
        }
    }
    hits.truncate(k);
    hits
}

async fn dense(index: &dyn Index, wanted: &Wanted<'_>, k: usize) -> Result<Vec<Found>> {
    let vector = wanted.vector.ok_or_else(|| Error::input("a search by vectors needs a query or a vector"))?;
    let span = tracing::info_span!("nearest", k);
    index.nearest(Ask { vector, k, reach: wanted.reach }, wanted.filter).instrument(span).await
}

async fn lexical(index: &dyn Index, wanted: &Wanted<'_>, k: usize) -> Result<Vec<Found>> {
    let text = wanted.text.ok_or_else(|| Error::input("a search by terms needs a query, not a vector alone"))?;
    let span = tracing::info_span!("terms", k);
    let found = index.lexical(text, k, wanted.filter).instrument(span).await?;
    found.ok_or_else(|| Error::input("this index cannot be searched by terms: leave `hybrid` out"))
}

fn alone(found: Vec<Found>, put: impl Fn(&mut Ranked, Part)) -> Vec<Ranked> {
    let ranked = found.into_iter().enumerate().map(|(at, Found { score, item })| {
        let mut ranked = Ranked { item, score, dense: None, lexical: None };
        put(&mut ranked, Part { score, rank: at + 1, weight: 1.0, part: score });
        ranked
    });
    ranked.collect()
}

/// Of equal scores the one that vectors found earlier comes first.
fn fused(dense: Vec<Found>, lexical: Vec<Found>, weights: Weights) -> Vec<Ranked> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut all: Vec<Ranked> = Vec::new();
    let part = |score, at: usize, weight: f32| {
        let rank = at + 1;
        Part { score, rank, weight, part: weight / (weights.constant + rank as f32) }
    };
    for (at, Found { score, item }) in dense.into_iter().enumerate() {
        let part = part(score, at, weights.dense);
        places.insert(item.id.clone(), at);
        all.push(Ranked { item, score: part.part, dense: Some(part), lexical: None });
    }
    for (at, Found { score, item }) in lexical.into_iter().enumerate() {
        let part = part(score, at, weights.lexical);
        match places.get(&item.id) {
            Some(place) => {
                all[*place].score += part.part;
                all[*place].lexical = Some(part);
            }
            None => all.push(Ranked { item, score: part.part, dense: None, lexical: Some(part) }),
        }
    }
    all.retain(|ranked| ranked.score > 0.0);
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ids: &[&str]) -> Vec<Found> {
        let item = |id: &&str| Item {
            id: (*id).into(),
            title: String::new(),
            text: String::new(),
            fields: serde_json::Map::new(),
        };
        ids.iter().enumerate().map(|(at, id)| Found { score: 1.0 - at as f32 / 10.0, item: item(id) }).collect()
    }

    #[test]
    fn ranks_are_fused_as_the_formula_says() {
        let weights = Weights { dense: 1.0, lexical: 2.0, constant: 60.0 };
        let hits = paged(&found(&["a", "b", "c"]), &found(&["c", "d"]), weights, 3);
        let got: Vec<(&str, f32)> = hits.iter().map(|hit| (hit.item.id.as_str(), hit.score)).collect();
        assert_eq!(got, [("c", 1.0 / 63.0 + 2.0 / 61.0), ("d", 2.0 / 62.0), ("a", 1.0 / 61.0)]);
        let first = &hits[0];
        assert_eq!((first.dense.unwrap().rank, first.lexical.unwrap().rank), (3, 1));
        assert_eq!(first.lexical.unwrap().part, 2.0 / 61.0);
        // a channel without weight brings nothing of its own
        let hits = paged(&found(&["a"]), &found(&["b"]), Weights { lexical: 0.0, ..Weights::default() }, 3);
        assert_eq!(hits.len(), 1);
        assert!(Weights { dense: 0.0, lexical: 0.0, constant: 1.0 }.check().is_err());
        assert!(Weights { dense: f32::NAN, ..Weights::default() }.check().is_err());
    }

    /// However many are asked for, the first are the same, and each comes once.
    #[test]
    fn pages_follow_one_another() {
        let names: Vec<String> = (0..3000).map(|i| i.to_string()).collect();
        let order = |step: usize| (0..3000).map(|i| names[i * step % 3000].as_str()).collect::<Vec<_>>();
        let (dense, lexical) = (found(&order(7)), found(&order(11)));
        let ids = |k| -> Vec<String> {
            paged(&dense, &lexical, Weights::default(), k).into_iter().map(|hit| hit.item.id).collect()
        };
        let all = ids(3000);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 3000);
        for k in [0, 1, 49, 50, 51, 300, 500, 501, 2000] {
            assert_eq!(ids(k), all[..k]);
        }
    }
}
