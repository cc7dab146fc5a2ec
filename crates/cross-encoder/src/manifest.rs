//! `relevance.json`, the manifest of a relevance model's folder: how the model reads pairs, and what its outputs mean.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::head::{Grading, Loss};
use super::reading::Reading;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_nn::backbone::weights::weight_files;
use souk_nn::encoder::digest_files;

pub const MANIFEST: &str = "relevance.json";
const FORMAT: u32 = 1;

/// Content of `relevance.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrossEncoderManifest {
    pub format: u32,
    pub loss: Loss,
    pub pooling: Reading,
    /// Maximum tokens of query and item together.
    pub max_tokens: usize,
    /// Template of the items' texts.
    #[serde(default, skip_serializing_if = "ItemText::is_default")]
    pub item_text: ItemText,
    pub temperature: f64,
    /// Calibrated cutpoints of an ordinal loss; none: the learned ones.
    pub cutpoints: Option<[f64; 3]>,
    /// Minimum scores of L2, L3 and L4.
    pub thresholds: [f64; 3],
    /// Expected calibration error of P(Good) on held-out queries.
    pub ece: Option<f64>,
    /// Four of five scores in int8 are closer than this to those in f32; none if that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_error: Option<f64>,
    pub base: Option<Base>,
    pub trained_on: Option<TrainedOn>,
}

/// The model that training started from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    pub path: String,
    /// Content hash.
    pub fingerprint: String,
    pub num_layers: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainedOn {
    pub data: String,
    pub split: String,
    /// Content hash of catalogue, queries and judgements.
    pub hash: String,
    /// Pairs that were drawn, and the different ones among which.
    pub draws: u64,
    pub pairs: usize,
    pub held_out: f64,
    pub random_negatives: usize,
    pub seed: u64,
}

impl CrossEncoderManifest {
    pub(super) fn new(grading: &Grading, pooling: Reading, max_tokens: usize) -> Self {
        Self {
            format: FORMAT,
            loss: grading.loss,
            pooling,
            max_tokens,
            item_text: ItemText::default(),
            temperature: grading.temperature,
            cutpoints: (grading.loss == Loss::Ordinal).then_some(grading.cutpoints),
            thresholds: grading.thresholds,
            ece: None,
            int8_error: None,
            base: None,
            trained_on: None,
        }
    }

    /// Manifest of a cross-encoder that Souk did not train. Its score is the sigmoid of its output; its levels mean nothing.
    pub(super) fn uncalibrated(max_tokens: usize) -> Self {
        Self::new(&Grading::plain(Loss::Ordinal, [0.0; 3]), Reading::Cls, max_tokens)
    }

    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        if !path.exists() {
            let problem = "is missing: this is not a relevance model; train one with `souk relevance train`, take a cross-encoder from \
                           the Hugging Face hub as the reranker, or make a judge of a model's hybrid search with `souk fit-fusion \
                           --as-judge`";
            return Err(Error::config(path.display(), problem));
        }
        let text = fs::read(&path).map_err(Error::store(&path, "read it"))?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|e| Error::config(path.display(), "is not a manifest of `souk relevance train`").because(e))?;
        manifest.check().map_err(|problem| Error::config(path.display(), problem))?;
        Ok(manifest)
    }

    pub(super) fn save(&self, dir: &Path) -> Result<()> {
        let json =
            serde_json::to_value(self).map_err(|e| Error::config(MANIFEST, "cannot be written as JSON").because(e))?;
        write_json(&dir.join(MANIFEST), &json)
    }

    fn check(&self) -> std::result::Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("has format {}, but this program reads {FORMAT}: train the model again", self.format));
        }
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            return Err(format!("`temperature` is {}: it must be above 0", self.temperature));
        }
        if let Some([first, second, third]) = self.cutpoints
            && !(first <= second && second <= third && first.is_finite() && third.is_finite())
        {
            return Err(format!("`cutpoints` are {:?}: they must rise", self.cutpoints));
        }
        if self.int8_error.is_some_and(|error| !(0.0..=1.0).contains(&error)) {
            return Err(format!("`int8_error` is {:?}: it must be from 0 to 1", self.int8_error));
        }
        let [second, third, fourth] = self.thresholds;
        if !(second <= third && third <= fourth && second >= 0.0) {
            return Err(format!("`thresholds` are {:?}: they must rise from 0 up", self.thresholds));
        }
        Ok(())
    }

    pub(super) fn grading(&self, learned: [f64; 3]) -> Grading {
        let cutpoints = self.cutpoints.unwrap_or(learned);
        Grading { loss: self.loss, cutpoints, temperature: self.temperature, thresholds: self.thresholds }
    }
}

pub(super) fn write_json(path: &Path, value: &Value) -> Result<()> {
    fs::write(path, format!("{value:#}\n")).map_err(Error::store(path, "write it"))
}

/// Content hash of a relevance model.
pub(super) fn fingerprint(dir: &Path) -> Result<String> {
    let mut files = weight_files(dir)?;
    files.extend(["config.json", "tokenizer.json", MANIFEST].map(|name| dir.join(name)));
    files.retain(|file| file.exists());
    digest_files(dir, files)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejects_invalid_manifests() {
        let home = tempfile::tempdir().unwrap();
        let open = |manifest: Value| {
            fs::write(home.path().join(MANIFEST), manifest.to_string()).unwrap();
            CrossEncoderManifest::open(home.path()).map(drop).map_err(|error| error.to_string())
        };
        assert!(CrossEncoderManifest::open(home.path()).unwrap_err().to_string().contains("souk relevance train"));
        let good = json!({"format": 1, "loss": "ordinal", "pooling": "cls", "max_tokens": 64, "temperature": 1.5,
            "cutpoints": [-1.0, 0.0, 1.0], "thresholds": [0.2, 0.5, 2.0], "ece": null, "base": null, "trained_on": null});
        assert_eq!(open(good.clone()), Ok(()));
        for (field, value, named) in [
            ("temperature", json!(0.0), "`temperature`"),
            ("cutpoints", json!([1.0, 0.0, 2.0]), "`cutpoints`"),
            ("thresholds", json!([0.5, 0.2, 0.9]), "`thresholds`"),
            ("int8_error", json!(-0.1), "`int8_error`"),
            ("format", json!(2), "train the model again"),
            ("loss", json!("hinge"), "souk relevance train"),
            ("colour", json!(1), "souk relevance train"),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            let error = open(bad).unwrap_err();
            assert!(error.contains(named), "{field}: {error}");
        }
    }
}
