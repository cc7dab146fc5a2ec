//! Fits the weights of hybrid search, and of a reranker of its hits, to a task's judgements. Takes a model's vectors as an engine; gives
//! the weights, and the gain over the default ones or over the fused order.

use std::ops::Range;

use super::engine::{Engine, RERANKED_QUERIES, of_terms, of_vectors, on_all_cores};
use super::task::{Task, TaskQuery};
use souk_cross_encoder::{PairScorer, RerankFit, RerankQuality};
use souk_io::error::Result;
use souk_lexical::{
    FeatureWeights, FitQuality, JudgedCandidates, Lexical, NUM_FEATURES, candidates, cross_validate, fit, fusion_depth,
};

/// Weights are not fitted to fewer queries.
pub const MIN_QUERIES: usize = 50;

/// Weights, and their gain on the queries they were fitted to.
#[derive(Debug)]
pub struct Fitted {
    pub weights: FeatureWeights,
    pub queries: usize,
    pub quality: FitQuality,
}

/// Fits to the judgements of the queries that `is_used` selects; none if they are too few, or none has a hit better than L1. `dense`: the
/// vectors of a model; `progress` is called with the number of queries that were searched.
pub fn fit_fusion(
    task: &Task,
    dense: &Engine,
    lexical: &Lexical,
    is_used: impl Fn(&TaskQuery) -> bool,
    progress: impl Fn(u64),
) -> Result<Option<Fitted>> {
    let (mut queries, num) = (Vec::new(), task.queries.len());
    for start in (0..num).step_by(dense.block(task)) {
        let block = start..num.min(start + dense.block(task));
        let judged = judged_candidates(task, dense, lexical, block.clone())?;
        queries.extend(task.queries[block.clone()].iter().zip(judged).filter(|(query, _)| is_used(query)));
        progress(block.len() as u64);
    }
    let queries: Vec<JudgedCandidates<NUM_FEATURES>> = queries.into_iter().map(|(_, judged)| judged).collect();
    if queries.len() < MIN_QUERIES {
        return Ok(None);
    }
    let fitted = fit(&queries).zip(cross_validate(&queries));
    Ok(fitted.map(|(weights, quality)| Fitted {
        weights: FeatureWeights::from_array(weights),
        queries: queries.len(),
        quality,
    }))
}

/// The hits of both channels for a block of queries, with features and gains.
fn judged_candidates(
    task: &Task,
    dense: &Engine,
    lexical: &Lexical,
    block: Range<usize>,
) -> Result<Vec<JudgedCandidates<NUM_FEATURES>>> {
    let depth = fusion_depth(1);
    let nearest = dense.hits(task, lexical, block.clone(), depth)?;
    let texts: Vec<&str> = task.queries[block.clone()].iter().map(|query| query.text.as_str()).collect();
    let by_terms = lexical.search_many(&texts, depth)?;
    Ok(on_all_cores(block.len(), |at| {
        let query = &task.queries[block.start + at];
        let mut matcher = lexical.matcher(&query.text);
        let compare = |row| matcher.compare(&task.item(row).text);
        let found = candidates(&of_vectors(&nearest[at]), &of_terms(&by_terms[at]), compare);
        let gain = |row| query.levels.get(row).map_or(0.0, |level| level.gain());
        JudgedCandidates {
            gains: found.iter().map(|(row, _)| gain(row)).collect(),
            features: found.into_iter().map(|(_, features)| features).collect(),
            judged: all_gains(query),
        }
    }))
}

fn all_gains(query: &TaskQuery) -> Vec<f64> {
    query.judged.values().map(|level| level.gain()).collect()
}

/// Fits the weight of a relevance model that reranks the first `depth` hits of hybrid search to the same judgements; none if it brings
/// nothing.
pub fn fit_reranker(
    task: &Task,
    search: (&Engine, &Lexical),
    reranker: (&PairScorer, usize),
    is_used: impl Fn(&TaskQuery) -> bool,
    progress: impl Fn(u64),
) -> Result<Option<RerankFit>> {
    let ((hybrid, lexical), (scorer, depth)) = (search, reranker);
    let (mut queries, num) = (Vec::new(), task.queries.len());
    for start in (0..num).step_by(RERANKED_QUERIES) {
        let block = start..num.min(start + RERANKED_QUERIES);
        let found = hybrid.hits(task, lexical, block.clone(), depth)?;
        for (query, hits) in task.queries[block.clone()].iter().zip(found).filter(|(query, _)| is_used(query)) {
            let texts: Vec<&str> = hits.iter().map(|hit| task.item(hit.row).text.as_str()).collect();
            let outputs = scorer.outputs(&query.text, &texts)?;
            queries.push(JudgedCandidates {
                features: hits.iter().zip(outputs).map(|(hit, output)| [hit.score, output]).collect(),
                gains: hits.iter().map(|hit| query.levels.get(&hit.row).map_or(0.0, |level| level.gain())).collect(),
                judged: all_gains(query),
            });
        }
        progress(block.len() as u64);
    }
    if queries.len() < MIN_QUERIES {
        return Ok(None);
    }
    let Some(([fused, output], quality)) = fit(&queries).zip(cross_validate(&queries)) else { return Ok(None) };
    let FitQuality { default: before, fitted } = quality;
    let quality = RerankQuality { fused: before, reranked: fitted };
    let pays = fitted > before && fused > 0.0 && output > 0.0;
    Ok(pays.then(|| RerankFit::new(depth, output / fused, queries.len(), quality)))
}
