//! Which model, and where and in which numbers it runs.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Cuda, Device, Kind};

use souk_io::error::{Error, Result};
use souk_nn::backbone::Precision;
use souk_nn::collective::Rendezvous;

/// The `[model]` section.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A folder, or a hub name such as `sentence-transformers/all-MiniLM-L6-v2`.
    pub path: Option<String>,
    /// A PEFT folder whose low-rank adapter is applied.
    pub adapter: Option<PathBuf>,
    /// `auto`, `cpu`, `cuda` or `cuda:1`.
    pub device: String,
    /// Precision of products: f32, bf16 or int8.
    pub precision: Precision,
    /// Threads of one operation; 0 leaves it to libtorch (every core, or OMP_NUM_THREADS).
    pub threads: usize,
    /// Fields of `config.json` to ignore although Souk does not implement them.
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

impl ModelConfig {
    /// True if training is faster in bf16 on this device: a CPU where it uses our own products of bf16.
    pub fn has_fast_bf16(&self) -> Result<bool> {
        Ok(self.open_device()? == Device::Cpu && souk_native::packed_products_are_faster(Kind::BFloat16)?)
    }

    /// Chooses the device and sets the number of threads.
    pub fn open_device(&self) -> Result<Device> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if self.threads > cores {
            let problem = format!(
                "is {}, and this machine has {cores} cores: more threads only get in each other's way",
                self.threads
            );
            return Err(Error::config("model.threads", problem));
        }
        if self.threads > 0 {
            tch::set_num_threads(self.threads as i32);
        }
        let name = self.device.as_str();
        let index = match name {
            "cpu" => return Ok(Device::Cpu),
            // 8 bits have a form on the CPU only
            "auto" if self.precision == Precision::Int8 => return Ok(Device::Cpu),
            // each process on a machine has a GPU of its own
            "auto" | "cuda" => Some(Rendezvous::from_environment()?.map_or(0, |place| place.local_rank)),
            _ => name.strip_prefix("cuda:").and_then(|n| n.parse::<usize>().ok()),
        };
        let unknown = || Error::config("model.device", format!("is `{name}`: use auto, cpu, cuda or cuda:N"));
        let index = index.ok_or_else(unknown)?;
        let loaded = souk_native::load_cuda();
        let visible = if loaded.is_ok() && Cuda::is_available() { Cuda::device_count() as usize } else { 0 };
        if index < visible {
            return Ok(Device::Cuda(index));
        }
        match (name, loaded) {
            // a process that sees one GPU was given it
            ("auto" | "cuda", _) if visible == 1 => Ok(Device::Cuda(0)),
            ("auto", _) if visible == 0 => Ok(Device::Cpu),
            (_, Err(e)) => {
                let hint = "LIBTORCH=DIR or LIBTORCH_USE_PYTORCH=1 names one that has";
                Err(Error::config("model.device", format!("`{name}`: this libtorch has no CUDA; {hint}")).because(e))
            }
            (_, Ok(())) => {
                let problem = format!("`{name}`: number {index} is wanted and {visible} GPUs are visible");
                Err(Error::config("model.device", problem))
            }
        }
    }
}
