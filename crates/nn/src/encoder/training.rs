//! What a training stage needs of an encoder: its weights by name, and vectors that remember how they were made.

use std::path::Path;

use tch::Tensor;

use super::{Encoder, Text};
use crate::backbone::lora::Lora;
use souk_io::error::{Error, Result};

/// Scores of the next token, where they are not the words' own matrix.
const VOCABULARY: &str = "lm_head.weight";

impl Encoder {
    /// The tensors to be trained, by name, with gradients turned on: all weights, or those of a fresh adapter alone. Scores of the
    /// next token have a part only in what `writes`.
    pub fn trainable(&mut self, lora: Option<(&Lora, u64)>, writes: bool) -> Result<Vec<(String, Tensor)>> {
        if !self.recipe.normalize && self.recipe.similarity.as_deref().is_some_and(|name| name != "cosine") {
            let problem = "this model's vectors are compared by their product, and training turns directions alone: set it \
                           to true";
            return Err(Error::config("encoder.normalize", problem));
        }
        let mut named: Vec<(String, Tensor)> = Vec::new();
        if let Some((lora, seed)) = lora {
            if self.placement.adapter.is_some() {
                let problem = "there is one already (model.adapter): merge it first, with souk export";
                return Err(Error::config("train.lora", problem));
            }
            lora.attach(&mut self.backbone, seed)?;
            named.extend(Lora::tensors(&mut self.backbone));
        } else {
            let frozen = || Error::input("a frozen model cannot be trained");
            let parameters = self.parameters.as_ref().ok_or_else(frozen)?;
            let used = parameters.named().iter().filter(|(name, _)| writes || name.as_str() != VOCABULARY);
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

    /// Vectors that each text has on the way to its own.
    pub fn steps(&self) -> i64 {
        self.recipe.refine.map_or(1, |refine| refine.num_steps() as i64)
    }

    /// As `encode_to_train`, the vectors of all steps one after the other: `[b, k·d]`.
    pub fn encode_steps(&self, texts: &[&Text], dropout: bool) -> Result<Tensor> {
        let refine = self.recipe.refine.ok_or_else(|| Error::input("this encoder has no steps"))?;
        let vectors = self.refined(refine, texts, dropout)?;
        let rows = self.finish(vectors.flatten(0, 1));
        Ok(rows.view([texts.len() as i64, -1]))
    }

    /// As `encode`, with the model's own dropout where it is wanted.
    pub fn encode_to_train(&self, texts: &[&Text], dropout: bool) -> Result<Tensor> {
        self.pass(texts, dropout)
    }
}
