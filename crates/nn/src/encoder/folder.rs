//! Reads the sentence-transformers files of a model folder: pooling, projections, prompts and limits. A folder without them
//! is a bare backbone with mean pooling, as in sentence-transformers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::pooling::Pooling;
use super::rationale::Rationale;
use super::refine::Refine;
use crate::backbone::fields::Fields;
use crate::backbone::weights::read_tensors;
use souk_io::domain::TextKind;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;

pub(super) const MODULES: &str = "modules.json";
pub(super) const SETTINGS: &str = "config_sentence_transformers.json";
pub(super) const LIMITS: &str = "sentence_bert_config.json";
/// Names that only Souk has; sentence-transformers rejects them.
pub(super) const PENULTIMATE: &str = "penultimate_mean";
pub(super) const REFINE: &str = "souk.Refine";
pub(super) const RATIONALE: &str = "souk.Rationale";
/// Setting that only Souk has; sentence-transformers ignores it.
pub(super) const ITEM_TEXT: &str = "item_text";

/// Encoder settings beside the backbone.
pub(super) struct Recipe {
    pub pooling: Pooling,
    /// Soft tokens instead of the pooling.
    pub refine: Option<Refine>,
    /// Rationale before the pooling.
    pub rationale: Option<Rationale>,
    pub include_prompt: bool,
    pub dense: Vec<Dense>,
    pub normalize: bool,
    pub prompts: Prompts,
    /// Template of the items' texts.
    pub item_text: ItemText,
    /// Similarity function of the folder; cosine if absent.
    pub similarity: Option<String>,
    pub max_tokens: Option<usize>,
    pub lowercase: bool,
}

/// Projection of the pooled vector.
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

/// Prompts before a text, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompts {
    pub by_name: BTreeMap<String, String>,
    pub default: Option<String>,
}

impl Prompts {
    /// Prompt for one kind of text; without a kind, the folder's default.
    pub fn of(&self, kind: Option<TextKind>) -> &str {
        let Some(kind) = kind else {
            return self.default.as_ref().and_then(|name| self.by_name.get(name)).map_or("", String::as_str);
        };
        prompt_names(kind)
            .iter()
            .find_map(|name| self.by_name.get(*name).filter(|text| !text.is_empty()))
            .map_or("", String::as_str)
    }

    pub fn set(&mut self, kind: TextKind, prompt: &str) {
        let names = prompt_names(kind);
        self.by_name.retain(|name, _| !names.contains(&name.as_str()));
        // as sentence-transformers names them
        let name = if kind == TextKind::Query { "query" } else { "document" };
        self.by_name.insert(name.into(), prompt.into());
        if self.default.as_ref().is_some_and(|default| names.contains(&default.as_str())) {
            self.default = Some(name.into());
        }
    }
}

/// Names that folders give the prompt of a kind, in order of preference.
fn prompt_names(kind: TextKind) -> &'static [&'static str] {
    match kind {
        TextKind::Query => &["query"],
        TextKind::Item => &["item", "document", "passage", "corpus"],
    }
}

#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    class: String,
}

/// Fields of `sentence_bert_config.json` and `config_sentence_transformers.json` that do not affect vectors.
const HARMLESS_LIMITS: &str = "transformer_task modality_config module_output_name";
const HARMLESS_SETTINGS: &str = "__version__ model_type truncate_dim";

impl Recipe {
    /// Reads a model folder; `ignored` lists unknown fields to accept.
    pub fn read(dir: &Path, ignored: &[String]) -> Result<Self> {
        let mut recipe = Self {
            pooling: Pooling::Mean,
            refine: None,
            rationale: None,
            include_prompt: true,
            dense: Vec::new(),
            normalize: false,
            prompts: Prompts::default(),
            item_text: ItemText::default(),
            similarity: None,
            max_tokens: None,
            lowercase: false,
        };
        let (transformer, listed) = modules(dir)?;
        recipe.read_settings(dir, ignored)?;
        recipe.read_limits(&transformer, ignored)?;
        let mut order = Vec::new();
        for module in &listed {
            order.extend(recipe.add(dir, module, ignored)?);
        }
        check_order(dir, &order)?;
        Ok(recipe)
    }

