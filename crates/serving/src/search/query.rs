//! Search by vectors, by terms, or hybrid. Each hit keeps the score of every channel.

use std::hash::{Hash, Hasher};

use serde::Serialize;
use tracing::Instrument;

use crate::index::{Filter, HitItem, Index, IndexHit, VectorQuery};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_lexical::{ChannelHit, FusedPart, Fusion, TermFeatures, TermMatcher, fuse, fusion_depth};

/// Search method.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Channel {
    #[default]
    Dense,
    Lexical,
    Hybrid(Fusion),
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
    pub channel: &'a Channel,
    /// Template of the texts that fitted weights compare with the query.
    pub item_text: &'a ItemText,
    /// Whether somebody still waits for the hits; a long search asks now and then.
    pub is_wanted: &'a (dyn Fn() -> bool + Sync),
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

#[derive(Clone, Debug)]
pub struct RankedHit {
    pub item: HitItem,
    pub score: f32,
    pub dense: Option<ChannelScore>,
    pub lexical: Option<ChannelScore>,
    /// If the weights of hybrid search are fitted.
    pub terms: Option<TermScores>,
    /// If the hit was reranked.
    pub reranker: Option<TermScore>,
}

/// Terms of a hit, and their parts of its score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TermScores {
    pub overlap: TermScore,
    pub trigrams: TermScore,
    pub missing_numbers: TermScore,
    /// If the weights were fitted with translations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub translation: Option<TermScore>,
}

/// A feature of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TermScore {
    pub value: f32,
    pub weight: f32,
    /// Contribution to the hit's score.
    pub part: f32,
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
        Channel::Hybrid(fusion) => {
            fusion.check()?;
            let depth = fusion_depth(params.k);
            let dense = dense(index, params, depth).await?;
            check_wanted(params)?;
            let lexical = lexical(index, params, depth).await?;
            check_wanted(params)?;
            let matcher = params.text.and_then(|text| index.matcher(text));
            let mut matcher = matcher.map(|matcher| matcher.with_translations(&fusion.translations()));
            let hits = hybrid(&dense, &lexical, fusion, params.k, |item| match &mut matcher {
                Some(matcher) if (params.is_wanted)() => Ok(compare(matcher, params.item_text, &*item.load()?)),
                _ => Ok(TermFeatures::default()),
            });
            check_wanted(params).and(hits)
        }
    }
}

fn check_wanted(params: &SearchParams<'_>) -> Result<()> {
    if (params.is_wanted)() { Ok(()) } else { Err(Error::input("nobody waits for this search any more")) }
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
        let mut ranked = RankedHit { item, score, dense: None, lexical: None, terms: None, reranker: None };
        set(&mut ranked, ChannelScore { score, rank: at + 1, weight: 1.0, part: score });
        ranked
    });
    ranked.collect()
}

/// How well an item matches a query.
pub fn compare(matcher: &mut TermMatcher, item_text: &ItemText, item: &Item) -> TermFeatures {
    let details = if matcher.has_details() { item_text.details(item) } else { String::new() };
    matcher.compare(&item_text.render(item), &details)
}

/// An item in a channel's list; items are the same if their keys are.
#[derive(Clone, Copy)]
struct ByKey<'a>(&'a HitItem);

impl PartialEq for ByKey<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey<'_> {}

impl Hash for ByKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

/// Fuses both lists without reading their items, unless the weights compare their texts with the query.
fn hybrid(
    dense: &[IndexHit],
    lexical: &[IndexHit],
    fusion: &Fusion,
    k: usize,
    mut compare: impl FnMut(&HitItem) -> Result<TermFeatures>,
) -> Result<Vec<RankedHit>> {
    fn list(hits: &[IndexHit]) -> Vec<ChannelHit<ByKey<'_>>> {
        hits.iter().map(|hit| ChannelHit { key: ByKey(&hit.item), score: hit.score }).collect()
    }
    let channel = |found: &[IndexHit], fused: FusedPart, weight: f32| {
        let FusedPart { place, part } = fused;
        ChannelScore { score: found[place].score, rank: place + 1, weight, part }
    };
    let (dense_weight, lexical_weight) = fusion.channel_weights();
    let mut problem = Ok(());
    let fused = fuse(&list(dense), &list(lexical), fusion, k, |ByKey(item)| {
        compare(item).unwrap_or_else(|error| {
            problem = Err(error);
            TermFeatures::default()
        })
    });
    problem?;
    let ranked = fused.into_iter().filter_map(|hit| {
        let found = hit.dense.map(|part| &dense[part.place]).or(hit.lexical.map(|part| &lexical[part.place]));
        Some(RankedHit {
            item: found?.item.clone(),
            score: hit.score,
            dense: hit.dense.map(|part| channel(dense, part, dense_weight)),
            lexical: hit.lexical.map(|part| channel(lexical, part, lexical_weight)),
            terms: hit.terms.and_then(|terms| term_scores(fusion, &terms)),
            reranker: None,
        })
    });
    Ok(ranked.collect())
}

