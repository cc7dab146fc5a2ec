//! Sizes of a model before it is loaded, from the small files of its folder or from the configuration of `souk init`. Never
//! reads the backbone's weights.

use std::path::Path;

use tch::{Device, Kind};

use super::folder::{Recipe, transformer_dir};
use super::{Overrides, Pooling, Reader, Scratch};
use crate::backbone::weights::Parameters;
use crate::backbone::{Architecture, Sizes};
use souk_io::error::{Error, Result};

/// Sizes of an encoder.
#[derive(Clone, Debug)]
pub struct Outline {
    pub sizes: Sizes,
    /// Inputs and outputs of the projections after the pooling, and whether they have a bias.
    pub dense: Vec<(u64, u64, bool)>,
    /// Dimensions of a vector.
    pub dimensions: u64,
    /// Layers at the top that are skipped.
    pub skip_layers: u64,
    /// Whether the folder has an untied language-model head, which is loaded but unused.
    pub vocabulary: bool,
    /// Whether attention is causal.
    pub causal: bool,
}

impl Outline {
    /// Reads a model folder; `ignored` lists unknown fields to accept.
    pub fn open(dir: &Path, overrides: &Overrides, ignored: &[String]) -> Result<Self> {
        let transformer = transformer_dir(dir)?;
        let architecture =
            Architecture::open(&transformer.join("config.json"), ignored)?.with_causal(overrides.causal, ignored)?;
        let recipe = Recipe::read(dir, ignored)?;
        let dense = recipe.dense.iter().map(|dense| {
            let shape = dense.weight.size();
            (shape[1].unsigned_abs(), shape[0].unsigned_abs(), dense.bias.is_some())
        });
        let mut outline = Self::of(&architecture, dense.collect(), recipe.pooling, overrides)?;
        // without weights, `config.json` decides
        let weights = Parameters::open(&transformer, Device::Cpu, Kind::Float);
        outline.vocabulary &= weights.map_or(true, |weights| weights.has("lm_head.weight"));
        Ok(outline)
    }

    /// Outline of a model to be created from a configuration.
    pub fn of_scratch(scratch: &Scratch, overrides: &Overrides) -> Result<Self> {
        let mut json = scratch.architecture.clone();
        if let Some(fields) = json.as_object_mut() {
            fields.entry("vocab_size").or_insert(scratch.vocab.into());
        }
        let architecture =
            Architecture::read(json, "[scratch.architecture]", None)?.with_causal(overrides.causal, &[])?;
        Self::of(&architecture, Vec::new(), scratch.pooling, overrides)
    }

    fn of(
        architecture: &Architecture,
        dense: Vec<(u64, u64, bool)>,
        pooling: Pooling,
        overrides: &Overrides,
    ) -> Result<Self> {
        let sizes = architecture.sizes();
        let whole = dense.last().map_or(sizes.width, |(_, outputs, _)| *outputs);
        let dimensions = overrides.dimensions.map_or(whole, i64::unsigned_abs);
        if dimensions < 1 || dimensions > whole {
            let problem = format!("is {dimensions}, but this model's vectors have {whole}: set it to 1 to {whole}");
            return Err(Error::config("dimensions", problem));
        }
        let pooling = overrides.pooling.unwrap_or(pooling);
        Ok(Self {
            dense,
            dimensions,
            skip_layers: u64::from(pooling == Pooling::PenultimateMean),
            vocabulary: sizes.untied,
            causal: architecture.is_causal(),
            sizes,
        })
    }
}

impl Reader {
    /// Opens the tokenizer of a model folder, with its prompts and length limit.
    pub fn open(dir: &Path, overrides: &Overrides, ignored: &[String]) -> Result<Self> {
        let transformer = transformer_dir(dir)?;
        let architecture = Architecture::open(&transformer.join("config.json"), ignored)?;
        let mut recipe = Recipe::read(dir, ignored)?;
        Self::of(&transformer, &architecture, &mut recipe, overrides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backbone::Precision;
    use crate::backbone::weights::{read_tensors, write_tensors};
    use crate::encoder::{Encoder, Placement};

    /// Decoder folder with an untied language-model head.
    fn untied(tied: &Path) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        for name in ["config.json", "model.safetensors", "modules.json", "tokenizer.json", "1_Pooling/config.json"] {
            std::fs::copy(tied.join(name), folder.path().join(name)).unwrap();
        }
        let [config, weights] = ["config.json", "model.safetensors"].map(|name| folder.path().join(name));
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
        json["tie_word_embeddings"] = false.into();
        std::fs::write(config, json.to_string()).unwrap();
        let mut tensors = read_tensors(&weights).unwrap();
        let (_, words) = tensors.iter().find(|(name, _)| name.ends_with("embed_tokens.weight")).unwrap();
        tensors.insert("lm_head.weight".into(), words.copy());
        write_tensors(&weights, &tensors).unwrap();
        folder
    }

    #[test]
    fn an_outline_counts_the_trainable_parameters() {
        let golden = souk_testing::golden("");
        // an untied language-model head has no part in a vector
        let untied = untied(&golden.join("st_last"));
        let folders = ["st_mean_dense", "st_last", "st_cls"].map(|folder| golden.join(folder));
        for dir in folders.into_iter().chain([untied.path().to_owned()]) {
            let folder = dir.display();
            let placement =
                Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
            let mut encoder = Encoder::open(&dir, placement, Overrides::default()).unwrap();
            let trained: usize = encoder.trainable(None, false).unwrap().iter().map(|(_, tensor)| tensor.numel()).sum();
            let outline = Outline::open(&dir, &Overrides::default(), &[]).unwrap();
            let dense = outline.dense.iter().map(|(i, o, bias)| i * o + if *bias { *o } else { 0 }).sum::<u64>();
            assert_eq!(outline.vocabulary, dir == untied.path(), "{folder}");
            assert_eq!(outline.sizes.num_parameters() + dense, trained as u64, "{folder}");
            assert_eq!(outline.dimensions as i64, encoder.dimensions(), "{folder}");
            let reader = Reader::open(&dir, &Overrides::default(), &[]).unwrap();
            assert_eq!(reader.read("oak desk", None).unwrap(), encoder.reader().read("oak desk", None).unwrap());
        }
        let too_wide = Overrides { dimensions: Some(1 << 20), ..Overrides::default() };
        assert!(Outline::open(&golden.join("st_cls"), &too_wide, &[]).is_err());
    }
}
