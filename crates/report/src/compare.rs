//! Compares two runs on the same queries, by metric and slice, with intervals and paired tests. Runs on different queries or
//! data are errors that name the differences.

use serde::{Deserialize, Serialize};

use super::metrics::{SHOWN, names};
use super::run::{EvaluationRun, SEED};
use super::significance::{PairedTest, holm, paired};
use souk_io::error::{Error, Result};

/// All rows of all pairs. Holm's correction counts every row as one test.
#[derive(Clone, Debug, Serialize)]
pub struct RunComparison {
    pub pairs: Vec<PairComparison>,
    pub num_tests: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct PairComparison {
    pub reference: String,
    pub other: String,
    pub rows: Vec<ComparisonRow>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ComparisonRow {
    pub slice: String,
    pub num_queries: usize,
    pub metric: String,
    pub reference: Option<f64>,
    pub other: Option<f64>,
    /// Missing where no query has a value under both.
    pub paired: Option<PairedTest>,
    pub corrected: Option<CorrectedPValues>,
}

/// The probabilities after Holm's correction for all rows of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorrectedPValues {
    pub p_t: f64,
    pub p_randomised: f64,
}

impl ComparisonRow {
    /// True if both tests reject chance after correction.
    pub fn is_significant(&self) -> bool {
        self.corrected.is_some_and(|p| p.p_t < 0.05 && p.p_randomised < 0.05)
    }
}

impl RunComparison {
    /// Compares pairs of (reference, other). `slices`: also compare each slice.
    pub fn of(pairs: &[(&EvaluationRun, &EvaluationRun)], slices: bool) -> Result<Self> {
        Self::of_metrics(pairs, slices, &SHOWN)
    }

    /// Compares only the metrics at these indices.
    pub fn of_metrics(pairs: &[(&EvaluationRun, &EvaluationRun)], slices: bool, metrics: &[usize]) -> Result<Self> {
        pairs.iter().try_for_each(|(reference, other)| check(reference, other))?;
        let mut pairs: Vec<PairComparison> =
            pairs.iter().map(|(reference, other)| pair(reference, other, slices, metrics)).collect();
        let tests = |part: fn(&PairedTest) -> f64| -> Vec<f64> {
            let rows = pairs.iter().flat_map(|pair| &pair.rows);
            holm(&rows.filter_map(|row| row.paired.as_ref().map(part)).collect::<Vec<_>>())
        };
        let (p_t, p_randomised) = (tests(|paired| paired.p_t), tests(|paired| paired.p_randomised));
        let num_tests = p_t.len();
        let rows = pairs.iter_mut().flat_map(|pair| &mut pair.rows).filter(|row| row.paired.is_some());
        for ((row, p_t), p_randomised) in rows.zip(p_t).zip(p_randomised) {
            row.corrected = Some(CorrectedPValues { p_t, p_randomised });
        }
        Ok(Self { pairs, num_tests })
    }
}

/// Returns an error if two runs differ in data or queries.
pub fn check(reference: &EvaluationRun, other: &EvaluationRun) -> Result<()> {
    let (a, b) = (&reference.metrics, &other.metrics);
    let differences = a.asked.differences(&b.asked);
    if !differences.is_empty() {
        let (first, second) = (&a.asked.data, &b.asked.data);
        let problem = format!("cannot be compared: `{}` (data {first}) and `{}` (data {second})", a.model, b.model);
        return Err(Error::input(format!("{problem} differ in {}", differences.join(", in "))));
    }
    let ids = |run: &EvaluationRun| run.queries.iter().map(|query| query.id.clone()).collect::<Vec<_>>();
    if ids(reference) == ids(other) {
        Ok(())
    } else {
        Err(Error::input(format!(
            "the query files of `{}` and `{}` differ from the evaluated queries: evaluate again",
            a.model, b.model
        )))
    }
}

fn pair(reference: &EvaluationRun, other: &EvaluationRun, slices: bool, metrics: &[usize]) -> PairComparison {
    let names = names(reference.metrics.asked.depth);
    let wanted = if slices { usize::MAX } else { 1 };
    let mut rows = Vec::new();
    for slice in reference.slices().iter().take(wanted) {
        for &metric in metrics {
            let (before, after) = (reference.column(slice, metric), other.column(slice, metric));
            rows.push(ComparisonRow {
                slice: slice.name.clone(),
                num_queries: slice.queries.len(),
                metric: names[metric].clone(),
                reference: mean(&before),
                other: mean(&after),
                paired: paired(&before, &after, SEED),
                corrected: None,
            });
        }
    }
    PairComparison { reference: reference.metrics.model.clone(), other: other.metrics.model.clone(), rows }
}

fn mean(values: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = values.iter().copied().flatten().collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}