fn term_scores(fusion: &Fusion, terms: &TermFeatures) -> Option<TermScores> {
    let weights = fusion.term_weights()?;
    // adding 0 turns -0 into 0
    let score = |value: f32, weight: f32| TermScore { value, weight, part: weight * value + 0.0 };
    Some(TermScores {
        overlap: score(terms.overlap, weights.overlap),
        trigrams: score(terms.trigrams, weights.trigrams),
        missing_numbers: score(terms.missing_numbers, weights.missing_numbers),
        translation: (weights.translation != 0.0).then(|| score(terms.translation, weights.translation)),
    })
}

#[cfg(test)]
mod tests {
    use souk_lexical::{FeatureWeights, ModelFusion, Weights};

    use super::*;

    fn found(ids: &[&str]) -> Vec<IndexHit> {
        let item = |id: &&str| Item {
            id: (*id).into(),
            title: String::new(),
            text: String::new(),
            fields: serde_json::Map::new(),
        };
        ids.iter()
            .enumerate()
            .map(|(at, id)| IndexHit { score: 1.0 - at as f32 / 10.0, item: HitItem::of(item(id)) })
            .collect()
    }

    #[test]
    fn fused_hits_keep_the_scores_of_both_channels() {
        let fusion = Fusion::Weights(Weights { lexical: 2.0, constant: Some(60.0), ..Weights::default() });
        let none = |_: &HitItem| -> Result<TermFeatures> { panic!("no text is needed") };
        let hits = hybrid(&found(&["a", "b", "c"]), &found(&["c", "d"]), &fusion, 3, none).unwrap();
        assert_eq!(hits.iter().map(|hit| hit.item.load().unwrap().id.clone()).collect::<Vec<_>>(), ["c", "d", "a"]);
        let (dense, lexical) = (hits[0].dense.unwrap(), hits[0].lexical.unwrap());
        assert_eq!((dense.rank, dense.score, dense.weight, dense.part), (3, 0.8, 1.0, 1.0 / 63.0));
        assert_eq!((lexical.rank, lexical.score, lexical.weight, lexical.part), (1, 1.0, 2.0, 2.0 / 61.0));
        assert_eq!((hits[1].dense, hits[2].lexical, hits[0].terms), (None, None, None));
    }

    #[test]
    fn fitted_weights_explain_each_part_of_the_score() {
        let weights = FeatureWeights::from_array([2.0, 0.5, 3.0, 1.0, -4.0, 0.5]);
        let fusion = Fusion::Fitted(ModelFusion { weights, ..ModelFusion::default() });
        let terms = TermFeatures { overlap: 0.5, trigrams: 0.25, missing_numbers: 1.0, translation: 3.0 };
        let hits = hybrid(&found(&["a"]), &found(&["a"]), &fusion, 3, |_| Ok(terms)).unwrap();
        let scores = hits[0].terms.unwrap();
        assert_eq!(scores.missing_numbers, TermScore { value: 1.0, weight: -4.0, part: -4.0 });
        let channels = hits[0].dense.unwrap().part + hits[0].lexical.unwrap().part;
        let of_terms = [scores.overlap, scores.trigrams, scores.missing_numbers, scores.translation.unwrap()];
        let parts = channels + of_terms.iter().map(|score| score.part).sum::<f32>();
        assert_eq!((channels, parts), (2.5, hits[0].score));
    }
}