    fn read_settings(&mut self, dir: &Path, ignored: &[String]) -> Result<()> {
        let path = dir.join(SETTINGS);
        if !path.exists() {
            return Ok(());
        }
        let fields = Fields::open(&path, ignored)?;
        let by_name: BTreeMap<String, Option<String>> = fields.or("prompts", BTreeMap::new())?;
        let default: Option<String> = fields.get("default_prompt_name")?;
        let by_name: BTreeMap<String, String> = by_name.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
        if let Some(name) = default.as_ref().filter(|name| !by_name.contains_key(*name)) {
            let problem = format!("is `{name}`, which is missing in `prompts`");
            return Err(fields.error("default_prompt_name", &problem));
        }
        self.prompts = Prompts { by_name, default };
        self.similarity = fields.get("similarity_fn_name")?;
        self.item_text = fields.or(ITEM_TEXT, ItemText::default())?;
        fields.finish(HARMLESS_SETTINGS)
    }

    fn read_limits(&mut self, transformer: &Path, ignored: &[String]) -> Result<()> {
        let own = transformer.join(LIMITS);
        if own.exists() {
            let fields = Fields::open(&own, ignored)?;
            self.max_tokens = fields.get("max_seq_length")?;
            self.lowercase = fields.or("do_lower_case", false)?;
            fields.finish(HARMLESS_LIMITS)?;
        }
        let general = transformer.join("tokenizer_config.json");
        if self.max_tokens.is_none() && general.exists() {
            // 1e30 means no limit
            let limit: Option<f64> = Fields::open(&general, ignored)?.get("model_max_length")?;
            self.max_tokens = limit.filter(|&n| (1.0..1e9).contains(&n)).map(|n| n as usize);
        }
        Ok(())
    }

    /// Adds one module; returns its step in the order of computation, or `None` if it has no effect.
    fn add(&mut self, dir: &Path, module: &Module, ignored: &[String]) -> Result<Option<Step>> {
        let path = dir.join(&module.path);
        if [REFINE, RATIONALE].contains(&module.class.as_str()) {
            return self.add_own(&module.class, &path, ignored).map(Some);
        }
        let class = module.class.strip_prefix("sentence_transformers.").and_then(|class| class.rsplit('.').next());
        Ok(Some(match class {
            Some("Transformer") => Step::Transformer,
            Some("Pooling") => {
                self.add_pooling(&Fields::open(&path.join("config.json"), ignored)?)?;
                Step::Pooling
            }
            Some("Dense") => {
                self.dense.push(read_dense(&path, ignored)?);
                Step::Dense
            }
            Some("Normalize") => {
                self.normalize = true;
                Step::Normalize
            }
            // has an effect only in training
            Some("Dropout") => return Ok(None),
            _ => {
                let known = "Transformer, Pooling, Dense, Normalize and Dropout of sentence_transformers";
                let problem = format!("module `{}` is unknown: Souk supports {known}", module.class);
                return Err(Error::config(dir.join(MODULES).display(), problem));
            }
        }))
    }

    /// Adds a module that only Souk has.
    fn add_own(&mut self, class: &str, path: &Path, ignored: &[String]) -> Result<Step> {
        let fields = Fields::open(&path.join("config.json"), ignored)?;
        let step = if class == REFINE {
            self.refine = Some(Refine { steps: Some(fields.count("steps")? as usize), ..Refine::default() });
            Step::Pooling
        } else {
            let (instruction, max_tokens) = (fields.get("instruction")?, fields.get("max_tokens")?);
            self.rationale = Some(Rationale { instruction, max_tokens });
            Step::Rationale
        };
        fields.finish("")?;
        Ok(step)
    }

    fn add_pooling(&mut self, fields: &Fields) -> Result<()> {
        let supported = [
            ("cls", Pooling::Cls),
            ("mean", Pooling::Mean),
            ("max", Pooling::Max),
            ("lasttoken", Pooling::LastToken),
            (PENULTIMATE, Pooling::PenultimateMean),
        ];
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
        let problem = format!("is {chosen:?}: set exactly one of cls, mean, max, lasttoken");
        self.pooling = found.ok_or_else(|| fields.error("pooling_mode", &problem))?;
        self.include_prompt = fields.or("include_prompt", true)?;
        fields.finish("word_embedding_dimension embedding_dimension")
    }
}

