//! Fits the weights of hybrid search, and of a reranker of its hits, to a task's judgements. Takes a model's vectors as an engine; gives
//! the weights, and the gain over the default ones or over the fused order.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::engine::{Engine, RERANKED_QUERIES, of_terms, of_vectors};
use super::task::{Task, TaskQuery};
use souk_cross_encoder::{AskedTexts, HybridScorer, PairScorer, RerankFit, RerankQuality};
use souk_io::cores::on_all_cores;
use souk_io::domain::{Level, normalized_query};
use souk_io::error::Result;
use souk_lexical::{
    FeatureWeights, FitQuality, JudgedCandidates, Lexical, ModelFusion, NUM_FEATURES, TRANSLATION, TranslationPairs,
    Translations, USUAL_WEIGHTS, UsualWeights, candidates, cross_validate, fit, fusion_depth,
};

/// Weights are not fitted to fewer queries.
pub const MIN_QUERIES: usize = 10;
/// Nor is that of a reranker.
const MIN_RERANKED: usize = 50;
/// Two standard errors of the gain of translations, measured on one query. They gain in every shop that was tried, so few queries in which
/// they lose say little.
const TWO_ERRORS: f64 = 0.2;
/// Parts of the queries with training pairs.
const FOLDS: usize = 5;
/// A judge is calibrated on no more pairs.
const MAX_JUDGED_PAIRS: usize = 20_000;

/// Weights, and their gain on the queries they were fitted to.
#[derive(Debug)]
pub struct Fitted {
    /// Without translations if they bring nothing.
    pub fusion: ModelFusion,
    pub queries: usize,
    pub quality: FitQuality,
    /// `quality.fitted` of weights without translations; none if there were none.
    pub without_translations: Option<f64>,
}

impl Fitted {
    /// Whether translations help, or cost less than so few queries can show. `without`: the same fit without them.
    fn translations_pay(&self, without: &Self) -> bool {
        let error = TWO_ERRORS / (self.queries as f64).sqrt();
        self.fusion.weights.translation > 0.0 && self.quality.fitted > without.quality.fitted - error
    }
}

/// Inputs of hybrid search.
pub struct FusionInputs<'a> {
    /// Vectors of a model.
    pub dense: &'a Engine,
    pub lexical: &'a Lexical,
    pub translations: &'a CrossFitted,
}

/// Translations for fitting. Those of a query that also has training pairs are learned without these pairs, so that what is fitted is right
/// for new queries, too.
pub struct CrossFitted {
    /// By the fold of a query.
    folds: Vec<Translations>,
    fold_of: HashMap<String, usize>,
    /// From all pairs.
    all: Translations,
}

impl CrossFitted {
    /// From these pairs; none give no translations.
    pub fn learn(pairs: &TranslationPairs, queries: &[TaskQuery]) -> Self {
        let paired: HashSet<&str> = pairs.queries().collect();
        let texts: BTreeSet<String> = queries.iter().map(|query| normalized_query(&query.text)).collect();
        let texts = texts.into_iter().filter(|text| paired.contains(text.as_str()));
        let fold_of: HashMap<String, usize> = texts.enumerate().map(|(at, text)| (text, at % FOLDS)).collect();
        let num_folds = fold_of.len().min(FOLDS);
        let folds = on_all_cores(num_folds, |fold| pairs.learn(|query| fold_of.get(query) != Some(&fold)));
        Self { folds, all: pairs.learn(|_| true), fold_of }
    }

    pub fn of(&self, query: &TaskQuery) -> &Translations {
        self.fold_of.get(&normalized_query(&query.text)).map_or(&self.all, |fold| &self.folds[*fold])
    }
}

/// Fits to the judgements of the queries that `is_used` selects; none if they are too few, or none has a hit better than L1. `progress` is
/// called with the number of queries that were searched.
pub fn fit_fusion(
    task: &Task,
    inputs: &FusionInputs<'_>,
    is_used: impl Fn(&TaskQuery) -> bool,
    progress: impl Fn(u64),
) -> Result<Option<Fitted>> {
    let (mut queries, num) = (Vec::new(), task.queries.len());
    for start in (0..num).step_by(inputs.dense.block(task)) {
        let block = start..num.min(start + inputs.dense.block(task));
        let judged = judged_candidates(task, inputs, block.clone())?;
        queries.extend(task.queries[block.clone()].iter().zip(judged).filter(|(query, _)| is_used(query)));
        progress(block.len() as u64);
    }
    let mut queries: Vec<JudgedCandidates<NUM_FEATURES>> = queries.into_iter().map(|(_, judged)| judged).collect();
    if queries.len() < MIN_QUERIES {
        return Ok(None);
    }
    let Some(mut fitted) = fit_weights(&queries) else { return Ok(None) };
    let translations = &inputs.translations.all;
    if translations.is_empty() {
        return Ok(Some(fitted));
    }
    queries.iter_mut().flat_map(|query| &mut query.features).for_each(|features| features[TRANSLATION] = 0.0);
    let Some(without) = fit_weights(&queries) else { return Ok(Some(fitted)) };
    let pays = fitted.translations_pay(&without);
    fitted.fusion.translations = translations.clone();
    fitted.without_translations = Some(without.quality.fitted);
    Ok(Some(if pays { fitted } else { without }))
}

