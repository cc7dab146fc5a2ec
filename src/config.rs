//! TOML in, built rooms out. Every verb and service reads the same file; `--set a.b=c` changes one value of it.
//! Nothing below imports this room.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tch::{Cuda, Device};
use toml::{Table, Value};

use crate::backbone::{Precision, hub};
use crate::encoder::{Encoder, Limits, Overrides, Placement, Scratch};
use crate::error::{Error, Result};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub model: ModelConfig,
    pub encoder: Overrides,
    pub worker: Limits,
    /// A model to be made by `souk init`.
    pub scratch: Option<Scratch>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A folder, or a hub name such as `sentence-transformers/all-MiniLM-L6-v2`.
    pub path: Option<String>,
    /// A PEFT folder whose low-rank adapter is applied.
    pub adapter: Option<PathBuf>,
    /// `auto`, `cpu`, `cuda` or `cuda:1`.
    pub device: String,
    pub precision: Precision,
    /// Threads of one operation; 0 leaves it to libtorch (every core, or OMP_NUM_THREADS).
    pub threads: usize,
    pub ignore_fields: Vec<String>,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            path: None,
            adapter: None,
            device: "auto".into(),
            precision: Precision::F32,
            threads: 0,
            ignore_fields: Vec::new(),
        }
    }
}

impl Config {
    /// Reads `file`, or starts from the defaults, and applies overrides of the form `a.b=c`.
    pub fn load(file: Option<&Path>, overrides: &[String]) -> Result<Self> {
        let place = file.map_or("--set".into(), |file| file.display().to_string());
        let mut table = match file {
            Some(file) => {
                let text = std::fs::read_to_string(file).map_err(Error::store(file, "read the configuration"))?;
                text.parse::<Table>().map_err(|e| Error::config(&place, "not valid TOML").because(e))?
            }
            None => Table::new(),
        };
        for change in overrides {
            set(&mut table, change)?;
        }
        Value::Table(table).try_into().map_err(|e: toml::de::Error| Error::config(place, e.message().to_string()))
    }

    /// Opens the model, ready to be trained or exported.
    pub fn open_encoder(&self) -> Result<Encoder> {
        let problem = "no model: give --model DIR, or [model] path in the configuration";
        let name = self.model.path.as_ref().ok_or_else(|| Error::config("model.path", problem))?;
        let placement = Placement {
            device: self.model.open_device()?,
            precision: self.model.precision,
            adapter: self.model.adapter.clone(),
            ignore_fields: self.model.ignore_fields.clone(),
        };
        Encoder::open(&hub::resolve(name)?, placement, self.encoder.clone())
    }
}

impl ModelConfig {
    /// Chooses the device and sets the number of threads.
    pub fn open_device(&self) -> Result<Device> {
        let threads = i32::try_from(self.threads);
        let threads = threads.map_err(|e| Error::config("model.threads", "is too large").because(e))?;
        if threads > 0 {
            tch::set_num_threads(threads);
        }
        let name = self.device.as_str();
        let index = match name {
            "cpu" => return Ok(Device::Cpu),
            "auto" | "cuda" => Some(0),
            _ => name.strip_prefix("cuda:").and_then(|n| n.parse::<usize>().ok()),
        };
        let unknown = || Error::config("model.device", format!("is `{name}`: say auto, cpu, cuda or cuda:N"));
        let index = index.ok_or_else(unknown)?;
        let loaded = souk_native::load_cuda();
        if loaded.is_ok() && Cuda::is_available() && index < Cuda::device_count() as usize {
            return Ok(Device::Cuda(index));
        }
        match (name, loaded) {
            ("auto", _) => Ok(Device::Cpu),
            (_, Err(e)) => {
                Err(Error::config("model.device", format!("`{name}`: this libtorch has no CUDA")).because(e))
            }
            (_, Ok(())) => {
                let problem = format!("`{name}`: {} GPUs are visible", Cuda::device_count());
                Err(Error::config("model.device", problem))
            }
        }
    }
}

/// Applies `a.b=c`; what is not a TOML value is taken as text.
fn set(table: &mut Table, change: &str) -> Result<()> {
    let wrong = || Error::input(format!("--set `{change}`: say name.name=value"));
    let (path, text) = change.split_once('=').ok_or_else(wrong)?;
    let value = format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("v"))
        .unwrap_or_else(|| Value::String(text.into()));
    let mut names: Vec<&str> = path.split('.').map(str::trim).collect();
    let last = names.pop().filter(|name| !name.is_empty()).ok_or_else(wrong)?;
    let mut at = table;
    for name in names {
        let below = at.entry(name).or_insert_with(|| Value::Table(Table::new()));
        at = below
            .as_table_mut()
            .ok_or_else(|| Error::input(format!("--set `{change}`: `{name}` is a value, not a table")))?;
    }
    at.insert(last.into(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(sets: &[&str]) -> Result<Config> {
        Config::load(None, &sets.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn overrides_are_typed_and_reach_any_depth() {
        let config = load(&["model.path=models/a b", "encoder.dimensions=128", "model.precision=int8"]).unwrap();
        assert_eq!(config.model.path.as_deref(), Some("models/a b"));
        assert_eq!(config.encoder.dimensions, Some(128));
        assert_eq!(config.model.precision, Precision::Int8);
    }

    #[test]
    fn an_unknown_name_or_a_wrong_value_is_refused_by_name() {
        for (set, named) in [
            ("model.pth=x", "pth"),
            ("model.precision=f64", "f64"),
            ("model", "name.name=value"),
            ("worker.queue_texts=-1", "-1"),
        ] {
            let error = load(&[set]).unwrap_err().to_string();
            assert!(error.contains(named), "{set}: {error}");
        }
    }

    #[test]
    fn an_unknown_device_is_refused() {
        let config = load(&["model.device=tpu"]).unwrap();
        assert!(config.model.open_device().unwrap_err().to_string().contains("`tpu`"));
    }
}
