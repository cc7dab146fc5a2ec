//! Saves a relevance model as a Hugging Face folder: an encoder that reads its first token, or a decoder that reads its last one, as its
//! family's class for sequence classification, and `relevance.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tch::Tensor;

use super::head::Loss;
use super::manifest::{CrossEncoderManifest, write_json};
use super::model::CrossEncoder;
use souk_io::error::{Error, Result};
use souk_nn::backbone::tokenizer;
use souk_nn::backbone::weights::{SHARD_BYTES, save_tensors};

impl CrossEncoder {
    /// Writes the folder, with the tokenizer files in `tokenizer_from`.
    pub fn save(&self, manifest: &CrossEncoderManifest, tokenizer_from: &Path, out: &Path) -> Result<()> {
        let named = self.named.as_ref().ok_or_else(|| Error::input("a frozen model cannot be saved"))?;
        let prefix = self.architecture.class_names().prefix;
        let renamed = |(name, tensor): (&String, &Tensor)| (full_name(name, prefix), tensor.shallow_clone());
        save_tensors(out, named.iter().map(renamed).collect::<BTreeMap<_, _>>(), SHARD_BYTES)?;
        write_json(&out.join("config.json"), &self.config_as_saved())?;
        for file in tokenizer::FILES.iter().filter(|file| tokenizer_from.join(file).exists()) {
            let copy = out.join(file);
            fs::copy(tokenizer_from.join(file), &copy).map_err(Error::store(&copy, "copy it"))?;
        }
        // replaces the copy, because the template for pairs may be new
        self.reader.tokenizer().save(out)?;
        manifest.save(out)
    }

    fn config_as_saved(&self) -> Value {
        let mut json = self.architecture.json().clone();
        let class = self.architecture.class_names().class;
        json["architectures"] = json!([format!("{class}ForSequenceClassification")]);
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

/// Full name of a tensor: backbone tensors have a prefix in a model with a head.
fn full_name(name: &str, prefix: &str) -> String {
    let of_head = super::head::HeadShape::TENSORS.iter().any(|head| name.starts_with(head));
    if of_head || name.starts_with(prefix) { name.into() } else { format!("{prefix}{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_named_as_in_a_model_with_a_head() {
        assert_eq!(
            full_name("encoder.layer.0.output.dense.weight", "bert."),
            "bert.encoder.layer.0.output.dense.weight"
        );
        assert_eq!(full_name("bert.pooler.dense.bias", "bert."), "bert.pooler.dense.bias");
        assert_eq!(full_name("classifier.weight", "bert."), "classifier.weight");
    }
}