fn fit_weights(queries: &[JudgedCandidates<NUM_FEATURES>]) -> Option<Fitted> {
    let (weights, quality) = fit(queries, &USUAL_WEIGHTS).zip(cross_validate(queries, &USUAL_WEIGHTS))?;
    let fusion = ModelFusion { weights: FeatureWeights::from_array(weights), ..ModelFusion::default() };
    Some(Fitted { fusion, queries: queries.len(), quality, without_translations: None })
}

/// The hits of both channels for a block of queries, with features and gains.
fn judged_candidates(
    task: &Task,
    inputs: &FusionInputs<'_>,
    block: Range<usize>,
) -> Result<Vec<JudgedCandidates<NUM_FEATURES>>> {
    let FusionInputs { dense, lexical, translations } = inputs;
    let depth = fusion_depth(1);
    let nearest = dense.hits(task, lexical, block.clone(), depth)?;
    let texts: Vec<&str> = task.queries[block.clone()].iter().map(|query| query.text.as_str()).collect();
    let by_terms = lexical.search_many(&texts, depth)?;
    Ok(on_all_cores(block.len(), |at| {
        let query = &task.queries[block.start + at];
        let mut matcher = lexical.matcher(&query.text).with_translations(translations.of(query));
        let compare = |row| task.item(row).compare(&mut matcher);
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
    if queries.len() < MIN_RERANKED {
        return Ok(None);
    }
    let usual = UsualWeights::NONE;
    let Some(([fused, output], quality)) = fit(&queries, &usual).zip(cross_validate(&queries, &usual)) else {
        return Ok(None);
    };
    let FitQuality { default: before, fitted } = quality;
    let quality = RerankQuality { fused: before, reranked: fitted };
    let pays = fitted > before && fused > 0.0 && output > 0.0;
    Ok(pays.then(|| RerankFit::new(depth, output / fused, queries.len(), quality)))
}

/// Scores of judged pairs with their levels, which calibrate hybrid search as a judge.
pub fn judged_scores(
    task: &Task,
    search: (&HybridScorer, &CrossFitted),
    is_used: impl Fn(&TaskQuery) -> bool,
    progress: impl Fn(u64),
) -> Result<Vec<(f32, Level)>> {
    let (scorer, translations) = search;
    let mut pairs = Vec::new();
    for query in task.queries.iter().filter(|query| is_used(query)) {
        let texts: Vec<&str> = query.levels.keys().map(|row| task.item(*row).text.as_str()).collect();
        let asked = AskedTexts { query: &query.text, texts, translations: Some(translations.of(query)) };
        pairs.extend(scorer.scores(&[asked])?.into_iter().flatten().zip(query.levels.values().copied()));
        progress(1);
        if pairs.len() >= MAX_JUDGED_PAIRS {
            break;
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use souk_io::beir::DataFolder;
    use souk_io::item_text::ItemText;
    use souk_lexical::Fusion;
    use souk_nn::backbone::Precision;
    use souk_nn::encoder::{Encoder, Overrides, Placement};
    use tch::Device;

    use super::*;

    const NUM: usize = 60;

    /// Each query asks for a sofa in one colour, and each item is a couch or a bench in it.
    fn shop() -> Task {
        let home = tempfile::tempdir().unwrap();
        let lines = |line: &dyn Fn(usize) -> String| (0..NUM).map(line).collect::<String>();
        let item = |at| {
            let line = |kind: &str| format!("{{\"_id\":\"{kind}{at}\",\"title\":\"{kind} colour{at}\"}}\n");
            line("bench") + &line("couch")
        };
        fs::write(home.path().join("corpus.jsonl"), lines(&item)).unwrap();
        let query = |at| format!("{{\"_id\":\"q{at}\",\"text\":\"sofa colour{at}\"}}\n");
        fs::write(home.path().join("queries.jsonl"), lines(&query)).unwrap();
        fs::create_dir(home.path().join("qrels")).unwrap();
        fs::write(home.path().join("qrels/dev.tsv"), lines(&|at| format!("q{at}\tcouch{at}\t4\n"))).unwrap();
        Task::load(&DataFolder::open(home.path()).unwrap(), "dev", &ItemText::default()).unwrap()
    }

    fn pairs(query: &str, item: &str) -> TranslationPairs {
        let mut pairs = TranslationPairs::default();
        (0..10).for_each(|_| pairs.add(query, item, 1.0));
        pairs
    }

    #[test]
    fn translations_are_kept_if_they_order_hits_better() {
        let task = shop();
        let texts = task.items.iter().map(|item| Ok(item.text.clone()));
        let lexical = Lexical::build(texts).unwrap();
        let dense = Engine::dense(&task, &[1.0; 2 * NUM], &[1.0; NUM]).unwrap();
        let fitted = |pairs: &TranslationPairs| {
            let translations = CrossFitted::learn(pairs, &task.queries);
            let inputs = FusionInputs { dense: &dense, lexical: &lexical, translations: &translations };
            fit_fusion(&task, &inputs, |_| true, |_| {}).unwrap().unwrap()
        };
        let none = fitted(&TranslationPairs::default());
        assert_eq!((none.without_translations, none.fusion.weights.translation), (None, 0.0));
        assert!(none.quality.fitted < 0.7, "the bench is listed first: {:?}", none.quality);
        let helpful = fitted(&pairs("sofa", "couch"));
        assert_eq!((helpful.quality.fitted, helpful.without_translations), (1.0, Some(none.quality.fitted)));
        assert!(helpful.fusion.weights.translation > 0.0 && helpful.fusion.translations.len() == 1);
        let useless = fitted(&pairs("sofa", "bench"));
        assert!(useless.fusion.translations.is_empty(), "they would need a negative weight");
        assert_eq!((useless.fusion.weights, useless.quality), (none.fusion.weights, none.quality));
    }

    #[test]
    fn translations_go_if_they_cost_more_than_the_queries_can_err() {
        let fitted = |queries, quality, translation| Fitted {
            fusion: ModelFusion {
                weights: FeatureWeights { translation, ..FeatureWeights::default() },
                ..ModelFusion::default()
            },
            queries,
            quality: FitQuality { default: 0.4, fitted: quality },
            without_translations: None,
        };
        // a loss of three points: less than the error of 25 queries, more than that of 100
        let pays = |queries, weight| fitted(queries, 0.40, weight).translations_pay(&fitted(queries, 0.43, 0.0));
        assert_eq!([pays(25, 0.7), pays(25, -0.1), pays(100, 0.7)], [true, false, false]);
        assert!(fitted(1000, 0.43, 0.7).translations_pay(&fitted(1000, 0.42, 0.0)));
    }

    #[test]
    fn a_query_is_fitted_with_translations_that_did_not_see_its_pairs() {
        let task = shop();
        let mut pairs = TranslationPairs::default();
        for at in (0..NUM).flat_map(|at| [at; 5]) {
            pairs.add(&format!("Sofa colour{at}"), &format!("couch colour{at}"), 1.0);
        }
        let translations = CrossFitted::learn(&pairs, &task.queries[..7]);
        assert_eq!(translations.folds.len(), FOLDS);
        for (at, query) in task.queries[..9].iter().enumerate() {
            let own = translations.of(query).of(&format!("colour{at}"));
            assert_eq!(own.is_empty(), at < 7, "{at}: {own:?}");
            assert!(!translations.of(query).of("sofa").is_empty(), "other queries teach it");
            assert!(!translations.all.of(&format!("colour{at}")).is_empty());
        }
        // the model's own translations know the first query's colour, too
        let lexical = Lexical::build(task.items.iter().map(|item| Ok(item.text.clone()))).unwrap();
        let weights = FeatureWeights { dense: 1.0, translation: 1.0, ..FeatureWeights::default() };
        let fusion = || Fusion::Fitted(ModelFusion { weights, translations: translations.all.clone() });
        let dense = || Engine::dense(&task, &[1.0; 2 * NUM], &[1.0; NUM]).unwrap();
        let score = |engine: Engine| engine.hits(&task, &lexical, 0..1, 1).unwrap()[0][0].score;
        let served = score(dense().hybrid(&task, fusion()).unwrap());
        let fitted = score(dense().hybrid_with(&task, fusion(), |query| translations.of(query).clone()).unwrap());
        assert!(served > fitted && fitted > 1.0, "{served} {fitted}");
        // nor do the scores that calibrate a judge
        let placement =
            Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
        let encoder = Encoder::open(&souk_testing::golden("st_cls"), placement, Overrides::default()).unwrap();
        let only_translations = FeatureWeights { translation: 1.0, ..FeatureWeights::default() };
        let fusion = ModelFusion { weights: only_translations, translations: translations.all.clone() };
        let scorer = HybridScorer::new(encoder, lexical, fusion, None).unwrap();
        let scores = |translations| judged_scores(&task, (&scorer, translations), |_| true, |_| {}).unwrap();
        let (knowing, fair) = (scores(&CrossFitted::learn(&pairs, &[])), scores(&translations));
        assert_eq!(knowing.len(), NUM);
        for (at, (knowing, fair)) in knowing.iter().zip(&fair).enumerate() {
            assert_eq!(knowing.0 > fair.0, at < 7, "{at}: {knowing:?} {fair:?}");
        }
    }
}
