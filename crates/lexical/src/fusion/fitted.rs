//! Weights of hybrid search that were fitted to a model on judged queries: an item's score is the weighted sum of its scores in both
//! channels and of its `TermFeatures`. They are in `fusion.json` in the model's folder, with the translations beside it, so a version is
//! promoted with its weights.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{TRANSLATIONS, TermFeatures, Translations};
use souk_io::atomic_dir::write_json_atomic;
use souk_io::error::{Error, Result};

/// File in a model's folder.
pub const FUSION: &str = "fusion.json";
const FORMAT: u32 = 1;
const REMEDY: &str = "fit the weights again with `souk fit-fusion`, or remove the file";
/// Number of features.
pub const NUM_FEATURES: usize = 6;
/// Place of `translation` among them.
pub const TRANSLATION: usize = 5;

/// Weight of each feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureWeights {
    /// Cosine.
    pub dense: f32,
    /// BM25.
    pub lexical: f32,
    pub overlap: f32,
    pub trigrams: f32,
    pub missing_numbers: f32,
    #[serde(default)]
    pub translation: f32,
}

/// The weights that were fitted to a model, and the translations that one of them multiplies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelFusion {
    pub weights: FeatureWeights,
    pub translations: Translations,
}

/// Content of `fusion.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedFusion {
    format: u32,
    /// None if the default weights are as good.
    pub weights: Option<FeatureWeights>,
    pub fitted_on: FittedOn,
}

/// Queries that the weights were fitted on, and what they gained there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedOn {
    /// Fingerprint of the model.
    pub model: String,
    pub data: String,
    pub split: String,
    pub queries: usize,
    /// None if there were too few queries.
    pub quality: Option<FitQuality>,
    /// `quality.fitted` of weights that were fitted without translations; none if there were no translations.
    #[serde(default)]
    pub without_translations: Option<f64>,
}

/// nDCG@10 over the queries that have a judged item with a gain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitQuality {
    /// With the default weights.
    #[serde(alias = "equal")]
    pub default: f64,
    /// By cross-validation: each fifth of the queries is ordered by weights that were fitted to the others.
    pub fitted: f64,
}

impl ModelFusion {
    /// None if the model in a folder has no fitted weights.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let weights = FittedFusion::load(dir)?.and_then(|fitted| fitted.weights);
        weights.map(|weights| Self::with_weights(weights, dir)).transpose()
    }

    /// Weights, with the translations in a model's folder if one of them multiplies these.
    pub fn with_weights(weights: FeatureWeights, dir: &Path) -> Result<Self> {
        if weights.translation == 0.0 {
            return Ok(Self { weights, translations: Translations::default() });
        }
        let translations = Translations::load(dir)?;
        if translations.is_empty() {
            let problem =
                "is missing or empty, and a fitted weight needs it: fit the weights again with `souk fit-fusion`";
            return Err(Error::data(&dir.join(TRANSLATIONS), None, problem));
        }
        Ok(Self { weights, translations })
    }

    /// Copies what was fitted to the model in a folder, if anything was, into the folder of another.
    pub fn copy(from: &Path, to: &Path) -> Result<()> {
        if let Some(fitted) = FittedFusion::load(from)? {
            // a file that no weight multiplies is not copied
            let translations = Self::load(from)?.unwrap_or_default().translations;
            fitted.save(&translations, to)?;
        }
        Ok(())
    }
}

impl FeatureWeights {
    pub const fn from_array(weights: [f32; NUM_FEATURES]) -> Self {
        let [dense, lexical, overlap, trigrams, missing_numbers, translation] = weights;
        Self { dense, lexical, overlap, trigrams, missing_numbers, translation }
    }

