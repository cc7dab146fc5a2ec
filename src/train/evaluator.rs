//! Evaluation during training: the model answers the queries of a split from the whole catalogue, as `souk evaluate` does, and the
//! weights of the best evaluation are kept for the end of the stage. All processes encode their shard and get the same numbers. Changes
//! nothing that is learned.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use tch::Tensor;

use super::TrainSettings;
use super::catalogue_candidates::{BankSpec, nearest};
use super::context::{StageContext, read_queries};
use super::evaluate_settings::{EvaluateSettings, EvaluationMetric};
use super::grad_cache::GradCache;
use super::metrics::Evaluation;
use crate::candidates::BankSearch;
use crate::checkpoint::EvaluationState;
use souk_ingest::dataset::Pairs;
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::domain::{Level, query_place};
use souk_io::error::{Error, Result};
use souk_nn::collective::gather_json;
use souk_nn::encoder::Encoder;
use souk_nn::optimizer::Optimizer;
use souk_report::{HitGrades, QueryGrades, Values, WIDE, means, measure, names};
use souk_reward::Judgements;

/// Names of the best weights in a checkpoint.
const BEST: &str = "best/";

/// A query with its judgements.
struct JudgedQuery {
    text: String,
    /// Levels of all judged items, and by row those in the catalogue.
    judged: Vec<Level>,
    levels: HashMap<u32, Level>,
}

pub struct Evaluator {
    settings: EvaluateSettings,
    queries: Vec<JudgedQuery>,
    pub state: Option<EvaluationState>,
    /// Weights of the best evaluation, in the first process.
    best: BTreeMap<String, Tensor>,
}

impl Evaluator {
    /// None unless the stage evaluates.
    pub fn open(
        train: &TrainSettings,
        data: &DataFolder,
        catalogue: &Catalogue,
        pairs: &Pairs,
    ) -> Result<Option<Self>> {
        let Some(settings) = train.evaluate.clone() else { return Ok(None) };
        let is_trained_on = matches!(pairs, Pairs::Judged(_)) && train.split == settings.split;
        if is_trained_on && train.held_out == 0.0 {
            let problem =
                format!("is `{}`, which the stage trains on: name another split, or set train.held_out", train.split);
            return Err(Error::config("train.evaluate.split", problem));
        }
        let place = data.qrels(&settings.split);
        if !place.exists() {
            let problem = format!("is `{}`, but there is no {}", settings.split, place.display());
            return Err(Error::config("train.evaluate.split", problem));
        }
        let mut queries = read_judged(data, catalogue, &settings.split)?;
        if is_trained_on {
            queries.retain(|query| query_place(&query.text) < train.held_out);
        }
        if queries.is_empty() {
            let problem = format!("is `{}`, which has no judged queries to evaluate", settings.split);
            return Err(Error::config("train.evaluate.split", problem));
        }
        Ok(Some(Self { settings, queries, state: None, best: BTreeMap::new() }))
    }

    /// Continues from a checkpoint.
    pub fn restore(&mut self, state: Option<EvaluationState>, best: BTreeMap<String, Tensor>) {
        (self.state, self.best) = (state, best);
    }

    /// Whether the model of `step` is to be evaluated and was not yet.
    pub fn is_due(&self, step: u64, num_steps: u64) -> bool {
        let is_new = self.state.as_ref().is_none_or(|state| state.last < step);
        is_new && (step.is_multiple_of(self.settings.every) || step == num_steps)
    }

    /// Whether there were too many evaluations without a better one.
    pub fn has_lost_patience(&self) -> bool {
        let patience = self.settings.patience;
        patience > 0 && self.state.as_ref().is_some_and(|state| state.num_since_best >= patience)
    }

    /// Evaluates the model after `step` steps, and keeps its weights if it is the best one.
    pub fn evaluate(
        &mut self,
        stage: &StageContext,
        encoder: &Encoder,
        weights: &Optimizer,
        step: u64,
    ) -> Result<Evaluation> {
        let begin = Instant::now();
        let values = means(self.answer(stage, encoder)?.iter());
        let names = names(WIDE);
        let value = |metric: EvaluationMetric| {
            let at = names.iter().position(|name| name == metric.name())?;
            Some((metric.name(), values[at]?))
        };
        let named = EvaluationMetric::ALL.into_iter().filter_map(value);
        let own: BTreeMap<String, f64> = named.map(|(name, value)| (name.to_owned(), value)).collect();
        // all processes decide by the numbers of the first
        let first = gather_json(stage.collective, &own)?.swap_remove(0);
        let metrics =
            EvaluationMetric::ALL.into_iter().filter_map(|of| Some((of.name(), *first.get(of.name())?))).collect();
        let metric = self.settings.metric.name();
        let mut evaluation =
            Evaluation { step, metrics, is_best: false, seconds: begin.elapsed().as_secs_f64(), metric };
        let found = evaluation.value();
        evaluation.is_best = self.state.as_ref().is_none_or(|state| found > state.best);
        let before = self.state.take();
        self.state = Some(match before {
            Some(state) if !evaluation.is_best => {
                EvaluationState { last: step, num_since_best: state.num_since_best + 1, ..state }
            }
            _ => EvaluationState { last: step, num_since_best: 0, best_step: step, best: found },
        });
        if evaluation.is_best && stage.collective.rank() == 0 {
            self.best = weights.copies();
        }
        Ok(evaluation)
    }