/// Steps of a recipe in the order of computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Transformer,
    Rationale,
    Pooling,
    Dense,
    Normalize,
}

fn check_order(dir: &Path, order: &[Step]) -> Result<()> {
    let count = |step: Step| order.iter().filter(|found| **found == step).count();
    let single = count(Step::Rationale) < 2 && count(Step::Normalize) < 2;
    let fits = count(Step::Transformer) == 1 && count(Step::Pooling) == 1 && single;
    if order.is_empty() || (order.is_sorted() && fits) {
        return Ok(());
    }
    let problem =
        format!("lists {order:?}: the order must be Transformer, Pooling, any Dense, then optional Normalize");
    Err(Error::config(dir.join(MODULES).display(), problem))
}

/// Existing files of a recipe.
pub(super) fn recipe_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let (transformer, listed) = modules(dir)?;
    let mut files = vec![dir.join(MODULES), dir.join(SETTINGS), transformer.join(LIMITS)];
    files.extend(["config.json", "tokenizer.json", "tokenizer_config.json"].map(|file| transformer.join(file)));
    for module in listed.iter().skip(1) {
        files.extend(["config.json", "model.safetensors"].map(|file| dir.join(&module.path).join(file)));
    }
    files.retain(|file| file.exists());
    Ok(files)
}

/// Folder of the transformer, and all modules.
fn modules(dir: &Path) -> Result<(PathBuf, Vec<Module>)> {
    let path = dir.join(MODULES);
    if !path.exists() {
        return Ok((dir.into(), Vec::new()));
    }
    let text = std::fs::read(&path).map_err(Error::store(&path, "read it"))?;
    let listed: Vec<Module> =
        serde_json::from_slice(&text).map_err(|e| Error::config(path.display(), "not a list of modules").because(e))?;
    let outside = |m: &&Module| Path::new(&m.path).components().any(|c| !matches!(c, std::path::Component::Normal(_)));
    if let Some(module) = listed.iter().find(outside) {
        return Err(Error::config(path.display(), format!("path `{}` is outside the folder", module.path)));
    }
    let first = listed.first().filter(|m| m.class.ends_with(".Transformer"));
    let first = first.ok_or_else(|| Error::config(path.display(), "the first module must be a Transformer"))?;
    Ok((dir.join(&first.path), listed))
}

/// Folder with `config.json`, weights and tokenizer.
pub fn transformer_dir(dir: &Path) -> Result<PathBuf> {
    Ok(modules(dir)?.0)
}

fn read_dense(dir: &Path, ignored: &[String]) -> Result<Dense> {
    let fields = Fields::open(&dir.join("config.json"), ignored)?;
    let (inputs, outputs) = (fields.count("in_features")?, fields.count("out_features")?);
    let bias = fields.or("bias", true)?;
    let name: String = fields.or("activation_function", "torch.nn.modules.activation.Tanh".into())?;
    let tanh = match name.rsplit('.').next() {
        Some("Identity") => false,
        Some("Tanh") => true,
        _ => return Err(fields.error("activation_function", &format!("is `{name}`: Souk supports Identity and Tanh"))),
    };
    fields.expect("use_residual", false)?;
    fields.expect("module_input_name", "sentence_embedding")?;
    fields.expect("module_output_name", "sentence_embedding")?;
    fields.finish("")?;
    let file = dir.join("model.safetensors");
    let mut tensors = read_tensors(&file)?;
    let mut take = |name: &str, shape: &[i64]| match tensors.remove(name) {
        Some(tensor) if tensor.size() == shape => Ok(tensor.to_kind(Kind::Float).to_device(Device::Cpu)),
        Some(tensor) => Err(Error::weights(
            &file,
            format!("tensor `{name}` has shape {:?}, but config.json needs {shape:?}", tensor.size()),
        )),
        None => Err(Error::weights(&file, format!("tensor `{name}` is missing"))),
    };
    let weight = take("linear.weight", &[outputs, inputs])?;
    let bias = if bias { Some(take("linear.bias", &[outputs])?) } else { None };
    Ok(Dense { weight, bias, tanh })
}
