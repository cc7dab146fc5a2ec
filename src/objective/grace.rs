//! GRACE (eq. 5 to 13): contrastive similarity as a reward for generated rationales, instead of as a loss.
//!
//! ```text
//! R = ( sim(q,d⁺ₖ) − Σ_m sim(q,d⁻ₘ) + λ₁ · consistency + λ₂ · hard ) / τ        A = R − mean_K(R)
//! L = (1/|Q|) Σ_q Σ_k ( −A_k · log π(y_k | P(d⁺))  +  β · KL(π ‖ π_ref) )
//! ```
//!
//! As written in the paper, `Σ sim(q,d⁻)` and `hard` are the same for all rollouts of one positive, so they cancel in `A`, and
//! only similarity to the query and consistency are learned. `hard = "rollout"` scores each rollout's own vector against the
//! other queries, as the published training does for texts without negatives. The paper divides by τ = 10 "to sharpen", and the published
//! training by 0.1, which is the default. KL is Schulman's k3 estimate on each token of the rationales; the paper has none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{
    Advantages, Needs, ObjectiveSettings, Scaling, cosines, group_advantages, is_one, is_zero, k3_kl, positive,
};
use souk_io::error::{Error, Result};
use souk_nn::backbone::Sampling;

/// Settings of GRACE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GraceSettings {
    /// K: rationales per positive.
    pub rollouts: usize,
    /// Side whose rationales are sampled K times and trained on; the other side has one.
    pub sides: Sides,
    /// M: items drawn from the catalogue for each query.
    pub negatives: usize,
    /// λ₁
    pub consistency: f64,
    /// λ₂
    pub distractors: f64,
    /// Vectors that `R_hard` compares.
    pub hard: Hard,
    /// τ
    pub temperature: f64,
    /// γ: penalty of a rationale without an end token.
    pub over_length: f64,
    /// Baseline of the policy gradient, and averaging.
    pub estimator: Estimator,
    /// ε: clip range; the lower bound if `clip_high` is set.
    pub clip: f64,
    /// Upper clip bound of DAPO.
    pub clip_above: f64,
    /// β: weight of the KL divergence from the model that the stage begins with; 0: none.
    #[serde(skip_serializing_if = "is_zero")]
    pub beta: f64,
    /// Updates in a pass over a set of rationales, each with those of its share of the pairs. The clip has an effect from the second on.
    #[serde(skip_serializing_if = "is_one")]
    pub updates: usize,
    /// Passes over a set of rationales.
    pub inner_epochs: usize,
    /// Sampling of rationales.
    pub sampling: Sampling,
}

/// Which texts of a pair get rationales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sides {
    /// Items, as in the paper.
    #[default]
    Items,
    /// Queries.
    Queries,
    /// Alternating, because a shop's queries and items are written differently and both need to be understood.
    Both,
}

impl Sides {
    /// True if the pair at this position of a stage's draws swaps its sides.
    pub fn swaps(self, place: u64) -> bool {
        match self {
            Self::Items => false,
            Self::Queries => true,
            Self::Both => place % 2 == 1,
        }
    }
}

/// Vectors that `R_hard` compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Hard {
    /// The query and the others' positives, as in the paper.
    #[default]
    Paper,
    /// Each rollout and the others' queries.
    Rollout,
}

/// Baseline of the rewards, and averaging within a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// Mean of the group.
    #[default]
    Grpo,
    /// Reward of the greedy rationale.
    Remax,
    /// Mean and standard deviation of the whole batch.
    ReinforcePp,
    /// Mean and standard deviation of the group, averaged over tokens; groups without spread are drawn again.
    Dapo,
}

impl Default for GraceSettings {
    fn default() -> Self {
        Self {
            rollouts: 8,
            sides: Sides::Items,
            negatives: 1,
            consistency: 0.2,
            distractors: 0.2,
            hard: Hard::Paper,
            temperature: 0.1,
            over_length: 1.0,
            estimator: Estimator::Grpo,
            clip: 0.2,
            clip_above: 0.28,
            beta: 0.0,
            updates: 1,
            inner_epochs: 1,
            sampling: Sampling::default(),
        }
    }
}

