//! `EvaluationRun`: means, intervals and slices of an engine, and the values of each query. Written by a measurement and loaded
//! for comparisons; means are recomputed from the queries.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::metrics::{NUM_METRICS, Values, means, names};
use super::significance::{Interval, bootstrap};
use super::task::{Digests, Task};
use souk_io::beir::lines;
use souk_io::domain::Level;
use souk_io::error::{Error, Result};
use souk_reward::RewardSource;

/// Files in a run's folder.
pub const METRICS: &str = "metrics.json";
pub const QUERIES: &str = "queries.jsonl";
/// Random seed of all intervals and tests.
pub const SEED: u64 = 7;
/// Name of the slice with all queries.
pub const OVERALL: &str = "overall";

pub struct EvaluationRun {
    pub metrics: Metrics,
    /// In task order.
    pub queries: Vec<QueryRow>,
}

/// Content of `metrics.json`: percentages, `null` for undefined metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    pub model: String,
    /// Channels that answered: dense, lexical, hybrid, or a run file.
    #[serde(default)]
    pub pipeline: String,
    #[serde(flatten)]
    pub asked: RunSettings,
    pub num_queries: usize,
    /// Queries without Good items; they count as 0 in hitrates and in mrr.
    pub num_queries_without_good: usize,
    pub overall: BTreeMap<String, Option<f64>>,
    pub slices: BTreeMap<String, BTreeMap<String, Option<f64>>>,
    /// 95 % intervals of `overall`.
    pub intervals: BTreeMap<String, Interval>,
    /// Perplexity of the model as a writer, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
}

/// Subject of an evaluation. Runs are comparable if these are equal; the data's location does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSettings {
    pub data: String,
    pub split: String,
    /// Kind of the split's judgements, if they were derived from the search log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judgements: Option<String>,
    /// Judge that graded hits without judgements.
    pub judge: String,
    pub depth: usize,
    pub digests: Digests,
}

#[derive(Clone, Debug, PartialEq)]
pub struct QueryRow {
    pub id: String,
    pub text: String,
    pub slice: Option<String>,
    pub num_good: usize,
    pub values: Values,
    /// First hits.
    pub top: Vec<TopHit>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopHit {
    pub id: String,
    pub title: String,
    pub score: f32,
    pub level: Option<Level>,
}

/// Queries of one slice, or all.
pub struct Slice {
    pub name: String,
    /// Indices into the run's queries.
    pub queries: Vec<usize>,
}

/// Summary of one slice.
pub struct MetricSummary {
    pub means: Values,
    pub intervals: [Option<Interval>; NUM_METRICS],
}

#[derive(Serialize, Deserialize)]
struct JsonRow {
    #[serde(rename = "_id")]
    id: String,
    text: String,
    slice: Option<String>,
    num_good: usize,
    metrics: BTreeMap<String, Option<f64>>,
    hits: Vec<TopHit>,
}

impl QueryRow {
    /// A line of `queries.jsonl`.
    pub fn json(&self, depth: usize) -> String {
        let row = JsonRow {
            id: self.id.clone(),
            text: self.text.clone(),
            slice: self.slice.clone(),
            num_good: self.num_good,
            metrics: named(&self.values, depth),
            hits: self.top.clone(),
        };
        serde_json::to_string(&row).expect("the names of metrics are text")
    }
}

fn named(values: &Values, depth: usize) -> BTreeMap<String, Option<f64>> {
    names(depth).into_iter().zip(values.iter().copied()).collect()
}

impl RunSettings {
    pub fn of(task: &Task, judge: &dyn RewardSource, depth: usize) -> Self {
        let (data, split, digests) = (task.data.clone(), task.split.clone(), task.digests.clone());
        Self { data, split, judgements: task.note.clone(), judge: judge.id().into(), depth, digests }
    }

    /// Differences between two settings, in words; empty if the runs are comparable.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let (a, b) = (self, other);
        [
            ("split", &a.split, &b.split),
            ("catalogue", &a.digests.catalogue, &b.digests.catalogue),
            ("queries", &a.digests.queries, &b.digests.queries),
            ("judgements", &a.digests.judgements, &b.digests.judgements),
            ("judge", &a.judge, &b.judge),
            ("depth", &a.depth.to_string(), &b.depth.to_string()),
        ]
        .into_iter()
        .filter(|(_, a, b)| a != b)
        .map(|(what, a, b)| format!("the {what} ({a} and {b})"))
        .collect()
    }
}

