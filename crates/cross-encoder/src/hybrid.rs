//! Hybrid search as a judge: it sees words as well as meaning. The fused score of an item, by weights that were fitted to a model, and by
//! the model's reranker if it was fitted to these weights, becomes a verdict. `hybrid-judge.json` in the model's folder says how.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tch::Device;

use super::agreement::Agreement;
use super::calibration::{Calibration, Choice};
use super::head::{Grading, Loss};
use super::reranker::PairScorer;
use souk_io::atomic_dir::write_json_atomic;
use souk_io::cores::on_all_cores;
use souk_io::domain::{Level, TextKind};
use souk_io::error::{Error, Result};
use souk_lexical::{FeatureWeights, Lexical, ModelFusion, Translations, UnindexedTexts};
use souk_nn::encoder::{Encoder, Reader, Text, VectorCache};
use souk_reward::{Question, RewardSource, Verdict};

/// File in a model's folder.
pub const HYBRID_JUDGE: &str = "hybrid-judge.json";
const FORMAT: u32 = 2;
/// Texts of one forward pass.
const CPU_BATCH: usize = 32;
const GPU_BATCH: usize = 1024;
/// Size of the cache of vectors.
const MAX_BYTES: usize = 512 << 20;

/// Content of `hybrid-judge.json`: the weights of fused scores, and what the scores mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HybridGrading {
    format: u32,
    /// Fingerprint of the model.
    pub model: String,
    /// As fitted, even where search uses the default ones.
    pub weights: FeatureWeights,
    /// Judged pairs that it was calibrated on.
    pub pairs: usize,
    /// Probability that a Good pair has a higher score than another judged pair.
    pub auc_good: Option<f64>,
    cutpoints: [f64; 3],
    temperature: f64,
    thresholds: [f64; 3],
}

impl HybridGrading {
    /// Calibrates the scores of judged pairs that `weights` gave.
    pub fn fit(model: String, weights: FeatureWeights, pairs: &[(f32, Level)]) -> Self {
        let mut scores: Vec<f64> = pairs.iter().map(|(score, _)| f64::from(*score)).collect();
        scores.sort_by(f64::total_cmp);
        let quarter = |part: usize| scores.get(scores.len() * part / 4).copied().unwrap_or_default();
        let mut grading = Grading::plain(Loss::Ordinal, [quarter(1), quarter(2), quarter(3)]);
        let outputs: Vec<(Vec<f32>, Level)> = pairs.iter().map(|(score, level)| (vec![*score], *level)).collect();
        Calibration::fit(&mut grading, &outputs, Choice::Agreement);
        let graded: Vec<_> =
            pairs.iter().map(|(score, level)| (*level, f64::from(*score), grading.verdict(&[*score]).level)).collect();
        let Grading { cutpoints, temperature, thresholds, .. } = grading;
        let auc_good = Agreement::of(&graded).auc_good;
        Self { format: FORMAT, model, weights, pairs: pairs.len(), auc_good, cutpoints, temperature, thresholds }
    }

    /// None if the model in a folder is no judge.
    pub fn of_model(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(HYBRID_JUDGE);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).map_err(Error::store(&path, "read it"))?;
        let remedy = "is not of this version of `souk fit-fusion --as-judge`: run that again, or remove the file";
        let grading: Self =
            serde_json::from_slice(&text).map_err(|e| Error::data(&path, None, remedy.to_owned()).because(e))?;
        let numbers = [grading.cutpoints, grading.thresholds].concat();
        let is_finite = numbers.iter().all(|number| number.is_finite()) && grading.weights.is_finite();
        if grading.format != FORMAT || grading.temperature <= 0.0 || !is_finite {
            return Err(Error::data(&path, None, remedy.to_owned()));
        }
        Ok(Some(grading))
    }

    pub fn save(&self, dir: &Path) -> Result<()> {
        write_json_atomic(&dir.join(HYBRID_JUDGE), self)
    }

    fn grading(&self) -> Grading {
        let Self { cutpoints, temperature, thresholds, .. } = *self;
        Grading { loss: Loss::Ordinal, cutpoints, temperature, thresholds }
    }
}

/// A query, and the texts that are scored for it.
pub struct AskedTexts<'a> {
    pub query: &'a str,
    pub texts: Vec<&'a str>,
    /// Instead of the model's.
    pub translations: Option<&'a Translations>,
}

/// Scores texts for queries as hybrid search does.
pub struct HybridScorer {
    // libtorch tensors are not shared between threads
    models: Mutex<Models>,
    reader: Arc<Reader>,
    lexical: Lexical,
    fusion: ModelFusion,
}

