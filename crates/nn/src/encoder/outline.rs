//! What a model is like before it is loaded: its sizes, from the small files of its folder or from what `souk init` is to
//! make. Never reads the backbone's weights.

use std::path::Path;

use tch::{Device, Kind};

use super::folder::{Recipe, transformer_dir};
use super::{Overrides, Pooling, Reader, Scratch};
use crate::backbone::weights::Parameters;
use crate::backbone::{Architecture, Sizes};
use souk_io::error::{Error, Result};

/// The sizes of an encoder.
#[derive(Clone, Debug)]
pub struct Outline {
    pub sizes: Sizes,
    /// Entries that the projections after the pooling take and give; and whether they add a bias.
    pub dense: Vec<(u64, u64, bool)>,
    /// Entries of a vector.
    pub dimensions: u64,
    /// Layers at the top that are not computed.
    pub skip_layers: u64,
    /// The folder brings a matrix for the next token's scores, which is carried along.
    pub vocabulary: bool,
    /// Attention is in one direction.
    pub causal: bool,
}

impl Outline {
    /// `ignored` lists fields the user vouches for.
    pub fn open(dir: &Path, overrides: &Overrides, ignored: &[String]) -> Result<Self> {
        let transformer = transformer_dir(dir)?;
        let architecture =
            Architecture::open(&transformer.join("config.json"), ignored)?.attending(overrides.causal, ignored)?;
        let recipe = Recipe::read(dir, ignored)?;
        let dense = recipe.dense.iter().map(|dense| {
            let shape = dense.weight.size();
            (shape[1].unsigned_abs(), shape[0].unsigned_abs(), dense.bias.is_some())
        });
        let mut outline = Self::of(&architecture, dense.collect(), recipe.pooling, overrides)?;
        // a folder that holds no weights yet is taken at its word
        let weights = Parameters::open(&transformer, Device::Cpu, Kind::Float);
        outline.vocabulary &= weights.map_or(true, |weights| weights.has("lm_head.weight"));
        Ok(outline)
    }

    /// The model that a configuration describes.
    pub fn of_scratch(scratch: &Scratch, overrides: &Overrides) -> Result<Self> {
        let mut json = scratch.architecture.clone();
        if let Some(fields) = json.as_object_mut() {
            fields.entry("vocab_size").or_insert(scratch.vocab.into());
        }
        let architecture =
            Architecture::read(json, "[scratch.architecture]", None)?.attending(overrides.causal, &[])?;
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
            let problem = format!("is {dimensions}, but a vector of this model has {whole} entries");
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
    /// The tokenizer of a model's folder, with its prompts and its limit.
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

    /// A decoder's folder whose words and scores do not share their matrix.
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
    fn an_outline_counts_what_is_trained_when_the_model_is_open() {
        let golden = souk_testing::golden("");
        // with a matrix of its own for the next token's scores, which has no part in a vector
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
