//! Supervised contrastive learning: InfoNCE over in-batch and global negatives (Retrieval-GRPO, eq. 4 and 5), and its iterative
//! refinement over soft tokens (GIRCSE, eq. 7 and 8).
//!
//! The large batch `B̂` is gathered over all processes by gradient caching: vectors first, then the loss over all of them, then a
//! second, chunked forward pass that back-propagates the vectors' gradients.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::Algorithm;
use crate::objective::{IcrSettings, InfoNceSettings, PairTargets, Vectors};
use crate::train::batch::Batch;
use crate::train::context::{Outcome, StageContext, StepContext};
use souk_io::error::Result;

pub struct InfoNce {
    loss: PairLoss,
}

enum PairLoss {
    InfoNce(InfoNceSettings),
    Icr(IcrSettings),
}

impl InfoNce {
    pub fn new(settings: InfoNceSettings) -> Self {
        Self { loss: PairLoss::InfoNce(settings) }
    }

    pub fn refined(settings: IcrSettings) -> Self {
        Self { loss: PairLoss::Icr(settings) }
    }

    /// This process's part of the weighted mean loss over all pairs of the batch.
    fn mean_loss(&self, stage: &StageContext, batch: &Batch, own: &Range<usize>, vectors: &Vectors) -> Tensor {
        let (device, all_queries) = (vectors.items.device(), stage.needs.all_queries);
        let first = if all_queries { own.start as i64 } else { 0 };
        let weights = batch.weights(stage.settings.weigh_by_strength).to_device(device);
        let known_queries = all_queries.then(|| batch.known_queries(own, device));
        let targets = PairTargets {
            query: &Tensor::arange_start(first, first + own.len() as i64, (Kind::Int64, device)),
            item: &Tensor::from_slice(&batch.chosen[own.clone()]).to_device(device),
            known: &batch.known(own, device),
            known_queries: known_queries.as_ref(),
            weight: &weights.narrow(0, own.start as i64, own.len() as i64),
        };
        // weights that are all zero must not divide by zero
        let total_weight = weights.sum(Kind::Float).clamp_min(f64::from(f32::MIN_POSITIVE));
        let weighted_sum = match &self.loss {
            PairLoss::InfoNce(settings) => settings.loss(vectors, &targets),
            PairLoss::Icr(settings) => settings.loss(vectors, &targets),
        };
        weighted_sum / total_weight
    }
}

impl Algorithm for InfoNce {
    fn step(&mut self, cx: &mut StepContext) -> Result<Outcome> {
        let stage = cx.stage;
        cx.zero_grad();
        for micro in cx.micro_batches() {
            let batch = cx.draw_batch(micro.draws);
            cx.metrics.masked += batch.num_masked();
            cx.metrics.pairs += batch.pairs.len();
            let encoded = cx.encode(&batch)?;
            let own = stage.own_pairs(&batch);
            cx.backward(encoded, |vectors| Ok(self.mean_loss(&stage, &batch, &own, vectors) * micro.weight))?;
        }
        cx.optimizer_step()?;
        Ok(Outcome::Done)
    }
}