struct Models {
    encoder: Encoder,
    /// Candidates come back in other groups, and queries in other steps.
    vectors: VectorCache<(TextKind, Box<str>)>,
    /// With the weight of its output.
    reranker: Option<(PairScorer, f32)>,
}

impl HybridScorer {
    pub fn new(
        encoder: Encoder,
        lexical: Lexical,
        fusion: ModelFusion,
        reranker: Option<(PairScorer, f32)>,
    ) -> Result<Self> {
        let encoder = encoder.freeze()?;
        let reader = encoder.reader();
        let vectors = VectorCache::new(encoder.dimensions() as usize, MAX_BYTES);
        Ok(Self { models: Mutex::new(Models { encoder, vectors, reranker }), reader, lexical, fusion })
    }

    /// The fused score of each of these texts, for each query.
    pub fn scores(&self, asked: &[AskedTexts<'_>]) -> Result<Vec<Vec<f32>>> {
        // a panic in a forward pass leaves the models unchanged
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let cosines = self.cosines(&mut models, asked)?;
        let mut scores = Vec::with_capacity(asked.len());
        for of_terms in on_all_cores(asked.len(), |at| self.of_terms(&asked[at])) {
            scores.push(of_terms?);
        }
        let cosines = scores.iter_mut().flatten().zip(cosines);
        cosines.for_each(|(score, cosine)| *score += self.fusion.weights.dense * cosine);
        if let Some((reranker, weight)) = &models.reranker {
            for (AskedTexts { query, texts, .. }, scores) in asked.iter().zip(&mut scores) {
                for (score, output) in scores.iter_mut().zip(reranker.outputs(query, texts)?) {
                    *score += weight * output;
                }
            }
        }
        Ok(scores)
    }

    /// The parts of the scores that are not the model's.
    fn of_terms(&self, AskedTexts { query, texts, translations }: &AskedTexts<'_>) -> Result<Vec<f32>> {
        let weights = &self.fusion.weights;
        let translations = translations.unwrap_or(&self.fusion.translations);
        let mut unindexed = UnindexedTexts::new(self.lexical.language());
        texts.iter().for_each(|text| unindexed.push(*text));
        let mut matcher = self.lexical.matcher(query).with_translations(translations);
        let mut scores: Vec<f32> = texts.iter().map(|text| weights.of_terms(&matcher.compare(text, ""))).collect();
        for hit in self.lexical.search_unindexed(query, &unindexed)? {
            scores[hit.row as usize] += weights.lexical * hit.score;
        }
        Ok(scores)
    }

    /// The cosine of every text with its query, one query after another.
    fn cosines(&self, Models { encoder, vectors, .. }: &mut Models, asked: &[AskedTexts<'_>]) -> Result<Vec<f32>> {
        let queries = asked.iter().map(|asked| (TextKind::Query, asked.query.into()));
        let items = asked.iter().flat_map(|asked| asked.texts.iter().map(|text| (TextKind::Item, (*text).into())));
        let all: Vec<(TextKind, Box<str>)> = queries.chain(items).collect();
        let flat = vectors.get_or_encode(&all, |missing| {
            let missing: Vec<_> = missing.iter().map(|at| &all[*at]).collect();
            self.encode(encoder, &missing)
        })?;
        let vectors: Vec<&[f32]> = flat.chunks_exact(encoder.dimensions() as usize).collect();
        let unit = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
        let (queries, items) = vectors.split_at(asked.len());
        let of_item = queries.iter().zip(asked).flat_map(|(query, asked)| asked.texts.iter().map(move |_| query));
        let cosine = |query: &[f32], item: &[f32]| {
            let dot: f32 = item.iter().zip(query).map(|(a, b)| a * b).sum();
            dot / unit(item) / unit(query)
        };
        Ok(of_item.zip(items).map(|(query, item)| cosine(query, item)).collect())
    }

    /// Concatenated vectors.
    fn encode(&self, encoder: &Encoder, texts: &[&(TextKind, Box<str>)]) -> Result<Vec<f32>> {
        let read = on_all_cores(texts.len(), |at| self.reader.read(&texts[at].1, Some(texts[at].0)));
        let read = read.into_iter().collect::<Result<Vec<Text>>>()?;
        let batch = match encoder.device() {
            Device::Cpu if encoder.is_exact_in_any_batch() => CPU_BATCH,
            // so that what is cached makes no difference
            Device::Cpu => 1,
            _ => GPU_BATCH,
        };
        let mut vectors = Vec::new();
        for batch in read.chunks(batch) {
            vectors.extend(encoder.vectors(&batch.iter().collect::<Vec<_>>())?.into_iter().flatten());
        }
        Ok(vectors)
    }
}

/// A judge that reads only texts, so it has a verdict on every pair.
pub struct HybridJudge {
    id: String,
    scorer: HybridScorer,
    grading: Grading,
}

impl HybridJudge {
    /// Judges with the scores of the model named `name`.
    pub fn new(name: &str, scorer: HybridScorer, grading: &HybridGrading) -> Self {
        let short: String = grading.model.chars().take(12).collect();
        Self { id: format!("hybrid search of {name}-{short}"), scorer, grading: grading.grading() }
    }
}

impl RewardSource for HybridJudge {
    fn id(&self) -> &str {
        &self.id
    }

    fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
        let mut by_query: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, question) in asked.iter().enumerate() {
            by_query.entry(question.query).or_default().push(at);
        }
        let texts = by_query.iter().map(|(query, places)| {
            let texts = places.iter().map(|at| asked[*at].item).collect();
            AskedTexts { query, texts, translations: None }
        });
        let scores = self.scorer.scores(&texts.collect::<Vec<_>>())?;
        let mut verdicts = vec![None; asked.len()];
        for (at, score) in by_query.into_values().flatten().zip(scores.into_iter().flatten()) {
            verdicts[at] = Some(self.grading.verdict(&[score]));
        }
        Ok(verdicts)
    }
}

