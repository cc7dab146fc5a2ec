//! Promotion gate: a candidate must reach floors, must not be significantly worse on any slice, and its vectors must not have
//! drifted too far. The trainer adds reasons of its own. Returns a verdict with all reasons.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::compare::{ComparisonRow, RunComparison};
use super::metrics::{DEPTH, SHOWN, WIDE, names};
use super::run::{EvaluationRun, OVERALL};
use souk_io::error::{Error, Result};

/// Gate settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GateSettings {
    /// Where judgements come from.
    pub source: GateSource,
    /// Splits to evaluate on; a candidate must pass on each.
    pub splits: Vec<String>,
    /// Newest days of the log that a candidate of `source = "log"` is measured on and not trained on.
    pub days: f64,
    /// Days of the log before those, which tell the position bias and how frequent a query is.
    pub history_days: f64,
    /// Hits per query. The first metric is the hitrate at this depth.
    pub depth: usize,
    /// Minimum over all queries, in percent, by metric.
    pub floors: BTreeMap<String, f64>,
    /// Metrics that must not get significantly worse, overall or in any slice. Default: hitrate at `depth`, and goodrate@100.
    pub watched: Vec<String>,
    /// Required improvement over the live model.
    pub gain: Gain,
    /// Maximum average drift of the query vectors: 1 minus the cosine to the live model's vectors.
    pub max_drift: f64,
    /// Largest growth of a seller's (else brand's) share of the first 100 hits, as a multiple of its share before or of the catalogue,
    /// whichever is larger. Bought clicks make it grow, and judgements from the same log do not show that. 0: no limit.
    pub max_exposure: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateSource {
    /// `qrels/SPLIT.tsv` of the data folder, for each of the splits.
    #[default]
    Qrels,
    /// The newest days of the log, judged anew in each round, and beside them those of the splits that the folder has.
    Log,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gain {
    /// No improvement required.
    None,
    /// At least one watched metric is higher overall, significantly or not. Repeated promotions then cannot degrade quality
    /// step by step.
    Any,
    /// At least one watched metric is significantly higher overall.
    Significant,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            source: GateSource::Qrels,
            splits: vec!["test".into()],
            days: 1.0,
            history_days: 14.0,
            depth: DEPTH,
            floors: BTreeMap::new(),
            watched: Vec::new(),
            gain: Gain::Any,
            max_drift: 1.0,
            max_exposure: 3.0,
        }
    }
}

/// Measurements of a candidate on one split.
pub struct GateInput<'a> {
    pub served: &'a EvaluationRun,
    pub candidate: &'a EvaluationRun,
    /// Average drift of the query vectors; none if the two models' vectors differ in length.
    pub drift: Option<f64>,
}

/// Outcome of the gate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GateVerdict {
    pub passed: bool,
    /// Reasons against promotion; empty if it passed.
    pub reasons: Vec<String>,
    pub drift: Option<f64>,
    /// Watched metrics, overall and by slice.
    pub rows: Vec<ComparisonRow>,
}

impl GateSettings {
    pub fn check(&self) -> Result<()> {
        if self.splits.is_empty() && self.source == GateSource::Qrels {
            return Err(Error::config("trainer.gate.splits", "is empty: use at least one split, or source = \"log\""));
        }
        if !(self.days > 0.0 && self.days.is_finite()) {
            return Err(Error::config("trainer.gate.days", "must be more than 0"));
        }
        if !(self.history_days >= 0.0 && self.history_days.is_finite()) {
            return Err(Error::config("trainer.gate.history_days", "must be 0 or more"));
        }
        if self.depth <= WIDE {
            return Err(Error::config("trainer.gate.depth", format!("is {}: use more than {WIDE}", self.depth)));
        }
        if self.max_drift.is_nan() || self.max_drift < 0.0 {
            return Err(Error::config("trainer.gate.max_drift", "must be 0 to 2 (1 minus a cosine)"));
        }
        if !(self.max_exposure == 0.0 || self.max_exposure > 1.0) {
            return Err(Error::config("trainer.gate.max_exposure", "must be more than 1, or 0 for no limit"));
        }
        self.places()?;
        let known = names(self.depth);
        match self.floors.keys().find(|name| !known.contains(name)) {
            Some(name) => Err(unknown("trainer.gate.floors", name, &known)),
            None => Ok(()),
        }
    }

    /// Names of the watched metrics.
    fn places(&self) -> Result<Vec<usize>> {
        if self.watched.is_empty() {
            return Ok(vec![SHOWN[0], SHOWN[1]]);
        }
        let known = names(self.depth);
        let place = |name: &String| {
            known.iter().position(|other| other == name).ok_or_else(|| unknown("trainer.gate.watched", name, &known))
        };
        self.watched.iter().map(place).collect()
    }