/// Letters: b positives of this process, m of all, k rollouts (followed by the greedy one if needed), d width.
pub struct RationaleVectors<'a> {
    /// `[m, d]`
    pub queries: &'a Tensor,
    /// `[m, k, d]`
    pub positives: &'a Tensor,
    /// `[b, n, d]`: for this process's queries.
    pub negatives: &'a Tensor,
    /// Index of this process's first positive among `m`.
    pub first: i64,
}

/// Tokens of rationales, `[t]` each.
pub struct WrittenTokens<'a> {
    /// Log-probabilities when they were written; none: the present ones.
    pub old: Option<&'a Tensor>,
    /// Those of the model that the stage begins with, if β is not 0.
    pub reference: Option<&'a Tensor>,
    /// Advantage of the token's rationale.
    pub advantage: &'a Tensor,
}

/// Reward terms before weighting, each `[b, k]`.
pub struct ContrastiveRewards {
    /// Similarity to the query minus that to negatives.
    pub close: Tensor,
    /// Mean similarity to the other rollouts.
    pub alike: Tensor,
    /// Minus the similarity to other pairs.
    pub apart: Tensor,
    /// Weighted sum, divided by τ.
    pub total: Tensor,
}

impl ObjectiveSettings for GraceSettings {
    fn check(&self, _: i64) -> Result<()> {
        positive("temperature", self.temperature)?;
        positive("clip", self.clip)?;
        positive("clip_above", self.clip_above)?;
        self.sampling.check("objective.sampling")?;
        if self.sampling.temperature == 0.0 {
            let problem = "is 0: greedy rationales are all the same, use 1";
            return Err(Error::config("objective.sampling.temperature", problem));
        }
        if self.rollouts < 2 {
            let problem = format!("is {}: advantages compare candidates: use 2 or more", self.rollouts);
            return Err(Error::config("objective.rollouts", problem));
        }
        for (name, value) in [
            ("consistency", self.consistency),
            ("distractors", self.distractors),
            ("over_length", self.over_length),
            ("beta", self.beta),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(Error::config(format!("objective.{name}"), format!("is {value}: use 0 or more")));
            }
        }
        for (name, value) in [("inner_epochs", self.inner_epochs), ("updates", self.updates)] {
            if value == 0 {
                return Err(Error::config(format!("objective.{name}"), "is 0: use 1 or more"));
            }
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        Needs { rationales: true, reference: self.beta > 0.0, ..Needs::default() }
    }
}

impl GraceSettings {
    /// Rationales per positive, including the greedy one if needed.
    pub fn columns(&self) -> i64 {
        self.rollouts as i64 + i64::from(self.estimator == Estimator::Remax)
    }

    /// Rewards of this process's rationales (eq. 5 to 9).
    pub fn rewards(&self, written: &RationaleVectors) -> ContrastiveRewards {
        let (num, rollouts) = (written.negatives.size()[0], self.rollouts as i64);
        let all = written.queries.size()[0];
        let own = |x: &Tensor| x.narrow(0, written.first, num);
        let (queries, positives) = (own(written.queries), own(written.positives));
        let columns = positives.size()[1];
        // `[b, k]`: one query with its own vectors
        let likeness = |vectors: &Tensor| row_cosines(&queries.unsqueeze(1), vectors).squeeze_dim(1);
        let away = likeness(written.negatives).sum_dim_intlist(1, true, Kind::Float);
        let close = likeness(&positives) - away;
        let between = row_cosines(&positives, &positives.narrow(1, 0, rollouts));
        let itself = Tensor::eye_m(columns, rollouts, (Kind::Float, between.device()));
        let other = itself.eq(0.0).to_kind(Kind::Float);
        let others = other.sum_dim_intlist(1, false, Kind::Float);
        let alike = (between * other).sum_dim_intlist(2, false, Kind::Float) / others;
        let apart = if all < 2 { close.zeros_like() } else { self.apart(written, &queries, &positives) };
        let total = (&close + &alike * self.consistency + &apart * self.distractors) / self.temperature;
        ContrastiveRewards { close, alike, apart, total }
    }

