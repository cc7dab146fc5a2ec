//! Cost estimate of a training stage before it runs: device memory, operations, communication, seconds of a step by phase, and
//! the bottleneck. The input is model sizes, settings, text lengths and a row of the device table. It mirrors the work of
//! `train` without running it; `docs/scale.md` compares estimates with measurements.

mod device;
mod exchange;
mod load;
mod memory;
mod model;
mod reading;
mod sample;
#[cfg(test)]
mod tests;
mod time;

use serde::Serialize;

pub use self::device::{Device, Way};
pub use self::exchange::Exchange;
pub use self::load::{Load, TextLengths};
pub use self::memory::{Memory, MemoryPart};
use self::model::ModelCost;
pub use self::reading::{KNOWN_WRITERS, ReadingCost};
pub use self::sample::sample;
pub use self::time::{Causes, Host};
use self::time::{LossCost, Machine, StepCost};
use crate::objective::{Candidates, Needs, Objective};
use crate::train::{MAX_PAIRS, PhaseSeconds, TrainSettings};
use souk_io::error::{Error, Result};
use souk_nn::encoder::Outline;

/// Stage to plan.
#[derive(Clone)]
pub struct Job<'a> {
    /// Sizes of the model.
    pub outline: &'a Outline,
    /// Settings of the stage.
    pub settings: &'a TrainSettings,
    /// The objective.
    pub objective: &'a Objective,
    /// Products in bf16.
    pub bf16: bool,
    /// Lengths of queries and items.
    pub texts: &'a TextLengths,
    /// Number of devices.
    pub devices: u64,
}

/// Estimated cost.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Kind of device.
    pub device: Device,
    /// Number of devices.
    pub devices: u64,
    /// Parameters of the model.
    pub parameters: f64,
    /// Parameters that are trained.
    pub trained: f64,
    /// Pairs of one batch over all processes.
    pub batch: u64,
    /// Distinct items of one batch of all processes.
    pub items: u64,
    /// Work of one process per batch.
    pub load: Load,
    /// Peak memory of one device.
    pub memory: Memory,
    /// Operations of one process in a step.
    pub flops: Flops,
    /// Exchanges between processes in a step.
    pub exchanges: Vec<Exchange>,
    /// Seconds of a step by phase, as in steps.jsonl.
    pub seconds: PhaseSeconds,
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Seconds by cause.
    pub causes: Causes,
    /// Bottleneck of the step.
    pub limit: String,
    /// Minimum operations of training, relative to the device's peak in f32 or bf16.
    pub utilisation: f64,
    /// Largest number of pairs per step that fits into memory.
    pub largest_batch: Option<u64>,
    /// The whole stage, if the number of pairs is known.
    pub epoch: Option<Epoch>,
    /// Caveats.
    pub notes: Vec<String>,
}

/// Operations of one process in a step.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Flops {
    /// First forward pass.
    pub forward: f64,
    /// Second forward pass of chunks whose graphs are not kept.
    pub again: f64,
    /// Backward pass.
    pub backward: f64,
    /// Objective.
    pub loss: f64,
}

/// Whole stage, with all epochs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Epoch {
    /// Training pairs.
    pub pairs: u64,
    /// Steps.
    pub steps: u64,
    /// Hours.
    pub hours: f64,
}

