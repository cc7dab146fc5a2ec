//! A relevance model's folder: Hugging Face's layout (a BERT that reads its first token is a
//! `BertForSequenceClassification`, a decoder that reads its last is its family's), and `relevance.json`, which says what
//! the outputs mean. What is read is checked; what is written is whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tch::Tensor;

use super::head::{Grading, Loss};
use super::model::CrossEncoder;
use super::reading::Reading;
use souk_io::error::{Error, Result};
use souk_nn::backbone::tokenizer;
use souk_nn::backbone::weights::{SHARD_BYTES, save_tensors, weight_files};
use souk_nn::encoder::digest_files;

pub const MANIFEST: &str = "relevance.json";
const FORMAT: u32 = 1;

/// What `relevance.json` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    pub loss: Loss,
    pub pooling: Reading,
    /// Query and item together.
    pub max_tokens: usize,
    pub temperature: f64,
    /// Of an ordinal loss, as they were calibrated; without them, those that were learned hold.
    pub cutpoints: Option<[f64; 3]>,
    /// The least scores of L2, L3 and L4.
    pub thresholds: [f64; 3],
    /// Expected calibration error of P(Good), on queries that nothing was fitted on.
    pub ece: Option<f64>,
    pub base: Option<Base>,
    pub trained_on: Option<TrainedOn>,
}

/// The model that training began with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    pub path: String,
    /// Of its content.
    pub fingerprint: String,
    pub num_layers: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainedOn {
    pub data: String,
    pub split: String,
    /// Of the catalogue, the queries and the judgements, by content.
    pub hash: String,
    /// Pairs that were drawn, and the different ones among which.
    pub draws: u64,
    pub pairs: usize,
    pub held_out: f64,
    pub random_negatives: usize,
    pub seed: u64,
}

impl Manifest {
    pub(super) fn new(grading: &Grading, pooling: Reading, max_tokens: usize) -> Self {
        Self {
            format: FORMAT,
            loss: grading.loss,
            pooling,
            max_tokens,
            temperature: grading.temperature,
            cutpoints: (grading.loss == Loss::Ordinal).then_some(grading.cutpoints),
            thresholds: grading.thresholds,
            ece: None,
            base: None,
            trained_on: None,
        }
    }

    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        if !path.exists() {
            let problem = "is missing: this is no relevance model; make one with `souk relevance train`";
            return Err(Error::config(path.display(), problem));
        }
        let text = fs::read(&path).map_err(Error::store(&path, "read it"))?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|e| Error::config(path.display(), "is not what `souk relevance train` writes").because(e))?;
        manifest.check().map_err(|problem| Error::config(path.display(), problem))?;
        Ok(manifest)
    }

    fn check(&self) -> std::result::Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("has format {}, and this program reads {FORMAT}: train the model again", self.format));
        }
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            return Err(format!("`temperature` is {}: it must be above 0", self.temperature));
        }
        if let Some([first, second, third]) = self.cutpoints
            && !(first <= second && second <= third && first.is_finite() && third.is_finite())
        {
            return Err(format!("`cutpoints` are {:?}: they must rise", self.cutpoints));
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

/// Names a relevance model by its content.
pub(super) fn fingerprint(dir: &Path) -> Result<String> {
    let mut files = weight_files(dir)?;
    files.extend(["config.json", "tokenizer.json", MANIFEST].map(|name| dir.join(name)));
    files.retain(|file| file.exists());
    digest_files(dir, files)
}

impl CrossEncoder {
    /// Writes the folder; `tokenizer_from` has what other programs read of a tokenizer.
    pub fn save(&self, manifest: &Manifest, tokenizer_from: &Path, out: &Path) -> Result<()> {
        let named = self.named.as_ref().ok_or_else(|| Error::input("a frozen model cannot be saved"))?;
        let prefix = if self.architecture.is_decoder() { "model." } else { "bert." };
        let renamed = |(name, tensor): (&String, &Tensor)| (full_name(name, prefix), tensor.shallow_clone());
        save_tensors(out, named.iter().map(renamed).collect::<BTreeMap<_, _>>(), SHARD_BYTES)?;
        write_json(&out.join("config.json"), &self.config_as_saved())?;
        for file in tokenizer::FILES.iter().filter(|file| tokenizer_from.join(file).exists()) {
            let copy = out.join(file);
            fs::copy(tokenizer_from.join(file), &copy).map_err(Error::store(&copy, "copy it"))?;
        }
        // over the copy: the template for pairs may be new
        self.reader.tokenizer().save(out)?;
        let manifest =
            serde_json::to_value(manifest).map_err(|e| Error::config(MANIFEST, "cannot be written down").because(e))?;
        write_json(&out.join(MANIFEST), &manifest)
    }

    fn config_as_saved(&self) -> Value {
        let mut json = self.architecture.json().clone();
        let model_type = json["model_type"].as_str().unwrap_or_default();
        let family = match model_type {
            "bert" => "Bert",
            "qwen2" => "Qwen2",
            "qwen3" => "Qwen3",
            "llama" => "Llama",
            _ => "Mistral",
        };
        json["architectures"] = json!([format!("{family}ForSequenceClassification")]);
        let labels: Vec<String> = match self.grading.loss {
            Loss::Ordinal => vec!["score".into()],
            Loss::FourWay => (1..=4).map(|level| format!("L{level}")).collect(),
        };
        let numbered = labels.iter().enumerate();
        json["id2label"] = numbered.clone().map(|(at, label)| (at.to_string(), json!(label))).collect();
        json["label2id"] = numbered.map(|(at, label)| (label.clone(), json!(at))).collect();
        for field in ["dtype", "torch_dtype"] {
            if json.get(field).is_some() {
                json[field] = "float32".into();
            }
        }
        json
    }
}

/// A backbone's tensors stand under its prefix, as a model with a head has them.
fn full_name(name: &str, prefix: &str) -> String {
    let of_head = super::head::HeadShape::TENSORS.iter().any(|head| name.starts_with(head));
    if of_head || name.starts_with(prefix) { name.into() } else { format!("{prefix}{name}") }
}

pub(super) fn write_json(path: &Path, value: &Value) -> Result<()> {
    fs::write(path, format!("{value:#}\n")).map_err(Error::store(path, "write it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_that_cannot_be_meant_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let open = |manifest: Value| {
            fs::write(home.path().join(MANIFEST), manifest.to_string()).unwrap();
            Manifest::open(home.path()).map(drop).map_err(|error| error.to_string())
        };
        assert!(Manifest::open(home.path()).unwrap_err().to_string().contains("souk relevance train"));
        let good = json!({"format": 1, "loss": "ordinal", "pooling": "cls", "max_tokens": 64, "temperature": 1.5,
            "cutpoints": [-1.0, 0.0, 1.0], "thresholds": [0.2, 0.5, 2.0], "ece": null, "base": null, "trained_on": null});
        assert_eq!(open(good.clone()), Ok(()));
        for (field, value, named) in [
            ("temperature", json!(0.0), "`temperature`"),
            ("cutpoints", json!([1.0, 0.0, 2.0]), "`cutpoints`"),
            ("thresholds", json!([0.5, 0.2, 0.9]), "`thresholds`"),
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

    #[test]
    fn names_are_those_of_a_model_with_a_head() {
        assert_eq!(
            full_name("encoder.layer.0.output.dense.weight", "bert."),
            "bert.encoder.layer.0.output.dense.weight"
        );
        assert_eq!(full_name("bert.pooler.dense.bias", "bert."), "bert.pooler.dense.bias");
        assert_eq!(full_name("classifier.weight", "bert."), "classifier.weight");
    }
}