    /// `[b, k]` (eq. 7): minus the similarity to other pairs.
    fn apart(&self, written: &RationaleVectors, queries: &Tensor, positives: &Tensor) -> Tensor {
        let (num, columns, all) = (positives.size()[0], positives.size()[1], written.queries.size()[0]);
        let others = (all - 1) as f64;
        let itself = Tensor::eye_m(num, all, (Kind::Float, queries.device())).roll([written.first], [1]);
        let other = itself.eq(0.0).to_kind(Kind::Float);
        match self.hard {
            Hard::Paper => {
                let sampled = written.positives.narrow(1, 0, self.rollouts as i64);
                let likeness = cosines(queries, &sampled.flatten(0, 1)).view([num, all, -1]).amax([2], false);
                -((likeness * other).sum_dim_intlist(1, true, Kind::Float) / others).expand([num, columns], false)
            }
            Hard::Rollout => {
                let likeness = cosines(&positives.flatten(0, 1), written.queries).view([num, columns, all]);
                -(likeness * other.unsqueeze(1)).sum_dim_intlist(2, false, Kind::Float) / others
            }
        }
    }

    /// Length penalty: a rationale without an end gets less than any finished one of its group.
    pub fn penalise_length(&self, total: &Tensor, ended: &Tensor) -> Tensor {
        let least = total.where_self(ended, &total.full_like(0.0)).amin([1], true);
        let penalty = (least - self.over_length).clamp_max(-self.over_length);
        total.where_self(ended, &penalty.expand_as(total))
    }

    /// Advantages `[b, K]` from the penalised rewards `[b, k]` and those of all processes, and the groups with a gradient.
    pub fn advantages(&self, reward: &Tensor, all: &Tensor) -> Advantages {
        let rollouts = self.rollouts as i64;
        let own = reward.narrow(1, 0, rollouts);
        let known = own.ones_like().to_kind(Kind::Bool);
        let group = |scaling| group_advantages(&own, &known, scaling, 0.0);
        match self.estimator {
            Estimator::Grpo => group(Scaling::Mean),
            Estimator::Dapo => group(Scaling::Std),
            Estimator::Remax => {
                let values = &own - reward.narrow(1, rollouts, 1);
                Advantages { values, has_spread: group(Scaling::Mean).has_spread }
            }
            Estimator::ReinforcePp => {
                let all = all.narrow(1, 0, rollouts);
                let values = (&own - all.mean(Kind::Float)) / (all.std(false) + 1e-6);
                Advantages { values, has_spread: group(Scaling::Mean).has_spread }
            }
        }
    }

    /// Sum over this process's tokens with these log-probabilities `[t]`.
    pub fn loss(&self, now: &Tensor, tokens: &WrittenTokens) -> Tensor {
        let WrittenTokens { old, reference, advantage } = tokens;
        let gain = match old {
            None => now * *advantage,
            Some(old) => {
                let above = if self.estimator == Estimator::Dapo { self.clip_above } else { self.clip };
                let ratio = (now - *old).exp();
                let bound = ratio.clamp(1.0 - self.clip, 1.0 + above) * *advantage;
                (ratio * *advantage).minimum(&bound)
            }
        };
        let divergence = reference.map(|reference| k3_kl(now, reference) * self.beta);
        divergence.map_or_else(|| -&gain, |divergence| divergence - &gain).sum(Kind::Float)
    }

    /// Divisor of the sum over all processes.
    pub fn divisor(&self, queries: f64, tokens: f64) -> f64 {
        if self.estimator == Estimator::Dapo { tokens.max(1.0) } else { queries.max(1.0) }
    }
}

/// `[b, i, j]`: cosines of `a [b, i, d]` and `b [b, j, d]`, per row.
fn row_cosines(a: &Tensor, b: &Tensor) -> Tensor {
    let unit = |x: &Tensor| x / x.square().sum_dim_intlist(-1, true, Kind::Float).sqrt().clamp_min(1e-12);
    unit(a).matmul(&unit(b).transpose(1, 2))
}