    /// Decides for one split.
    pub fn judge(&self, held: &GateInput<'_>) -> Result<GateVerdict> {
        let GateInput { served, candidate, drift } = *held;
        let comparison = RunComparison::of_metrics(&[(served, candidate)], true, &self.places()?)?;
        let rows: Vec<ComparisonRow> = comparison.pairs.into_iter().flat_map(|pair| pair.rows).collect();
        let mut reasons: Vec<String> =
            self.floors.iter().filter_map(|(name, floor)| below_floor(candidate, name, *floor)).collect();
        let difference = |row: &ComparisonRow| row.paired.as_ref().map_or(0.0, |paired| paired.difference);
        let is_loss = |row: &&ComparisonRow| row.is_significant() && difference(row) < 0.0;
        reasons.extend(rows.iter().filter(is_loss).map(lost));
        let overall = || rows.iter().filter(|row| row.slice == OVERALL);
        let gained = match self.gain {
            Gain::None => true,
            Gain::Any => overall().any(|row| difference(row) > 0.0),
            Gain::Significant => overall().any(|row| row.is_significant() && difference(row) > 0.0),
        };
        if !gained {
            let metrics: Vec<String> = overall().map(said).collect();
            let beyond = if self.gain == Gain::Significant { " significantly" } else { "" };
            reasons.push(format!("no watched metric is{beyond} higher than the live model's: {}", metrics.join(", ")));
        }
        if let Some(drift) = drift.filter(|drift| drift.is_nan() || *drift > self.max_drift) {
            let most = self.max_drift;
            reasons.push(format!("query vectors drifted by {drift:.3} on average, more than {most}"));
        }
        let split = &candidate.metrics.asked.split;
        reasons.iter_mut().for_each(|reason| *reason = format!("{split}: {reason}"));
        Ok(GateVerdict { passed: reasons.is_empty(), reasons, drift, rows })
    }
}

impl GateVerdict {
    /// Adds reasons against promotion.
    pub fn refuse(&mut self, reasons: impl Iterator<Item = String>) {
        self.reasons.extend(reasons);
        self.passed = self.reasons.is_empty();
    }
}

fn below_floor(candidate: &EvaluationRun, name: &str, floor: f64) -> Option<String> {
    match candidate.metrics.overall.get(name).copied().flatten() {
        Some(value) if value >= floor => None,
        Some(value) => Some(format!("{name} is {value:.2}, below the floor of {floor}")),
        None => Some(format!("{name} has no value, and its floor is {floor}")),
    }
}

fn said(row: &ComparisonRow) -> String {
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    format!("{} {} -> {}", row.metric, number(row.reference), number(row.other))
}

fn lost(row: &ComparisonRow) -> String {
    let place = if row.slice == OVERALL { String::new() } else { format!(" on the slice `{}`", row.slice) };
    let p = row.corrected.map_or(1.0, |corrected| corrected.p_t.max(corrected.p_randomised));
    format!("worse{place}: {} (p {p:.4})", said(row))
}