    pub const fn named(&self) -> [(&'static str, f32); NUM_FEATURES] {
        [
            ("dense", self.dense),
            ("lexical", self.lexical),
            ("overlap", self.overlap),
            ("trigrams", self.trigrams),
            ("missing_numbers", self.missing_numbers),
            ("translation", self.translation),
        ]
    }

    pub fn is_finite(&self) -> bool {
        self.named().iter().all(|(_, weight)| weight.is_finite())
    }

    /// All weights, multiplied.
    pub fn scaled(&self, by: f32) -> Self {
        Self::from_array(self.named().map(|(_, weight)| weight * by))
    }

    /// Part of the score that the terms of an item contribute.
    pub fn of_terms(&self, terms: &TermFeatures) -> f32 {
        let TermFeatures { overlap, trigrams, missing_numbers, translation } = *terms;
        self.overlap * overlap
            + self.trigrams * trigrams
            + self.missing_numbers * missing_numbers
            + self.translation * translation
    }
}

impl FittedFusion {
    pub fn new(weights: Option<FeatureWeights>, fitted_on: FittedOn) -> Self {
        Self { format: FORMAT, weights, fitted_on }
    }

    /// None if nothing was fitted to the model.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FUSION);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).map_err(Error::store(&path, "read it"))?;
        let fitted: Self = serde_json::from_slice(&text).map_err(|e| {
            Error::data(&path, None, format!("is not written by `souk fit-fusion`: {REMEDY}")).because(e)
        })?;
        if fitted.format != FORMAT || fitted.weights.is_some_and(|weights| !weights.is_finite()) {
            let problem = format!("has format {} or a weight that is no number: {REMEDY}", fitted.format);
            return Err(Error::data(&path, None, problem));
        }
        Ok(Some(fitted))
    }

    /// Writes the file, and the translations that one of the weights multiplies beside it.
    pub fn save(&self, translations: &Translations, dir: &Path) -> Result<()> {
        let write = || write_json_atomic(&dir.join(FUSION), self);
        // a killed process leaves no weight without its translations
        if translations.is_empty() {
            write().and_then(|()| translations.save(dir))
        } else {
            translations.save(dir).and_then(|()| write())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written_and_a_broken_one_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(FittedFusion::load(home.path()).unwrap(), None);
        let weights = FeatureWeights::from_array([1.0, 0.5, 0.25, 2.0, -1.0, 0.5]);
        let fitted = FittedFusion::new(Some(weights), FittedOn { queries: 7, ..FittedOn::default() });
        fitted.save(&Translations::default(), home.path()).unwrap();
        assert_eq!(FittedFusion::load(home.path()).unwrap(), Some(fitted));
        let terms = TermFeatures { overlap: 1.0, trigrams: 0.5, missing_numbers: 2.0, translation: 8.0 };
        assert_eq!(weights.of_terms(&terms), 0.25 + 1.0 - 2.0 + 4.0);
        let error = ModelFusion::load(home.path()).unwrap_err().to_string();
        assert!(error.contains("translations.tsv") && error.contains("again with `souk fit-fusion`"), "{error}");
        fs::write(home.path().join(TRANSLATIONS), "query\titem\tprobability\nsofa\tcouch\t0.5\n").unwrap();
        let loaded = ModelFusion::load(home.path()).unwrap().unwrap();
        assert_eq!((loaded.weights, loaded.translations.len()), (weights, 1));
        let other = tempfile::tempdir().unwrap();
        ModelFusion::copy(home.path(), other.path()).unwrap();
        assert_eq!(ModelFusion::load(other.path()).unwrap(), Some(loaded));
        FittedFusion::new(None, FittedOn::default()).save(&Translations::default(), home.path()).unwrap();
        assert!(!home.path().join(TRANSLATIONS).exists());
        assert_eq!(ModelFusion::load(home.path()).unwrap(), None);
        for text in ["{}", "{\"format\":2"] {
            fs::write(home.path().join(FUSION), text).unwrap();
            assert!(FittedFusion::load(home.path()).unwrap_err().to_string().contains("souk fit-fusion"));
        }
    }
}
