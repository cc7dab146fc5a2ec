//! Two runs query by query: how many queries got better or worse, and those that changed most.

use serde::{Deserialize, Serialize};

use super::metrics::{NDCG, names};
use super::run::{EvaluationRun, QueryRow, TopHit};

/// Queries that are listed with the largest gains, and as many with the largest losses.
const LISTED: usize = 50;
/// Hits of each model that are listed for a query.
const HITS: usize = 5;
/// Differences that count as none, in percent.
const SAME: f64 = 1e-9;

/// Changes that a candidate makes for the queries of a split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryChanges {
    pub metric: String,
    pub better: usize,
    pub worse: usize,
    pub same: usize,
    /// Largest gains first, then the largest losses.
    pub queries: Vec<QueryChange>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryChange {
    pub query: String,
    pub slice: Option<String>,
    /// The metric under each model, in percent.
    pub served: f64,
    pub candidate: f64,
    pub served_hits: Vec<TopHit>,
    pub candidate_hits: Vec<TopHit>,
}

impl QueryChanges {
    /// Both runs answer the same queries in the same order. Queries without a value under both are left out.
    pub fn of(served: &EvaluationRun, candidate: &EvaluationRun) -> Self {
        let rows = served.queries.iter().zip(&candidate.queries);
        let mut changes: Vec<QueryChange> = rows.filter_map(|(old, new)| change(old, new)).collect();
        let count = |is: fn(f64) -> bool| changes.iter().filter(|change| is(change.gain())).count();
        let (better, worse) = (count(|gain| gain > SAME), count(|gain| gain < -SAME));
        let same = changes.len() - better - worse;
        changes.sort_by(|a, b| b.gain().total_cmp(&a.gain()));
        let losses = changes.split_off(better.min(changes.len()));
        changes.truncate(LISTED);
        changes.extend(losses.into_iter().rev().take(LISTED.min(worse)));
        let metric = names(candidate.metrics.asked.depth)[NDCG].clone();
        Self { metric, better, worse, same, queries: changes }
    }
}

impl QueryChange {
    fn gain(&self) -> f64 {
        self.candidate - self.served
    }
}

fn change(old: &QueryRow, new: &QueryRow) -> Option<QueryChange> {
    let hits = |row: &QueryRow| row.top.iter().take(HITS).cloned().collect();
    (old.id == new.id).then_some(())?;
    Some(QueryChange {
        query: new.text.clone(),
        slice: new.slice.clone(),
        served: old.values[NDCG]?,
        candidate: new.values[NDCG]?,
        served_hits: hits(old),
        candidate_hits: hits(new),
    })
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{DEPTH, NUM_METRICS};
    use super::super::run::{Metrics, RunSettings};
    use super::super::task::Digests;
    use super::*;

    fn run(values: &[Option<f64>]) -> EvaluationRun {
        let row = |(at, value): (usize, &Option<f64>)| {
            let mut values = [None; NUM_METRICS];
            values[NDCG] = *value;
            let top = (0..9).map(|rank| TopHit { id: format!("i{rank}"), title: "t".into(), score: 0.5, level: None });
            QueryRow {
                id: at.to_string(),
                text: format!("query {at}"),
                slice: None,
                num_good: 1,
                values,
                top: top.collect(),
            }
        };
        let digests = Digests { catalogue: "c".into(), queries: "q".into(), judgements: "j".into() };
        let asked = RunSettings {
            data: "data".into(),
            split: "test".into(),
            judgements: None,
            judge: "qrels".into(),
            depth: DEPTH,
            digests,
        };
        let metrics = Metrics {
            model: "m".into(),
            pipeline: String::new(),
            asked,
            num_queries: values.len(),
            num_queries_without_good: 0,
            overall: [].into(),
            slices: [].into(),
            intervals: [].into(),
            perplexity: None,
        };
        EvaluationRun { metrics, queries: values.iter().enumerate().map(row).collect() }
    }

    #[test]
    fn the_largest_gains_come_first_and_then_the_largest_losses() {
        let served = run(&[Some(50.0), Some(50.0), Some(50.0), Some(50.0), None, Some(50.0)]);
        let candidate = run(&[Some(60.0), Some(20.0), Some(50.0), Some(90.0), Some(10.0), Some(45.0)]);
        let changes = QueryChanges::of(&served, &candidate);
        assert_eq!((changes.metric.as_str(), changes.better, changes.worse, changes.same), ("ndcg@10", 2, 2, 1));
        let listed: Vec<_> = changes.queries.iter().map(|one| (one.query.as_str(), one.candidate)).collect();
        assert_eq!(listed, [("query 3", 90.0), ("query 0", 60.0), ("query 1", 20.0), ("query 5", 45.0)]);
        assert_eq!(changes.queries[0].served_hits.len(), HITS);
    }

    #[test]
    fn long_lists_are_cut_on_both_sides() {
        let served = run(&[Some(50.0); 300]);
        let values: Vec<_> = (0..300).map(|at| Some(f64::from(at) / 3.0)).collect();
        let changes = QueryChanges::of(&served, &run(&values));
        assert_eq!((changes.better, changes.worse, changes.same), (149, 150, 1));
        let ends = [0, LISTED - 1, LISTED, 2 * LISTED - 1].map(|at| changes.queries[at].query.clone());
        assert_eq!(ends, ["query 299", "query 250", "query 0", "query 49"]);
        assert_eq!(changes.queries.len(), 2 * LISTED);
    }
}