impl Job<'_> {
    /// Estimates the stage on devices of one kind.
    pub fn plan(&self, device: &Device, host: &Host) -> Result<Plan> {
        self.check()?;
        let model = self.model(device);
        let load = self.load();
        let loss = LossCost::of(self, &load);
        let step = StepCost::of(self, &model, &load, &loss, &Machine { device, host });
        let memory = Memory::of(self, &model, &load, &loss, device);
        let seconds = step.seconds;
        let step_seconds = step.total();
        let needed = (step.flops.forward + step.flops.backward) / step_seconds;
        let limit = if memory.fits() {
            let (cause, share) = step.causes.largest();
            format!("{cause}: {:.0} % of the time", 100.0 * share)
        } else {
            format!("memory: it does not fit; the peak is at {}", memory.moment)
        };
        Ok(Plan {
            device: device.clone(),
            devices: self.devices,
            parameters: model.parameters,
            trained: model.trained,
            batch: self.settings.batch as u64,
            items: self.num_items(),
            load,
            memory,
            flops: step.flops,
            exchanges: step.exchanges,
            seconds,
            step_seconds,
            causes: step.causes,
            limit,
            utilisation: needed / device.peak(self.bf16),
            largest_batch: self.largest_batch(device),
            epoch: self.epoch(step_seconds),
            notes: self.notes(device),
        })
    }

    fn check(&self) -> Result<()> {
        let batch = self.settings.batch as u64;
        if self.devices == 0 || batch < self.devices {
            let problem =
                format!("{batch} pairs cannot be shared by {} devices: each needs at least one", self.devices);
            return Err(Error::config("train.batch", problem));
        }
        if self.objective.needs().global_negatives > MAX_PAIRS {
            let problem = format!("is more than {MAX_PAIRS}, which no step has");
            return Err(Error::config("objective.global_negatives", problem));
        }
        if self.objective.needs().writes() {
            let problem =
                "has a model write, which is not planned yet: try a few steps instead, with train.max_steps=3";
            return Err(Error::config("objective.type", problem));
        }
        self.settings.check()?;
        if self.model(&Device::named("cpu")?).trained == 0.0 {
            return Err(Error::config("train.lora.targets", "match no linear map of this model"));
        }
        self.objective.check(self.outline.dimensions as i64)
    }

    fn model(&self, device: &Device) -> ModelCost<'_> {
        ModelCost::new(self.outline, self.settings.lora.as_ref(), self.bf16, self.settings.dropout, device.apart)
    }

    /// Distinct items of a batch of all processes.
    fn num_items(&self) -> u64 {
        let chosen = (self.settings.batch as f64 * self.texts.distinct).ceil();
        let Needs { global_negatives, candidates, hits, .. } = self.objective.needs();
        let mined = match candidates {
            Candidates::Mined { shown, .. } => self.settings.batch * shown,
            Candidates::None | Candidates::Retrieved(_) => 0,
        };
        chosen as u64 + (global_negatives + mined + self.settings.batch * hits) as u64
    }

    fn load(&self) -> Load {
        let share = |count: u64| count.div_ceil(self.devices);
        let counts = [share(self.settings.batch as u64), share(self.num_items())];
        Load::of(self.texts, self.outline, counts, self.settings.chunk_tokens, self.settings.keep_tokens)
    }

    /// Doubles, then bisects to one percent.
    fn largest_batch(&self, device: &Device) -> Option<u64> {
        device.memory?;
        let fits = |pairs: u64| {
            let settings = TrainSettings { batch: (pairs * self.devices) as usize, ..self.settings.clone() };
            let job = Job { settings: &settings, ..self.clone() };
            let (model, load) = (job.model(device), job.load());
            Memory::of(&job, &model, &load, &LossCost::of(&job, &load), device).fits()
        };
        let most = MAX_PAIRS as u64 / self.devices;
        let mut low = 0;
        let mut high = 1;
        while high <= most && fits(high) {
            low = high;
            high *= 2;
        }
        while high - low > 1 && high - low > low / 100 {
            let middle = low.midpoint(high);
            if fits(middle) { low = middle } else { high = middle }
        }
        Some(low * self.devices)
    }

    fn epoch(&self, step_seconds: f64) -> Option<Epoch> {
        let pairs = self.texts.pairs?;
        let per_step = (self.settings.batch * self.settings.accumulate) as f64;
        let steps = (pairs as f64 * self.settings.epochs / per_step).ceil();
        let steps = if self.settings.max_steps == 0 { steps } else { steps.min(self.settings.max_steps as f64) };
        Some(Epoch { pairs, steps: steps as u64, hours: steps * step_seconds / 3600.0 })
    }

    fn notes(&self, device: &Device) -> Vec<String> {
        let mut notes = vec![format!("{}: {}", device.name, device.source)];
        if device.apart && self.devices > 1 {
            notes.push(
                "exchanges are NCCL's (collective.backend = \"nccl\"); Gloo goes through the host and is slower".into(),
            );
        }
        notes
    }
}

impl Device {
    /// Operations per second of a product.
    pub fn peak(&self, bf16: bool) -> f64 {
        if bf16 { self.bf16 } else { self.f32 }
    }
}
