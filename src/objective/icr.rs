//! Iterative contrastive refinement (GIRCSE, eq. 7 and 8): every soft token has its own loss, and a penalty if the loss rises
//! from one to the next.
//!
//! ```text
//! L = (1/K) Σ_k L_k  +  λ · (1/(K−1)) Σ_{k≥2} relu(log L_k − log L_{k−1})
//! ```
//!
//! `L_k` is InfoNCE of the vectors after `k` soft tokens, and with one step there is no penalty. By default it is that of the batch's mean
//! losses, as in the published training. The penalty of each pair (`penalty = "pair"`) never vanishes for pairs that are solved, because
//! d log L = dL / L.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::info_nce::among;
use super::{Needs, ObjectiveSettings, PairTargets, Vectors, cosines, positive};
use souk_io::error::{Error, Result};

/// Losses below this bound count as zero, because their logarithm is meaningless.
const LEAST: f64 = 1e-6;

/// Settings of iterative contrastive refinement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IcrSettings {
    /// τ
    pub temperature: f64,
    /// λ; 0: no penalty.
    pub refinement: f64,
    /// The losses that the penalty compares.
    pub penalty: Penalty,
    /// Compute a loss at every step; `false` computes it at the last step only, for comparison.
    pub every_step: bool,
    /// Global negatives: items drawn from the whole catalogue for each step, shared by all its queries.
    pub global_negatives: usize,
    /// Split whose judged items of levels 1 and 2 join their query's batch as hard negatives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged_split: Option<String>,
    /// So many of each query; others come in the next visit.
    #[serde(skip_serializing_if = "super::is_one")]
    pub judged: usize,
}

/// The losses that the penalty compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Penalty {
    /// The batch's means.
    #[default]
    Batch,
    /// Those of each pair.
    Pair,
}

impl Default for IcrSettings {
    fn default() -> Self {
        Self {
            temperature: 0.02,
            refinement: 1.0,
            penalty: Penalty::Batch,
            every_step: true,
            global_negatives: 0,
            judged_split: None,
            judged: 1,
        }
    }
}

impl ObjectiveSettings for IcrSettings {
    fn check(&self, _: i64) -> Result<()> {
        positive("temperature", self.temperature)?;
        if !self.refinement.is_finite() || self.refinement < 0.0 {
            return Err(Error::config("objective.refinement", format!("is {}: use 0 or more", self.refinement)));
        }
        if self.judged == 0 {
            return Err(Error::config("objective.judged", "is 0: use 1 or more, or leave out objective.judged_split"));
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        Needs { global_negatives: self.global_negatives, steps: true, ..Needs::default() }
    }
}

impl IcrSettings {
    /// `[b, k]`: InfoNCE of each of this process's pairs at each step. Vectors of all steps are concatenated: `[m, k·d]` and `[n, k·d]`.
    pub fn step_losses(&self, vectors: &Vectors, pairs: &PairTargets) -> Tensor {
        let steps = vectors.steps;
        let of_step = |x: &Tensor, step: i64| x.unflatten(1, [steps, -1]).select(1, step);
        let own = vectors.queries.index_select(0, pairs.query);
        let losses = (0..steps).map(|step| {
            let scores = cosines(&of_step(&own, step), &of_step(vectors.items, step));
            among(&scores, self.temperature, pairs.known, pairs.item)
        });
        Tensor::stack(&losses.collect::<Vec<_>>(), 1)
    }

    /// Sum of the losses of this process's pairs `[b, k]` with weights `[b]`. `means [k]` are those of all processes.
    pub fn loss(&self, losses: &Tensor, weight: &Tensor, means: &Tensor) -> Tensor {
        let steps = losses.size()[1];
        let mut rows =
            if self.every_step { losses.mean_dim(1, false, Kind::Float) } else { losses.select(1, steps - 1) };
        if steps > 1 && self.refinement > 0.0 {
            let penalty = match self.penalty {
                Penalty::Pair => rises(losses),
                Penalty::Batch => {
                    // its value, and its slope in the mean as that of each pair
                    let means = means.detach().unsqueeze(0).set_requires_grad(true);
                    let value = rises(&means);
                    let slopes = Tensor::run_backward(&[&value], &[&means], false, false).remove(0);
                    let moved = (losses - losses.detach()) * slopes;
                    moved.sum_dim_intlist(1, false, Kind::Float) + value.detach()
                }
            };
            rows += penalty * self.refinement;
        }
        (rows * weight).sum(Kind::Float)
    }
}

/// `[b]`: mean of `relu(log L_k − log L_{k−1})` over the steps of `[b, k]`.
fn rises(losses: &Tensor) -> Tensor {
    let steps = losses.size()[1];
    let logs = losses.clamp_min(LEAST).log();
    (logs.narrow(1, 1, steps - 1) - logs.narrow(1, 0, steps - 1)).relu().mean_dim(1, false, Kind::Float)
}
