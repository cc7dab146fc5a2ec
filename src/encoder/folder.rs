//! Reads what makes an encoder out of a model folder: the sentence-transformers files beside `config.json`.
//! Without them the folder is a bare backbone, pooled by the mean as sentence-transformers does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::pooling::Pooling;
use crate::backbone::fields::Fields;
use crate::backbone::weights::read_tensors;
use crate::domain::TextKind;
use crate::error::{Error, Result};

/// What stands around the backbone.
pub(super) struct Recipe {
    pub pooling: Pooling,
    pub include_prompt: bool,
    pub dense: Vec<Dense>,
    pub normalize: bool,
    pub prompts: Prompts,
    pub max_tokens: Option<usize>,
    pub lowercase: bool,
}

/// A projection of the pooled vector.
pub(super) struct Dense {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub tanh: bool,
}

impl Dense {
    pub fn apply(&self, x: &Tensor) -> Tensor {
        let y = x.linear(&self.weight, self.bias.as_ref());
        if self.tanh { y.tanh() } else { y }
    }
}

/// What is written before a text, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompts {
    pub by_name: BTreeMap<String, String>,
    pub default: Option<String>,
}

impl Prompts {
    /// The prompt for one kind of text; without a kind, the folder's default.
    pub fn of(&self, kind: Option<TextKind>) -> &str {
        let names: &[&str] = match kind {
            Some(TextKind::Query) => &["query"],
            Some(TextKind::Item) => &["item", "document", "passage", "corpus"],
            None => return self.default.as_ref().and_then(|name| self.by_name.get(name)).map_or("", String::as_str),
        };
        names.iter().find_map(|name| self.by_name.get(*name).filter(|text| !text.is_empty())).map_or("", String::as_str)
    }
}

#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    class: String,
}

impl Recipe {
    pub fn read(dir: &Path) -> Result<Self> {
        let mut recipe = Self {
            pooling: Pooling::Mean,
            include_prompt: true,
            dense: Vec::new(),
            normalize: false,
            prompts: prompts(dir)?,
            max_tokens: None,
            lowercase: false,
        };
        let (transformer, listed) = modules(dir)?;
        recipe.read_limits(&transformer)?;
        for module in listed {
            recipe.add(dir, &module)?;
        }
        Ok(recipe)
    }

    fn read_limits(&mut self, transformer: &Path) -> Result<()> {
        let own = transformer.join("sentence_bert_config.json");
        if own.exists() {
            let fields = Fields::open(&own)?;
            self.max_tokens = fields.get("max_seq_length")?;
            self.lowercase = fields.or("do_lower_case", false)?;
        }
        let general = transformer.join("tokenizer_config.json");
        if self.max_tokens.is_none() && general.exists() {
            // "no limit" is written as 1e30
            let limit: Option<f64> = Fields::open(&general)?.get("model_max_length")?;
            self.max_tokens = limit.filter(|&n| (1.0..1e9).contains(&n)).map(|n| n as usize);
        }
        Ok(())
    }

    fn add(&mut self, dir: &Path, module: &Module) -> Result<()> {
        let path = dir.join(&module.path);
        match module.class.rsplit('.').next() {
            Some("Transformer") => Ok(()),
            Some("Pooling") => self.add_pooling(&Fields::open(&path.join("config.json"))?),
            Some("Dense") => {
                self.dense.push(read_dense(&path)?);
                Ok(())
            }
            Some("Normalize") => {
                self.normalize = true;
                Ok(())
            }
            _ => {
                let problem =
                    format!("module `{}` is not known: Souk computes Pooling, Dense, Normalize", module.class);
                Err(Error::config(dir.join("modules.json").display(), problem))
            }
        }
    }

