//! Creates a new model folder: a tokenizer trained on the catalogue, and weights initialised from a seed.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tch::{Device, Kind};

use super::Pooling;
use super::export::write_json;
use super::folder::{Prompts, Recipe};
use crate::backbone::tokenizer::Tokenizer;
use crate::backbone::weights::{Parameters, SHARD_BYTES};
use crate::backbone::{Architecture, Backbone};
use souk_io::atomic_dir::AtomicDir;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;

/// Configuration of a new model.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scratch {
    /// Seed of the weights.
    pub seed: u64,
    /// Maximum vocabulary of the new tokenizer.
    pub vocab: usize,
    /// How the tokens become one vector.
    pub pooling: Pooling,
    /// Maximum tokens per text.
    pub max_tokens: usize,
    /// Text before every query.
    #[serde(default)]
    pub query_prompt: String,
    /// Text before every item.
    #[serde(default)]
    pub item_prompt: String,
    /// Hub `config.json` as TOML; `vocab_size` is filled in.
    pub architecture: Value,
}

impl Scratch {
    /// Trains the tokenizer on `texts`, made by the template `item_text`, and writes the folder. `out` must be new or empty.
    pub fn write(&self, texts: impl Iterator<Item = String> + Send, item_text: &ItemText, out: &Path) -> Result<()> {
        let tokenizer = Tokenizer::train(texts, self.vocab)?;
        let mut json = self.architecture.clone();
        if let Some(fields) = json.as_object_mut() {
            fields.entry("vocab_size").or_insert(tokenizer.vocab().into());
        }
        let architecture = Architecture::read(json, "[scratch.architecture]", None)?;
        if architecture.vocab() < tokenizer.vocab() {
            let problem = format!("is {}, but the tokenizer has {} tokens", architecture.vocab(), tokenizer.vocab());
            return Err(Error::config("scratch.architecture.vocab_size", problem));
        }
        if self.max_tokens > architecture.max_tokens() {
            let problem =
                format!("is {}, but the model has positions for {}", self.max_tokens, architecture.max_tokens());
            return Err(Error::config("scratch.max_tokens", problem));
        }
        let mut parameters = Parameters::seeded(self.seed, Device::Cpu, Kind::Float);
        Backbone::build(&architecture, &mut parameters)?;
        let atomic_dir = AtomicDir::new(out)?;
        let aside = &atomic_dir.staging;
        parameters.save(aside, SHARD_BYTES)?;
        write_json(&aside.join("config.json"), architecture.json())?;
        tokenizer.save(aside)?;
        let class = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": self.max_tokens,
            "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>",
        });
        write_json(&aside.join("tokenizer_config.json"), &class)?;
        self.recipe(item_text).write(aside, architecture.width())?;
        atomic_dir.finish()
    }

    fn recipe(&self, item_text: &ItemText) -> Recipe {
        let prompts = [("query", &self.query_prompt), ("document", &self.item_prompt)];
        let by_name = prompts.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
        Recipe {
            pooling: self.pooling,
            refine: None,
            rationale: None,
            include_prompt: true,
            dense: Vec::new(),
            normalize: true,
            prompts: Prompts { by_name, default: None },
            item_text: item_text.clone(),
            similarity: None,
            max_tokens: Some(self.max_tokens),
            lowercase: false,
        }
    }
}