fn unknown(place: &str, name: &str, known: &[String]) -> Error {
    Error::config(place, format!("names `{name}`, and the metrics are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::metrics::NUM_METRICS;
    use super::super::run::{Metrics, QueryRow, RunSettings};
    use super::super::task::Digests;
    use super::*;

    /// 200 queries, half of them in the slice `rare`, each with a hitrate and a goodrate.
    fn run(values: impl Fn(usize) -> (f64, f64)) -> EvaluationRun {
        let queries: Vec<QueryRow> = (0..200)
            .map(|at| {
                let mut of = [None; NUM_METRICS];
                (of[0], of[1]) = (Some(values(at).0), Some(values(at).1));
                let slice = Some(if at % 2 == 0 { "rare" } else { "general" }.to_owned());
                QueryRow { id: at.to_string(), text: String::new(), slice, num_good: 1, values: of, top: Vec::new() }
            })
            .collect();
        let mean = |of: usize| Some(queries.iter().filter_map(|row| row.values[of]).sum::<f64>() / 200.0);
        let overall = names(DEPTH).into_iter().zip([mean(0), mean(1)]).collect();
        let (data, split, judge) = ("data".into(), "test".into(), "qrels".into());
        let digests = Digests { catalogue: "c".into(), queries: "q".into(), judgements: "j".into() };
        let asked = RunSettings { data, split, judgements: None, judge, depth: DEPTH, digests };
        let (slices, intervals) = (BTreeMap::new(), BTreeMap::new());
        let metrics = Metrics {
            model: "m".into(),
            pipeline: String::new(),
            asked,
            num_queries: 200,
            num_queries_without_good: 0,
            overall,
            slices,
            intervals,
            perplexity: None,
        };
        EvaluationRun { metrics, queries }
    }

    /// Means of 50 and 40, with noise.
    fn served() -> EvaluationRun {
        run(|at| (50.0 + (at * 7 % 11) as f64, 40.0 + (at * 5 % 13) as f64))
    }

    fn judged(settings: &GateSettings, candidate: &EvaluationRun, drift: Option<f64>) -> GateVerdict {
        settings.check().unwrap();
        settings.judge(&GateInput { served: &served(), candidate, drift }).unwrap()
    }

    /// The live model's values, shifted for both metrics.
    fn moved(by: impl Fn(usize) -> (f64, f64)) -> EvaluationRun {
        run(|at| (50.0 + (at * 7 % 11) as f64 + by(at).0, 40.0 + (at * 5 % 13) as f64 + by(at).1))
    }

    #[test]
    fn a_better_candidate_passes_and_the_same_one_does_not() {
        let better = moved(|at| ((at % 3) as f64, 1.0 + (at % 2) as f64));
        let verdict = judged(&GateSettings::default(), &better, Some(0.2));
        assert!(verdict.passed, "{:?}", verdict.reasons);
        assert_eq!(verdict.rows.len(), 2 * 3, "two metrics, overall and on two slices");
        let same = judged(&GateSettings::default(), &served(), None);
        assert!(!same.passed && same.reasons[0].starts_with("test: no watched metric is higher"), "{:?}", same.reasons);
        assert!(judged(&GateSettings { gain: Gain::None, ..GateSettings::default() }, &served(), None).passed);
    }

    #[test]
    fn a_loss_on_one_slice_stops_what_is_better_on_average() {
        let traded = moved(|at| (4.0, if at % 2 == 0 { -3.0 + (at % 5) as f64 / 4.0 } else { 6.0 }));
        let verdict = judged(&GateSettings::default(), &traded, None);
        assert_eq!(verdict.reasons.len(), 1, "{:?}", verdict.reasons);
        assert!(verdict.reasons[0].contains("worse on the slice `rare`: goodrate@100"), "{:?}", verdict.reasons);
        let watched = vec![names(DEPTH)[0].clone()];
        assert!(judged(&GateSettings { watched, ..GateSettings::default() }, &traded, None).passed);
    }

    #[test]
    fn floors_chance_and_drift_each_have_their_say() {
        let noise = moved(|at| if at % 2 == 0 { (2.0, 0.0) } else { (-1.9, 0.0) });
        let strict = GateSettings { gain: Gain::Significant, ..GateSettings::default() };
        assert!(judged(&GateSettings::default(), &noise, None).reasons.iter().any(|reason| reason.contains("worse")));
        let slight = moved(|at| (if at % 2 == 0 { 3.0 } else { -2.9 } * ((at / 2 % 2) as f64 - 0.49), 0.0));
        let verdict = judged(&strict, &slight, None);
        assert!(verdict.reasons[0].contains("significantly"), "{:?}", verdict.reasons);
        let better = moved(|_| (1.0, 1.0));
        let floors: BTreeMap<String, f64> = [("goodrate@100".to_owned(), 90.0), ("ndcg@10".to_owned(), 1.0)].into();
        let settings = GateSettings { floors, max_drift: 0.1, ..GateSettings::default() };
        let reasons = judged(&settings, &better, Some(0.3)).reasons.join("\n");
        for words in ["below the floor of 90", "ndcg@10 has no value", "drifted by 0.300", "test: "] {
            assert!(reasons.contains(words), "{reasons}");
        }
        assert!(!judged(&settings, &better, Some(f64::NAN)).passed);
    }

    #[test]
    fn a_metric_that_is_not_there_is_named() {
        for (settings, words) in [
            (GateSettings { watched: vec!["hits".into()], ..GateSettings::default() }, "names `hits`"),
            (GateSettings { floors: [("x".to_owned(), 1.0)].into(), ..GateSettings::default() }, "names `x`"),
            (GateSettings { splits: Vec::new(), ..GateSettings::default() }, "is empty"),
            (GateSettings { source: GateSource::Log, days: 0.0, ..GateSettings::default() }, "more than 0"),
            (GateSettings { max_exposure: 0.5, ..GateSettings::default() }, "more than 1"),
            (GateSettings { depth: 100, ..GateSettings::default() }, "use more than 100"),
        ] {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
