//! Fits the weights of hybrid search to a task's judgements. Takes a model's vectors as an engine; gives the weights, and what they
//! gain over equal ones.

use std::ops::Range;

use super::engine::{Engine, of_terms, of_vectors, on_all_cores};
use super::metrics::exponential;
use super::task::{Task, TaskQuery};
use souk_io::error::Result;
use souk_lexical::{
    FeatureWeights, FitQuality, JudgedCandidates, Lexical, candidates, cross_validate, fit, fusion_depth,
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
    let queries: Vec<JudgedCandidates> = queries.into_iter().map(|(_, judged)| judged).collect();
    if queries.len() < MIN_QUERIES {
        return Ok(None);
    }
    let fitted = fit(&queries).zip(cross_validate(&queries));
    Ok(fitted.map(|(weights, quality)| Fitted { weights, queries: queries.len(), quality }))
}

/// The hits of both channels for a block of queries, with features and gains.
fn judged_candidates(
    task: &Task,
    dense: &Engine,
    lexical: &Lexical,
    block: Range<usize>,
) -> Result<Vec<JudgedCandidates>> {
    let depth = fusion_depth(1);
    let nearest = dense.hits(task, lexical, block.clone(), depth)?;
    let texts: Vec<&str> = task.queries[block.clone()].iter().map(|query| query.text.as_str()).collect();
    let by_terms = lexical.search_many(&texts, depth)?;
    Ok(on_all_cores(block.len(), |at| {
        let query = &task.queries[block.start + at];
        let mut matcher = lexical.matcher(&query.text);
        let compare = |row| matcher.compare(&task.item(row).text);
        let found = candidates(&of_vectors(&nearest[at]), &of_terms(&by_terms[at]), compare);
        let gain = |row| query.levels.get(row).map_or(0.0, |level| exponential(*level));
        JudgedCandidates {
            gains: found.iter().map(|(row, _)| gain(row)).collect(),
            features: found.into_iter().map(|(_, features)| features).collect(),
            judged: query.judged.values().map(|level| exponential(*level)).collect(),
        }
    }))
}
