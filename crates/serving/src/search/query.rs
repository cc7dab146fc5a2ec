//! Search by vectors, by terms, or hybrid. Each hit keeps the score of every channel.

use serde::Serialize;
use tracing::Instrument;

use crate::index::{Filter, Index, IndexHit, VectorQuery};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};
use souk_lexical::{ChannelHit, FusedPart, Weights, fuse, fusion_depth};

/// Search method.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Channel {
    #[default]
    Dense,
    Lexical,
    Hybrid(Weights),
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
            let depth = fusion_depth(params.k);
            let dense = dense(index, params, depth).await?;
            let lexical = lexical(index, params, depth).await?;
            Ok(hybrid(&dense, &lexical, weights, params.k))
        }
    }
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

fn hybrid(dense: &[IndexHit], lexical: &[IndexHit], weights: Weights, k: usize) -> Vec<RankedHit> {
    fn list(hits: &[IndexHit]) -> Vec<ChannelHit<&str>> {
        hits.iter().map(|hit| ChannelHit { key: hit.item.id.as_str(), score: hit.score }).collect()
    }
    let channel = |found: &[IndexHit], fused: FusedPart, weight: f32| {
        let FusedPart { place, part } = fused;
        ChannelScore { score: found[place].score, rank: place + 1, weight, part }
    };
    let fused = fuse(&list(dense), &list(lexical), weights, k).into_iter().filter_map(|hit| {
        let found = hit.dense.map(|part| &dense[part.place]).or(hit.lexical.map(|part| &lexical[part.place]));
        Some(RankedHit {
            item: found?.item.clone(),
            score: hit.score,
            dense: hit.dense.map(|part| channel(dense, part, weights.dense)),
            lexical: hit.lexical.map(|part| channel(lexical, part, weights.lexical)),
        })
    });
    fused.collect()
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
    fn fused_hits_keep_the_scores_of_both_channels() {
        let weights = Weights { dense: 1.0, lexical: 2.0, constant: Some(60.0) };
        let hits = hybrid(&found(&["a", "b", "c"]), &found(&["c", "d"]), weights, 3);
        assert_eq!(hits.iter().map(|hit| hit.item.id.as_str()).collect::<Vec<_>>(), ["c", "d", "a"]);
        let (dense, lexical) = (hits[0].dense.unwrap(), hits[0].lexical.unwrap());
        assert_eq!((dense.rank, dense.score, dense.weight, dense.part), (3, 0.8, 1.0, 1.0 / 63.0));
        assert_eq!((lexical.rank, lexical.score, lexical.weight, lexical.part), (1, 1.0, 2.0, 2.0 / 61.0));
        assert_eq!((hits[1].dense, hits[2].lexical), (None, None));
    }
}