    fn add_pooling(&mut self, fields: &Fields) -> Result<()> {
        let supported =
            [("cls", Pooling::Cls), ("mean", Pooling::Mean), ("max", Pooling::Max), ("lasttoken", Pooling::LastToken)];
        let named: Option<Value> = fields.get("pooling_mode")?;
        let mut chosen: Vec<String> = match named {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(String::from).collect(),
            _ => Vec::new(),
        };
        for (name, field) in [
            ("cls", "pooling_mode_cls_token"),
            ("mean", "pooling_mode_mean_tokens"),
            ("max", "pooling_mode_max_tokens"),
            ("lasttoken", "pooling_mode_lasttoken"),
            ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
            ("weightedmean", "pooling_mode_weightedmean_tokens"),
        ] {
            if fields.or(field, false)? && !chosen.iter().any(|c| c == name) {
                chosen.push(name.into());
            }
        }
        let found = match chosen.as_slice() {
            [] => Some(Pooling::Mean),
            [one] => supported.iter().find(|(name, _)| name == one).map(|(_, pooling)| *pooling),
            _ => None,
        };
        let problem = format!("is {chosen:?}: Souk computes exactly one of cls, mean, max, lasttoken");
        self.pooling = found.ok_or_else(|| fields.error("pooling_mode", &problem))?;
        self.include_prompt = fields.or("include_prompt", true)?;
        fields.finish("word_embedding_dimension embedding_dimension", &[])
    }
}

/// The folder of the transformer and the modules after it.
fn modules(dir: &Path) -> Result<(PathBuf, Vec<Module>)> {
    let path = dir.join("modules.json");
    if !path.exists() {
        return Ok((dir.into(), Vec::new()));
    }
    let text = std::fs::read(&path).map_err(Error::store(&path, "read it"))?;
    let listed: Vec<Module> =
        serde_json::from_slice(&text).map_err(|e| Error::config(path.display(), "not a list of modules").because(e))?;
    let outside = |m: &&Module| Path::new(&m.path).components().any(|c| !matches!(c, std::path::Component::Normal(_)));
    if let Some(module) = listed.iter().find(outside) {
        return Err(Error::config(path.display(), format!("path `{}` leaves the folder", module.path)));
    }
    let first = listed.first().filter(|m| m.class.ends_with(".Transformer"));
    let first = first.ok_or_else(|| Error::config(path.display(), "the first module must be a Transformer"))?;
    Ok((dir.join(&first.path), listed))
}

/// The folder that holds `config.json`, weights and tokenizer.
pub(super) fn transformer_dir(dir: &Path) -> Result<PathBuf> {
    Ok(modules(dir)?.0)
}

fn read_dense(dir: &Path) -> Result<Dense> {
    let fields = Fields::open(&dir.join("config.json"))?;
    let (inputs, outputs) = (fields.count("in_features")?, fields.count("out_features")?);
    let bias = fields.or("bias", true)?;
    let name: String = fields.or("activation_function", "torch.nn.modules.activation.Tanh".into())?;
    let tanh = match name.rsplit('.').next() {
        Some("Identity") => false,
        Some("Tanh") => true,
        _ => return Err(fields.error("activation_function", &format!("is `{name}`: Souk computes Identity and Tanh"))),
    };
    fields.only("use_residual", false)?;
    fields.only("module_input_name", "sentence_embedding")?;
    fields.only("module_output_name", "sentence_embedding")?;
    fields.finish("", &[])?;
    let file = dir.join("model.safetensors");
    let mut tensors = read_tensors(&file)?;
    let mut take = |name: &str, shape: &[i64]| match tensors.remove(name) {
        Some(tensor) if tensor.size() == shape => Ok(tensor.to_kind(Kind::Float).to_device(Device::Cpu)),
        Some(tensor) => Err(Error::weights(
            &file,
            format!("tensor `{name}` has shape {:?}, config.json asks for {shape:?}", tensor.size()),
        )),
        None => Err(Error::weights(&file, format!("tensor `{name}` is missing"))),
    };
    let weight = take("linear.weight", &[outputs, inputs])?;
    let bias = if bias { Some(take("linear.bias", &[outputs])?) } else { None };
    Ok(Dense { weight, bias, tanh })
}

fn prompts(dir: &Path) -> Result<Prompts> {
    let path = dir.join("config_sentence_transformers.json");
    if !path.exists() {
        return Ok(Prompts::default());
    }
    let fields = Fields::open(&path)?;
    let by_name: BTreeMap<String, Option<String>> = fields.or("prompts", BTreeMap::new())?;
    let default: Option<String> = fields.get("default_prompt_name")?;
    let by_name: BTreeMap<String, String> = by_name.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
    if let Some(name) = default.as_ref().filter(|name| !by_name.contains_key(*name)) {
        return Err(fields.error("default_prompt_name", &format!("is `{name}`, which `prompts` does not have")));
    }
    Ok(Prompts { by_name, default })
}