impl Metrics {
    pub fn of(name: &str, pipeline: String, asked: RunSettings, perplexity: Option<f64>, queries: &[QueryRow]) -> Self {
        let depth = asked.depth;
        let all: Vec<usize> = (0..queries.len()).collect();
        let MetricSummary { means: overall, intervals } = summary(queries, &all);
        let intervals = names(depth).into_iter().zip(intervals).filter_map(|(name, found)| Some((name, found?)));
        let slices = slices(queries).into_iter().skip(1).map(|slice| {
            let values = means(slice.queries.iter().map(|at| &queries[*at].values));
            (slice.name, named(&values, depth))
        });
        Self {
            model: name.into(),
            pipeline,
            asked,
            num_queries: queries.len(),
            num_queries_without_good: queries.iter().filter(|query| query.num_good == 0).count(),
            overall: named(&overall, depth),
            slices: slices.collect(),
            intervals: intervals.collect(),
            perplexity,
        }
    }
}

impl EvaluationRun {
    /// Loads a folder written by a measurement.
    pub fn load(folder: &Path) -> Result<Self> {
        let file = folder.join(METRICS);
        let text = fs::read(&file).map_err(Error::store(&file, "read it: is this a folder of `souk evaluate`?"))?;
        let metrics: Metrics = serde_json::from_slice(&text).map_err(|e| {
            Error::data(&file, None, "not written by this version of `souk evaluate`: evaluate again").because(e)
        })?;
        let file = folder.join(QUERIES);
        let names = names(metrics.asked.depth);
        let queries = lines(&file)?
            .map(|line| {
                let (number, line) = line?;
                let problem =
                    "not the values of a query, or of an earlier version: delete the folder and evaluate again";
                let bad = || Error::data(&file, Some(number), problem);
                let row: JsonRow = serde_json::from_slice(&line).map_err(|e| bad().because(e))?;
                let mut values = [None; NUM_METRICS];
                for (value, name) in values.iter_mut().zip(&names) {
                    *value = *row.metrics.get(name).ok_or_else(bad)?;
                }
                let JsonRow { id, text, slice, num_good, hits: top, .. } = row;
                Ok(QueryRow { id, text, slice, num_good, values, top })
            })
            .collect::<Result<Vec<_>>>()?;
        if queries.len() != metrics.num_queries {
            let problem =
                format!("{} queries, but metrics.json says {}: evaluate again", queries.len(), metrics.num_queries);
            return Err(Error::data(&file, None, problem));
        }
        Ok(Self { metrics, queries })
    }

    pub fn slices(&self) -> Vec<Slice> {
        slices(&self.queries)
    }

    pub fn summary(&self, slice: &Slice) -> MetricSummary {
        summary(&self.queries, &slice.queries)
    }

    /// Values of one metric for a slice's queries.
    pub fn column(&self, slice: &Slice, metric: usize) -> Vec<Option<f64>> {
        column(&self.queries, &slice.queries, metric)
    }
}

/// All queries first, then slices by name.
fn slices(queries: &[QueryRow]) -> Vec<Slice> {
    let mut named: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, query) in queries.iter().enumerate() {
        if let Some(slice) = &query.slice {
            named.entry(slice).or_default().push(at);
        }
    }
    let all = Slice { name: OVERALL.into(), queries: (0..queries.len()).collect() };
    let slices = named.into_iter().map(|(name, queries)| Slice { name: name.into(), queries });
    std::iter::once(all).chain(slices).collect()
}

fn column(queries: &[QueryRow], places: &[usize], metric: usize) -> Vec<Option<f64>> {
    places.iter().map(|at| queries[*at].values[metric]).collect()
}

fn summary(queries: &[QueryRow], places: &[usize]) -> MetricSummary {
    let columns: Vec<Vec<Option<f64>>> = (0..NUM_METRICS).map(|metric| column(queries, places, metric)).collect();
    let found = bootstrap(&columns, SEED);
    let means = means(places.iter().map(|at| &queries[*at].values));
    MetricSummary { means, intervals: std::array::from_fn(|metric| found[metric]) }
}