#[cfg(test)]
mod tests {
    use souk_io::domain::Level::{L1, L2, L3, L4};
    use souk_lexical::{FeatureWeights, TranslationPairs};
    use souk_nn::backbone::Precision;
    use souk_nn::encoder::{Overrides, Placement};

    use super::*;

    #[test]
    fn scores_become_the_levels_they_were_judged_as() {
        let pairs: Vec<(f32, Level)> = (0..400)
            .map(|at| (at as f32 * 0.1 - 50.0, [L1, L2, L3, L4][at / 100]))
            .chain([(-45.0, L2), (-20.0, L1)])
            .collect();
        let fitted = HybridGrading::fit("abc".into(), FeatureWeights::default(), &pairs);
        let grading = fitted.grading();
        let levels: Vec<Level> = [-48.0, -35.0, -25.0, -12.0].iter().map(|at| grading.verdict(&[*at]).level).collect();
        assert_eq!(levels, [L1, L2, L3, L4]);
        assert!(fitted.auc_good.unwrap() > 0.99 && fitted.pairs == 402);
        let scores: Vec<f32> = (-50..-10).map(|at| grading.verdict(&[at as f32]).score).collect();
        assert!(scores.is_sorted() && scores[0] < 0.1 && scores[39] > 0.9, "{scores:?}");
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_a_broken_one_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(HybridGrading::of_model(home.path()).unwrap(), None);
        let weights = FeatureWeights { dense: 2.0, ..FeatureWeights::default() };
        let fitted = HybridGrading::fit("abc".into(), weights, &[(1.0, L1), (2.0, L4), (3.0, L3)]);
        fitted.save(home.path()).unwrap();
        assert_eq!(HybridGrading::of_model(home.path()).unwrap(), Some(fitted.clone()));
        for broken in [HybridGrading { format: 9, ..fitted.clone() }, HybridGrading { temperature: 0.0, ..fitted }] {
            broken.save(home.path()).unwrap();
            let error = HybridGrading::of_model(home.path()).unwrap_err().to_string();
            assert!(error.contains("souk fit-fusion --as-judge"), "{error}");
        }
    }

    #[test]
    fn a_query_is_scored_with_the_models_translations_or_others() {
        let dir = souk_testing::golden("st_cls");
        let placement =
            Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
        let encoder = Encoder::open(&dir, placement, Overrides::default()).unwrap();
        let lexical = Lexical::build(["couch", "bench", "sofa lamp"].map(|text| Ok(text.to_owned())).into_iter());
        let mut pairs = TranslationPairs::default();
        (0..10).for_each(|_| pairs.add("sofa", "couch", 1.0));
        let weights = FeatureWeights::from_array([1.0, 0.0, 0.0, 0.0, 0.0, 2.0]);
        let fusion = ModelFusion { weights, translations: pairs.learn(|_| true) };
        let scorer = HybridScorer::new(encoder, lexical.unwrap(), fusion, None).unwrap();
        let none = Translations::default();
        let scores = |texts: &[&'static str], translations| {
            let asked = AskedTexts { query: "sofa", texts: texts.to_vec(), translations };
            scorer.scores(&[asked]).unwrap().remove(0)
        };
        let (own, other) = (scores(&["couch", "bench"], None), scores(&["couch", "bench"], Some(&none)));
        assert!(own[0] > other[0] + 1.0, "{own:?} {other:?}");
        assert_eq!(own[1], other[1]);
        // vectors of an earlier call
        assert_eq!(scores(&["lamp", "bench", "couch", "bench"], Some(&none))[1..], [other[1], other[0], other[1]]);
    }
}
