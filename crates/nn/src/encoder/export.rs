//! Exports a folder that `SentenceTransformer(DIR)` loads with the same vectors, in the layout of all sentence-transformers
//! releases.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::folder::{ITEM_TEXT, LIMITS, MODULES, PENULTIMATE, RATIONALE, REFINE, Recipe, SETTINGS, transformer_dir};
use super::{Encoder, Pooling, Prompts};
use crate::backbone::Precision;
use crate::backbone::lora::Lora;
use crate::backbone::tokenizer;
use crate::backbone::weights::{SHARD_BYTES, write_tensors};
use souk_io::atomic_dir::AtomicDir;
use souk_io::error::{Error, Result};

/// The similarity of a folder that names none.
const COSINE: &str = "cosine";

impl Encoder {
    /// Returns an error if the model's settings cannot be saved in a folder.
    pub fn check_export(&self) -> Result<()> {
        let unsupported =
            |what: &str| Error::config("export", format!("{what} cannot be saved in a sentence-transformers folder"));
        if self.overrides.dimensions.is_some() {
            return Err(unsupported("an override of `dimensions` (pass truncate_dim when loading)"));
        }
        if self.recipe.pooling == Pooling::PenultimateMean {
            return Err(unsupported("pooling `penultimate_mean`"));
        }
        Ok(())
    }

    /// Returns an error if sentence-transformers cannot compute the model: it has no soft tokens and no rationales.
    pub fn check_foreign(&self) -> Result<()> {
        let unsupported = match (self.recipe.refine, &self.recipe.rationale) {
            (None, None) => return Ok(()),
            (Some(_), _) => "soft tokens (encoder.refine)",
            (None, Some(_)) => "a rationale (encoder.rationale; max_tokens=0 disables it)",
        };
        let problem = format!("sentence-transformers does not support {unsupported}: serve the folder with Souk");
        Err(Error::config("export", problem))
    }

    /// Prompts by the kind of text.
    pub fn prompts(&self) -> &Prompts {
        &self.recipe.prompts
    }

    /// Name of the similarity that the vectors are compared by.
    pub fn similarity(&self) -> &str {
        self.recipe.similarity.as_deref().unwrap_or(COSINE)
    }

    /// Exports the model in its current state, with adapters merged. `out` must be new or empty.
    pub fn export(&mut self, out: &Path) -> Result<()> {
        self.export_with(out, |_, _| Ok(()))
    }

    /// The same; `more` adds files to the folder before it appears.
    pub fn export_with(&mut self, out: &Path, more: impl FnOnce(&Self, &Path) -> Result<()>) -> Result<()> {
        self.check_export()?;
        let atomic_dir = AtomicDir::new(out)?;
        let aside = &atomic_dir.staging;
        Lora::merge(&mut self.backbone);
        let parameters = self.parameters.as_ref();
        parameters.ok_or_else(|| Error::input("a frozen model cannot be exported"))?.save(aside, SHARD_BYTES)?;
        write_json(&aside.join("config.json"), &self.config_as_saved())?;
        let from = transformer_dir(&self.dir)?;
        for file in tokenizer::FILES.iter().filter(|file| from.join(file).exists()) {
            let copy = aside.join(file);
            fs::copy(from.join(file), &copy).map_err(Error::store(&copy, "copy it"))?;
        }
        self.recipe.write(aside, self.architecture.width())?;
        more(self, aside)?;
        atomic_dir.finish()
    }

    /// `config.json` with the dtype of the saved weights: other programs load the model in it.
    fn config_as_saved(&self) -> Value {
        let mut json = self.architecture.json().clone();
        let kind = if self.placement.precision == Precision::Bf16 { "bfloat16" } else { "float32" };
        for field in ["dtype", "torch_dtype"] {
            if let Some(value) = json.get_mut(field) {
                *value = kind.into();
            }
        }
        json
    }
}

pub(super) fn write_json(path: &Path, value: &Value) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::store(parent, "make the folder"))?;
    }
    fs::write(path, format!("{value:#}\n")).map_err(Error::store(path, "write it"))
}

impl Recipe {
    /// Writes everything except the backbone and its tokenizer.
    pub(super) fn write(&self, out: &Path, width: i64) -> Result<()> {
        let mut modules =
            vec![json!({"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"})];
        let mut add = |class: &str, short: &str| {
            let path = format!("{}_{short}", modules.len());
            let (idx, name) = (modules.len(), modules.len().to_string());
            let class = match class {
                REFINE | RATIONALE => class.into(),
                class => format!("sentence_transformers.models.{class}"),
            };
            modules.push(json!({"idx": idx, "name": name, "path": path, "type": class}));
            out.join(path)
        };
        if let Some(rationale) = &self.rationale {
            let config = json!({"instruction": rationale.instruction(), "max_tokens": rationale.max_tokens()});
            write_json(&add(RATIONALE, "Rationale").join("config.json"), &config)?;
        }
        match self.refine {
            Some(refine) => {
                write_json(&add(REFINE, "Refine").join("config.json"), &json!({"steps": refine.num_steps()}))?
            }
            None => write_json(&add("Pooling", "Pooling").join("config.json"), &self.pooling_config(width))?,
        }
        for dense in &self.dense {
            let dir = add("Dense", "Dense");
            let activation = if dense.tanh { "activation.Tanh" } else { "linear.Identity" };
            let shape = dense.weight.size();
            let config = json!({
                "in_features": shape[1], "out_features": shape[0], "bias": dense.bias.is_some(),
                "activation_function": format!("torch.nn.modules.{activation}"),
            });
            write_json(&dir.join("config.json"), &config)?;
            let mut tensors = BTreeMap::from([("linear.weight".to_string(), dense.weight.shallow_clone())]);
            tensors.extend(dense.bias.as_ref().map(|bias| ("linear.bias".to_string(), bias.shallow_clone())));
            write_tensors(&dir.join("model.safetensors"), &tensors)?;
        }
        if self.normalize {
            let dir = add("Normalize", "Normalize");
            fs::create_dir_all(&dir).map_err(Error::store(&dir, "make the folder"))?;
        }
        write_json(&out.join(MODULES), &Value::Array(modules))?;
        let limits = json!({"max_seq_length": self.max_tokens, "do_lower_case": self.lowercase});
        write_json(&out.join(LIMITS), &limits)?;
        let mut settings = json!({
            "prompts": self.prompts.by_name, "default_prompt_name": self.prompts.default,
            "similarity_fn_name": self.similarity.as_deref().unwrap_or(COSINE),
        });
        if !self.item_text.is_default() {
            settings[ITEM_TEXT] = self.item_text.to_string().into();
        }
        write_json(&out.join(SETTINGS), &settings)
    }

    fn pooling_config(&self, width: i64) -> Value {
        let is = |pooling| self.pooling == pooling;
        if is(Pooling::PenultimateMean) {
            let prompt = self.include_prompt;
            return json!({"embedding_dimension": width, "pooling_mode": PENULTIMATE, "include_prompt": prompt});
        }
        json!({
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": is(Pooling::Cls),
            "pooling_mode_mean_tokens": is(Pooling::Mean),
            "pooling_mode_max_tokens": is(Pooling::Max),
            "pooling_mode_mean_sqrt_len_tokens": false,
            "pooling_mode_weightedmean_tokens": false,
            "pooling_mode_lasttoken": is(Pooling::LastToken),
            "include_prompt": self.include_prompt,
        })
    }
}
