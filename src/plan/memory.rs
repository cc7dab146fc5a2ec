//! Memory of one device: allocations that persist between steps, and the peak within a step.

use serde::Serialize;

use super::Job;
use super::device::Device;
use super::load::{Chunk, Load};
use super::model::ModelCost;
use super::time::LossCost;

/// Allocation at peak memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryPart {
    /// Name of the allocation.
    pub name: &'static str,
    /// Bytes.
    pub bytes: f64,
}

/// Peak memory of a step.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// The phase with the highest memory use.
    pub moment: &'static str,
    /// Largest allocation at the peak.
    pub parts: Vec<MemoryPart>,
    /// Bytes.
    pub bytes: f64,
    /// Memory of the device, if known.
    pub capacity: Option<f64>,
}

impl Memory {
    /// True if the device has enough memory.
    pub fn fits(&self) -> bool {
        self.capacity.is_none_or(|capacity| self.bytes <= capacity)
    }

    pub(super) fn of(job: &Job, model: &ModelCost, load: &Load, loss: &LossCost, device: &Device) -> Self {
        let part = |name, bytes| MemoryPart { name, bytes };
        let mut parts = vec![
            part("the process before it has a model", device.context),
            part("weights, f32", 4.0 * model.parameters),
            part("gradients, f32", 4.0 * model.trained),
            part("AdamW's two moments, f32", 8.0 * model.trained),
            part("weights packed for the CPU's products", model.panels()),
        ];
        if !device.apart {
            // written to disk while the next steps run
            parts.push(part("a checkpoint's copy of weights and moments", 12.0 * model.trained));
        }
        parts.retain(|part| part.bytes > 0.0);
        let mut moments = moments(job, model, load, loss);
        moments.iter_mut().for_each(|(_, parts)| parts.retain(|part| part.bytes > 0.0));
        let sum = |parts: &[MemoryPart]| parts.iter().map(|part| part.bytes).sum::<f64>();
        let fullest = moments.into_iter().max_by(|(_, a), (_, b)| sum(a).total_cmp(&sum(b)));
        let (moment, more) = fullest.expect("a step has moments");
        parts.extend(more);
        Self { moment, bytes: sum(&parts), parts, capacity: device.memory }
    }
}

/// Moments of a step that may have the peak, and their allocations.
fn moments(job: &Job, model: &ModelCost, load: &Load, loss: &LossCost) -> Vec<(&'static str, Vec<MemoryPart>)> {
    let part = |name, bytes| MemoryPart { name, bytes };
    let largest = |of: &dyn Fn(&Chunk) -> f64| load.chunks.iter().map(of).fold(0.0, f64::max);
    let (kept, again) = load.split();
    let one = again.iter().map(|chunk| model.graph(chunk)).fold(0.0, f64::max);
    let passing = if again.is_empty() { 0.0 } else { model.casts() };
    let vectors = 4.0 * job.outline.dimensions as f64 * (load.queries + load.items) as f64;
    let working = part("one chunk on its way", largest(&|chunk| model.working(chunk)));
    let fresh = part("gradients of matrices before they are added", model.fresh_gradient());
    let (vectors, gradients) = (part("vectors", vectors), part("gradients of vectors", vectors));
    let forward =
        vec![working.clone(), part("bf16 copies of weights, of a chunk that is not kept", passing), vectors.clone()];
    let objective = vec![
        vectors,
        part("gathered vectors, their normalised prefixes and gradients", loss.vector_bytes),
        part("scores of the loss and their gradient", loss.score_bytes),
    ];
    let back = vec![working.clone(), fresh.clone(), gradients.clone()];
    let twice = vec![part("its graph", one), part("bf16 copies of weights in it", passing), working, fresh, gradients];
    let flat = if job.devices > 1 { 4.0 * model.trained } else { 0.0 };
    let with_graphs = |more: Vec<MemoryPart>| {
        let mut parts = vec![
            part("graphs of the chunks that are kept", kept.iter().map(|chunk| model.graph(chunk)).sum()),
            part("bf16 copies of weights in these graphs", kept.len() as f64 * model.casts()),
        ];
        parts.extend(more);
        parts
    };
    vec![
        ("the end of the way forward", with_graphs(forward)),
        ("the loss", with_graphs(objective)),
        ("the way back of the chunks that are kept", with_graphs(back)),
        ("the way back of a chunk that goes twice", twice),
        ("the update", vec![part("flat copies of gradients for the sum", flat)]),
    ]
}
