//! Pairwise ranking loss on mined hard negatives, a baseline in the Retrieval-GRPO paper: of any two judged candidates, the one
//! with the higher reward should have the higher score.
//!
//! ```text
//! L = (1/|Q|) Σ_q mean over r_i > r_j of −log σ((s(q,d_i) − s(q,d_j)) / τ)
//! ```
//!
//! `r` is the fused reward, or each component has a loss of its own, `Σ_c w_c L_c` with the weights of the reward: the multi-task training
//! that Retrieval-GRPO's fused reward is meant to replace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{Candidates, Component, Group, GroupLoss, Needs, ObjectiveSettings, Tally, Vectors, cosines, positive};
use souk_io::error::{Error, Result};

/// Smaller differences of rewards count as ties.
const SAME: f64 = 1e-6;

/// Settings of the pairwise ranking loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PairwiseSettings {
    /// τ: temperature of the scores.
    pub temperature: f64,
    /// One loss over the fused reward, or one for each of its components.
    #[serde(skip_serializing_if = "Losses::is_fused")]
    pub losses: Losses,
    /// Mining of hard negatives.
    #[serde(flatten)]
    pub mined: MinedSettings,
}

/// The rewards that a ranking loss compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Losses {
    /// The fused reward.
    #[default]
    Fused,
    /// Each component of the reward alone. The sum of the losses has the weights of the reward.
    Apart,
}

impl Losses {
    fn is_fused(&self) -> bool {
        *self == Self::Fused
    }
}

/// Hard negatives: each query's first items under the initial model, judged once before the stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MinedSettings {
    /// Number of items judged per query.
    pub depth: usize,
    /// Number of these that a step sees per query.
    pub group: usize,
}

impl Default for MinedSettings {
    fn default() -> Self {
        Self { depth: 48, group: 16 }
    }
}

impl MinedSettings {
    pub(super) fn candidates(&self) -> Candidates {
        Candidates::Mined { judged: self.depth, shown: self.group }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.group < 2 || self.depth < self.group {
            let problem =
                format!("is {} of {}: use 2 or more, and no more than objective.depth", self.group, self.depth);
            return Err(Error::config("objective.group", problem));
        }
        Ok(())
    }
}

impl Default for PairwiseSettings {
    fn default() -> Self {
        Self { temperature: 0.05, losses: Losses::Fused, mined: MinedSettings::default() }
    }
}

impl ObjectiveSettings for PairwiseSettings {
    fn check(&self, _: i64) -> Result<()> {
        positive("temperature", self.temperature)?;
        self.mined.check()
    }

    fn needs(&self) -> Needs {
        Needs { candidates: self.mined.candidates(), ..Needs::default() }
    }
}

impl PairwiseSettings {
    /// Sum of the losses of this process's queries.
    pub fn loss(&self, vectors: &Vectors, group: &Group) -> GroupLoss {
        let scores = cosines(vectors.queries, vectors.items).gather(1, group.candidates, false) / self.temperature;
        if self.losses.is_fused() {
            return over_preferences(&scores, group);
        }
        let of = |Component { weight, value }: &Component| {
            let alone = over_preferences(&scores, &Group { reward: value, ..*group });
            GroupLoss { loss: alone.loss * *weight, ..alone }
        };
        // a group is flat if no component orders it
        let sum = |a: GroupLoss, b: GroupLoss| {
            let flat = a.tally.flat.min(b.tally.flat);
            GroupLoss { loss: a.loss + b.loss, tally: Tally { flat, ..a.tally } }
        };
        let all = group.components.iter().map(of).reduce(sum);
        all.unwrap_or_else(|| over_preferences(&scores, group))
    }
}

/// Mean of −log σ(a − b) over the pairs of each row whose first has the higher reward, summed over rows.
pub fn over_preferences(values: &Tensor, group: &Group) -> GroupLoss {
    let known = group.known.unsqueeze(2).logical_and(&group.known.unsqueeze(1));
    let above = (group.reward.unsqueeze(2) - group.reward.unsqueeze(1)).gt(SAME);
    let above = above.logical_and(&known).to_kind(Kind::Float);
    let losses = -(values.unsqueeze(2) - values.unsqueeze(1)).log_sigmoid();
    let sum = |x: Tensor| x.sum_dim_intlist([1_i64, 2].as_slice(), false, Kind::Float);
    let num = sum(above.shallow_clone());
    let loss = (sum(losses * above) / num.clamp_min(1.0)).sum(Kind::Float);
    let groups = num.numel() as f64;
    let flat = num.eq(0.0).sum(Kind::Float).double_value(&[]);
    GroupLoss { loss, tally: Tally { groups, flat, ..Tally::default() } }
}
