//! Engines side by side: the same queries under two of them, metric by metric and slice by slice, with intervals and
//! paired tests. Takes measured runs; those that were not asked the same are refused, saying what differs.

use serde::Serialize;

use super::metrics::{SHOWN, names};
use super::run::{Run, SEED};
use super::significance::{Paired, holm, paired};
use souk_io::error::{Error, Result};

/// Every row of every pair. The corrected probabilities take all of them into account.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub pairs: Vec<Pair>,
    pub num_tests: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    pub reference: String,
    pub other: String,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub slice: String,
    pub num_queries: usize,
    pub metric: String,
    pub reference: Option<f64>,
    pub other: Option<f64>,
    /// Missing where no query has a value under both.
    pub paired: Option<Paired>,
    pub corrected: Option<Corrected>,
}

/// The probabilities after Holm's correction for all rows of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Corrected {
    pub p_t: f64,
    pub p_randomised: f64,
}

impl Row {
    /// Whether both tests say that this is not chance, after correction.
    pub fn is_significant(&self) -> bool {
        self.corrected.is_some_and(|p| p.p_t < 0.05 && p.p_randomised < 0.05)
    }
}

impl Comparison {
    /// Of pairs, a reference and what is held against it. `slices`: whether each slice is compared, too.
    pub fn of(pairs: &[(&Run, &Run)], slices: bool) -> Result<Self> {
        Self::of_metrics(pairs, slices, &SHOWN)
    }

    /// By some metrics alone, named by their places.
    pub fn of_metrics(pairs: &[(&Run, &Run)], slices: bool, metrics: &[usize]) -> Result<Self> {
        pairs.iter().try_for_each(|(reference, other)| check(reference, other))?;
        let mut pairs: Vec<Pair> =
            pairs.iter().map(|(reference, other)| pair((reference, other), slices, metrics)).collect();
        let tests = |part: fn(&Paired) -> f64| -> Vec<f64> {
            let rows = pairs.iter().flat_map(|pair| &pair.rows);
            holm(&rows.filter_map(|row| row.paired.as_ref().map(part)).collect::<Vec<_>>())
        };
        let (p_t, p_randomised) = (tests(|paired| paired.p_t), tests(|paired| paired.p_randomised));
        let num_tests = p_t.len();
        let rows = pairs.iter_mut().flat_map(|pair| &mut pair.rows).filter(|row| row.paired.is_some());
        for ((row, p_t), p_randomised) in rows.zip(p_t).zip(p_randomised) {
            row.corrected = Some(Corrected { p_t, p_randomised });
        }
        Ok(Self { pairs, num_tests })
    }
}

/// Whether two runs were asked the same.
pub fn check(reference: &Run, other: &Run) -> Result<()> {
    let (a, b) = (&reference.metrics, &other.metrics);
    let differences = a.asked.differences(&b.asked);
    if !differences.is_empty() {
        let (first, second) = (&a.asked.data, &b.asked.data);
        let problem = format!("cannot be compared: `{}` (data {first}) and `{}` (data {second})", a.model, b.model);
        return Err(Error::input(format!("{problem} differ in {}", differences.join(", in "))));
    }
    let ids = |run: &Run| run.queries.iter().map(|query| query.id.clone()).collect::<Vec<_>>();
    match ids(reference) == ids(other) {
        true => Ok(()),
        false => Err(Error::input(format!(
            "the query files of `{}` and `{}` name other queries than they were asked: measure again",
            a.model, b.model
        ))),
    }
}

fn pair((reference, other): (&Run, &Run), slices: bool, metrics: &[usize]) -> Pair {
    let names = names(reference.metrics.asked.depth);
    let wanted = if slices { usize::MAX } else { 1 };
    let mut rows = Vec::new();
    for slice in reference.slices().iter().take(wanted) {
        for &metric in metrics {
            let (before, after) = (reference.column(slice, metric), other.column(slice, metric));
            rows.push(Row {
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
    Pair { reference: reference.metrics.model.clone(), other: other.metrics.model.clone(), rows }
}

fn mean(values: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = values.iter().copied().flatten().collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}