    /// Values of every query.
    fn answer(&self, stage: &StageContext, encoder: &Encoder) -> Result<Vec<Values>> {
        let _guard = tch::no_grad_guard();
        let bank =
            BankSpec::new(stage, BankSearch::Exact, 1).build(stage.catalogue, encoder, &AtomicBool::new(false))?;
        let own = &self.queries[stage.shard(self.queries.len())];
        let texts = read_queries(&encoder.reader(), &own.iter().map(|query| query.text.as_str()).collect::<Vec<_>>())?;
        let (_, vectors) = GradCache::encode(encoder, texts, stage.inference_chunking())?;
        let hits = nearest(stage, &bank, &vectors, WIDE)?.all;
        Ok(self.queries.iter().zip(hits).map(|(query, rows)| query.measure(&rows)).collect())
    }

    /// The best weights for a checkpoint.
    pub fn tensors(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.best.iter().map(|(name, tensor)| (format!("{BEST}{name}"), tensor.shallow_clone()))
    }

    /// Gives the model the weights of its best evaluation.
    pub fn load_best(&self, weights: &mut Optimizer) -> Result<()> {
        if self.best.is_empty() { Ok(()) } else { weights.load(&self.best) }
    }

    /// Split that is evaluated, and its number of queries.
    pub fn split(&self) -> (&str, usize) {
        (&self.settings.split, self.queries.len())
    }

    /// Name of the metric that decides.
    pub fn metric(&self) -> &'static str {
        self.settings.metric.name()
    }
}

/// The best weights of a checkpoint, and its other tensors.
pub fn split_best(tensors: BTreeMap<String, Tensor>) -> [BTreeMap<String, Tensor>; 2] {
    let (best, others): (BTreeMap<_, _>, _) = tensors.into_iter().partition(|(name, _)| name.starts_with(BEST));
    [best.into_iter().map(|(name, tensor)| (name[BEST.len()..].to_owned(), tensor)).collect(), others]
}

impl JudgedQuery {
    fn measure(&self, rows: &[u32]) -> Values {
        let grades = |row: &u32| HitGrades { judged: self.levels.get(row).copied(), ..HitGrades::default() };
        let hits: Vec<HitGrades> = rows.iter().map(grades).collect();
        measure(&hits, &QueryGrades { judged: &self.judged, num_good_lexical: 0 })
    }
}

/// Queries of a split with their judgements, in the order of `queries.jsonl`.
fn read_judged(data: &DataFolder, catalogue: &Catalogue, split: &str) -> Result<Vec<JudgedQuery>> {
    let judgements = Judgements::gather("qrels", data.judgements(split)?)?;
    let mut queries = Vec::with_capacity(judgements.num_queries());
    for query in data.queries()? {
        let query = query?;
        let judged: Vec<(&str, Level)> = judgements.of(&query.id).collect();
        if judged.is_empty() {
            continue;
        }
        let levels = judged.iter().filter_map(|(item, level)| Some((catalogue.row(item)?, *level))).collect();
        let judged = judged.into_iter().map(|(_, level)| level).collect();
        queries.push(JudgedQuery { text: query.text, judged, levels });
    }
    Ok(queries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluator(patience: u64) -> Evaluator {
        let settings = EvaluateSettings { every: 3, patience, ..EvaluateSettings::default() };
        Evaluator { settings, queries: Vec::new(), state: None, best: BTreeMap::new() }
    }

    #[test]
    fn evaluations_are_due_before_the_first_step_at_each_interval_and_at_the_end() {
        let mut evaluator = evaluator(2);
        let due = |evaluator: &Evaluator| (0..=7).filter(|step| evaluator.is_due(*step, 7)).collect::<Vec<u64>>();
        assert_eq!(due(&evaluator), [0, 3, 6, 7]);
        let state = |num_since_best| Some(EvaluationState { last: 3, best_step: 3, best: 1.0, num_since_best });
        evaluator.state = state(1);
        assert_eq!(due(&evaluator), [6, 7]);
        assert!(!evaluator.has_lost_patience());
        evaluator.state = state(2);
        assert!(evaluator.has_lost_patience());
    }

    #[test]
    fn hits_are_measured_as_in_a_report() {
        let levels = HashMap::from([(7, Level::L4), (1, Level::L2)]);
        let query = JudgedQuery { text: String::new(), judged: vec![Level::L4, Level::L2, Level::L4], levels };
        let values = query.measure(&[3, 7, 1]);
        let names = names(WIDE);
        let of =
            |metric: EvaluationMetric| values[names.iter().position(|name| name == metric.name()).unwrap()].unwrap();
        let log3 = 3_f64.log2();
        let ideal = 7.0 + 7.0 / log3 + 0.5;
        assert!((of(EvaluationMetric::Ndcg) - 100.0 * (7.0 / log3 + 0.5) / ideal).abs() < 1e-9);
        assert!((of(EvaluationMetric::NdcgJudged) - 100.0 * (7.0 + 1.0 / log3) / ideal).abs() < 1e-9);
        assert_eq!((of(EvaluationMetric::Mrr), of(EvaluationMetric::Hitrate)), (50.0, 50.0));
    }

    #[test]
    fn the_best_weights_of_a_checkpoint_are_apart() {
        let tensor = || Tensor::from_slice(&[1.0_f32]);
        let tensors = BTreeMap::from([("best/weight/a".to_owned(), tensor()), ("weight/a".to_owned(), tensor())]);
        let [best, others] = split_best(tensors);
        assert!(best.keys().eq(["weight/a"]) && others.keys().eq(["weight/a"]));
    }
}
