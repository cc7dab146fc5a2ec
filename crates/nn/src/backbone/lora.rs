//! Low-rank adapters (LoRA): reads and writes PEFT folders (`adapter_config.json`, `adapter_model.safetensors`).
//! Unsupported PEFT settings are errors that name the field, never ignored.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tch::Tensor;

use super::Backbone;
use super::fields::Fields;
use super::linear::{Adapter, Linear};
use super::weights::{Init, Parameters, read_tensors, write_tensors};
use souk_io::error::{Error, Result};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// File names of an adapter folder.
pub const FILES: [&str; 2] = [CONFIG, WEIGHTS];
const ROOT: &str = "base_model.model.";
/// Prefixes of the tensors in a model with a head.
const PREFIXES: [&str; 4] = ["model.", "bert.", "roberta.", "mpnet."];

/// Hyperparameters of an adapter, independent of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rank of the adapter.
    pub rank: i64,
    /// The adapter is scaled by alpha / rank.
    pub alpha: f64,
    /// Dropout on the adapter's input.
    #[serde(default)]
    pub dropout: f64,
    /// Name suffixes of the linear layers to adapt, such as `q_proj`.
    pub targets: Vec<String>,
    /// Scales by alpha / √rank instead of alpha / rank (rsLoRA).
    #[serde(default)]
    pub rank_stabilized: bool,
}

/// PEFT settings that do not affect the computation.
const HARMLESS: &str = "
    arrow_config auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config
    inference_mode layers_pattern loftq_config lora_ga_config megatron_config megatron_core
    peft_type peft_version qalora_group_size revision task_type";

/// Initialisations that leave the base model unchanged; PEFT's others change its weights on load.
const SUPPORTED_INITS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

impl Lora {
    /// Reads `adapter_config.json`.
    fn read(path: &Path, ignored: &[String]) -> Result<Self> {
        let fields = Fields::open(path, ignored)?;
        fields.expect("peft_type", "LORA")?;
        for switch in ["use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "alora_invocation_tokens"] {
            fields.expect(switch, false)?;
        }
        fields.expect("bias", "none")?;
        for table in ["rank_pattern", "alpha_pattern"] {
            fields.expect(table, json!({}))?;
        }
        for list in ["modules_to_save", "layers_to_transform", "target_parameters", "exclude_modules"] {
            fields.expect(list, json!([]))?;
        }
        for absent in ["trainable_token_indices", "layer_replication", "velora_config", "use_bdlora"] {
            fields.expect(absent, Value::Null)?;
        }
        let init: Value = fields.or("init_lora_weights", Value::Bool(true))?;
        let harmless = init.is_boolean() || init.as_str().is_some_and(|name| SUPPORTED_INITS.contains(&name));
        fields.check("init_lora_weights", harmless, "changes the base model's weights: merge the adapter with PEFT")?;
        let lora = Self {
            rank: fields.count("r")?,
            alpha: fields.required("lora_alpha")?,
            dropout: fields.or("lora_dropout", 0.0)?,
            targets: fields.required("target_modules")?,
            rank_stabilized: fields.or("use_rslora", false)?,
        };
        fields.finish(HARMLESS)?;
        Ok(lora)
    }

    /// Validates the ranges; `place` is the configuration section, for errors.
    pub fn check(&self, place: &str) -> Result<()> {
        let invalid = |name: &str, problem: String| Err(Error::config(format!("{place}.{name}"), problem));
        match self {
            Self { rank, .. } if *rank < 1 => invalid("rank", format!("is {rank}: set it to 1 or more")),
            Self { alpha, .. } if !alpha.is_finite() || *alpha <= 0.0 => {
                invalid("alpha", format!("is {alpha}: set it to a number above 0"))
            }
            Self { dropout, .. } if !(0.0..1.0).contains(dropout) => {
                invalid("dropout", format!("is {dropout}: set it to 0 or more and below 1"))
            }
            _ => Ok(()),
        }
    }

    fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }

    /// Whether the linear layer of this name gets an adapter.
    pub fn matches(&self, name: &str) -> bool {
        self.targets.iter().any(|target| ends_with(name, target))
    }

    /// Attaches a new adapter: `down` random by `seed`, `up` zero, so the model is unchanged before training.
    pub fn attach(&self, backbone: &mut Backbone, seed: u64) -> Result<()> {
        let names: Vec<String> = backbone.linears().iter().map(|linear| linear.name.clone()).collect();
        if let Some(target) = self.targets.iter().find(|target| !names.iter().any(|name| ends_with(name, target))) {
            return Err(Error::config("lora.targets", format!("`{target}` matches no linear layer of this model")));
        }
        let mut attached = 0;
        for linear in backbone.linears().into_iter().filter(|linear| self.matches(&linear.name)) {
            let [outputs, inputs] = linear.weight().size()[..] else { continue };
            let mut fresh = Parameters::seeded(seed, linear.weight().device(), linear.weight().kind());
            // same variance as PEFT's default init, uniform in ±1/√inputs
            let spread = Init::Normal(1.0 / (3.0 * inputs as f64).sqrt());
            let down = fresh.tensor(&format!("{}.lora_A", linear.name), &[self.rank, inputs], spread)?;
            let up = fresh.tensor(&format!("{}.lora_B", linear.name), &[outputs, self.rank], Init::Zeros)?;
            linear.adapter = Some(Adapter { down, up, scale: self.scale(), dropout: self.dropout });
            attached += 1;
        }
        match attached {
            0 => Err(self.no_target()),
            _ => Ok(()),
        }
    }

    /// Loads and attaches the adapter of a PEFT folder; every targeted linear layer must have both tensors.
    pub fn load(dir: &Path, backbone: &mut Backbone, ignored: &[String]) -> Result<Self> {
        let lora = Self::read(&dir.join(CONFIG), ignored)?;
        let file = dir.join(WEIGHTS);
        let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
        for (name, tensor) in read_tensors(&file)? {
            tensors.insert(bare(name.strip_prefix(ROOT).unwrap_or(&name)).to_string(), tensor);
        }
        let mut attached = 0;
        for linear in backbone.linears().into_iter().filter(|linear| lora.matches(&linear.name)) {
            let [outputs, inputs] = linear.weight().size()[..] else { continue };
            let mut take = |part: &str, shape: [i64; 2]| {
                let name = format!("{}.lora_{part}.weight", bare(&linear.name));
                let missing = || Error::weights(&file, format!("tensor `{name}` is missing"));
                let tensor = tensors.remove(&name).ok_or_else(missing)?;
                if tensor.size() != shape {
                    let problem =
                        format!("tensor `{name}` has shape {:?}, but the model needs {shape:?}", tensor.size());
                    return Err(Error::weights(&file, problem));
                }
                Ok(tensor.to_device(linear.weight().device()).to_kind(linear.weight().kind()))
            };
            let (down, up) = (take("A", [lora.rank, inputs])?, take("B", [outputs, lora.rank])?);
            linear.adapter = Some(Adapter { down, up, scale: lora.scale(), dropout: lora.dropout });
            attached += 1;
        }
        match tensors.keys().next() {
            Some(name) => Err(Error::weights(&file, format!("tensor `{name}` matches no linear layer of this model"))),
            None if attached == 0 => Err(lora.no_target()),
            None => Ok(lora),
        }
    }

    /// Tensors of all attached adapters, under their PEFT names.
    pub fn tensors(backbone: &mut Backbone) -> BTreeMap<String, Tensor> {
        let mut tensors = BTreeMap::new();
        for linear in backbone.linears() {
            if let Some(adapter) = &linear.adapter {
                let key = |part: &str| format!("{ROOT}{}.lora_{part}.weight", linear.name);
                tensors.insert(key("A"), adapter.down.shallow_clone());
                tensors.insert(key("B"), adapter.up.shallow_clone());
            }
        }
        tensors
    }

    fn no_target(&self) -> Error {
        Error::config("lora.targets", format!("{:?} match no linear layer of this model", self.targets))
    }

    /// Writes a PEFT folder for the base model `base`, readable by `PeftModel.from_pretrained`.
    pub fn save(&self, dir: &Path, backbone: &mut Backbone, base: &str) -> Result<()> {
        fs::create_dir_all(dir).map_err(Error::store(dir, "make the folder"))?;
        write_tensors(&dir.join(WEIGHTS), &Self::tensors(backbone))?;
        let config = json!({
            "peft_type": "LORA", "base_model_name_or_path": base, "inference_mode": true, "bias": "none",
            "r": self.rank, "lora_alpha": self.alpha, "lora_dropout": self.dropout, "target_modules": self.targets,
            "use_rslora": self.rank_stabilized,
        });
        let path = dir.join(CONFIG);
        fs::write(&path, format!("{config:#}\n")).map_err(Error::store(&path, "write it"))
    }

    /// Merges all adapters into the base weights.
    pub fn merge(backbone: &mut Backbone) {
        backbone.linears().into_iter().for_each(Linear::merge);
    }
}

fn ends_with(name: &str, target: &str) -> bool {
    name.strip_suffix(target).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Strips the prefix that differs between hub folders of one architecture.
fn bare(name: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}
