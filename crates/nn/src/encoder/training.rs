//! Training interface of an encoder: trainable weights by name, and vectors with gradients.

use std::path::Path;

use tch::{Device, Tensor};

use super::{Encoder, Text};
use crate::backbone::Precision;
use crate::backbone::lora::Lora;
use souk_io::error::{Error, Result};

/// Weight of an untied language-model head.
const LM_HEAD: &str = "lm_head.weight";

impl Encoder {
    /// Enables gradients and returns the trainable tensors by name: all weights, or only those of a new adapter (`lora` with
    /// its seed). An untied language-model head is included only if the model `generates`.
    pub fn trainable(&mut self, lora: Option<(&Lora, u64)>, generates: bool) -> Result<Vec<(String, Tensor)>> {
        if !self.recipe.normalize && self.recipe.similarity.as_deref().is_some_and(|name| name != "cosine") {
            let problem = "this model's similarity is the dot product, but training optimises directions only: set it to \
                           true";
            return Err(Error::config("encoder.normalize", problem));
        }
        let mut named: Vec<(String, Tensor)> = Vec::new();
        if let Some((lora, seed)) = lora {
            if self.placement.adapter.is_some() {
                let problem = "the model already has an adapter (model.adapter): merge it first with `souk export`";
                return Err(Error::config("train.lora", problem));
            }
            lora.attach(&mut self.backbone, seed)?;
            named.extend(Lora::tensors(&mut self.backbone));
        } else {
            let frozen = || Error::input("a frozen model cannot be trained");
            let parameters = self.parameters.as_ref().ok_or_else(frozen)?;
            let used = parameters.named().iter().filter(|(name, _)| generates || name.as_str() != LM_HEAD);
            named.extend(used.map(|(name, tensor)| (name.clone(), tensor.shallow_clone())));
            for (i, dense) in self.recipe.dense.iter().enumerate() {
                named.push((format!("dense.{i}.weight"), dense.weight.shallow_clone()));
                named.extend(dense.bias.as_ref().map(|bias| (format!("dense.{i}.bias"), bias.shallow_clone())));
            }
        }
        Ok(named.into_iter().map(|(name, tensor)| (name, tensor.set_requires_grad(true))).collect())
    }

    /// Writes the attached adapter as a PEFT folder.
    pub fn save_adapter(&mut self, lora: &Lora, dir: &Path) -> Result<()> {
        lora.save(dir, &mut self.backbone, &self.dir.display().to_string())
    }

    /// Number of refine steps, each with its own vector; 1 without soft tokens.
    pub fn num_steps(&self) -> i64 {
        self.recipe.refine.map_or(1, |refine| refine.num_steps() as i64)
    }

    /// True if a text's vector has the same bits in any batch. libtorch's products, which bf16, generation and dense layers
    /// use, depend on the number of rows.
    pub fn is_exact_in_any_batch(&self) -> bool {
        let recipe = &self.recipe;
        self.device() == Device::Cpu
            && self.placement.precision != Precision::Bf16
            && recipe.dense.is_empty()
            && recipe.refine.is_none()
            && recipe.rationale.is_none()
    }

    /// As `encode_for_training`, with the vectors of all refine steps concatenated: `[b, k·d]`.
    pub fn encode_steps(&self, texts: &[&Text], dropout: bool) -> Result<Tensor> {
        let refine =
            self.recipe.refine.ok_or_else(|| Error::input("this encoder has no refine steps: set encoder.refine"))?;
        let vectors = self.refined(refine, texts, dropout)?;
        let rows = self.finish(vectors.flatten(0, 1), texts);
        Ok(rows.view([texts.len() as i64, -1]))
    }

    /// As `encode`, optionally with the model's dropout.
    pub fn encode_for_training(&self, texts: &[&Text], dropout: bool) -> Result<Tensor> {
        self.pass(texts, dropout)
    }
}
