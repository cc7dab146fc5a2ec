//! Retrieval-GRPO (eq. 7): what the policy of now retrieved and a judge rewarded, corrected at once.
//!
//! ```text
//! L = −(1/|Q|) Σ_q (1/G) Σ_j min(ρ_j A_j, clip(ρ_j, 1−ε, 1+ε) A_j)  +  β · KL(π_θ ‖ π_ref)(q)
//! ```
//!
//! `ρ_j = π_θ(d_j|q) / π_θold(d_j|q)` over the support: every item of the batch, or the group alone. Candidates without a
//! reward are as if they had not been retrieved: `G` counts those that have one.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::advantage::{Advantages, Scaling};
use super::surrogate::{clipped, divergence, entropy, k3, log_policy};
use super::{Corrected, Group, Tally, cosines, positive};
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RGrpo {
    /// τ, as in the supervised stage.
    pub temperature: f64,
    /// G: candidates of each query.
    pub group: usize,
    /// Items drawn from the whole catalogue that join the batch's, so that there is more to retrieve from.
    pub global_negatives: usize,
    pub support: Support,
    pub advantage: Scaling,
    /// ε
    pub clip: f64,
    /// β; 0: no reference.
    pub beta: f64,
    pub kl: Kl,
    /// Updates with one set of rewards; the clip works from the second on.
    pub inner_epochs: usize,
}

/// What the policy picks from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    #[default]
    Batch,
    Group,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kl {
    /// Over the whole support.
    #[default]
    Exact,
    /// An estimate from the candidates.
    K3,
}

impl Default for RGrpo {
    fn default() -> Self {
        Self {
            temperature: 0.05,
            group: 16,
            global_negatives: 0,
            support: Support::Batch,
            advantage: Scaling::Std,
            clip: 0.2,
            beta: 0.2,
            kl: Kl::Exact,
            inner_epochs: 1,
        }
    }
}

impl RGrpo {
    pub(super) fn check(&self) -> Result<()> {
        positive("temperature", self.temperature)?;
        positive("clip", self.clip)?;
        if !self.beta.is_finite() || self.beta < 0.0 {
            return Err(Error::config("objective.beta", format!("is {}: say 0 or more", self.beta)));
        }
        if self.group < 2 {
            let problem = format!("is {}: an advantage is over others, say 2 or more", self.group);
            return Err(Error::config("objective.group", problem));
        }
        match self.inner_epochs {
            0 => Err(Error::config("objective.inner_epochs", "is 0: say 1 or more")),
            _ => Ok(()),
        }
    }

    /// The log-probabilities `[b, g]` that the policy gives its candidates.
    pub fn candidates_policy(&self, scores: &Tensor, candidates: &Tensor) -> Tensor {
        let (_, of_candidates) = self.policy(scores, candidates);
        of_candidates
    }

    /// Over the support, and of the candidates alone.
    fn policy(&self, scores: &Tensor, candidates: &Tensor) -> (Tensor, Tensor) {
        match self.support {
            Support::Batch => {
                let policy = log_policy(scores, self.temperature);
                let of_candidates = policy.gather(1, candidates, false);
                (policy, of_candidates)
            }
            Support::Group => {
                let policy = log_policy(&scores.gather(1, candidates, false), self.temperature);
                let of_candidates = policy.shallow_clone();
                (policy, of_candidates)
            }
        }
    }

    /// The sum over this process's queries.
    pub(super) fn loss(&self, queries: &Tensor, items: &Tensor, group: &Group) -> Corrected {
        let scores = cosines(queries, items);
        let (policy, now) = self.policy(&scores, group.candidates);
        let old = group.old.map_or_else(|| now.detach(), Tensor::shallow_clone);
        let Advantages { values, teaches } = Advantages::of(group.reward, group.known, self.advantage);
        let (value, cut) = clipped(&now, &old, &values, self.clip);
        let known = group.known.to_kind(Kind::Float);
        let num = known.sum_dim_intlist(1, false, Kind::Float).clamp_min(1.0);
        let row = |x: Tensor| (x * &known).sum_dim_intlist(1, false, Kind::Float) / &num;
        let mut loss = -row(value).sum(Kind::Float);
        let mut tally = Tally::default();
        if let Some(reference) = group.reference {
            let (reference, of_candidates) = self.policy(reference, group.candidates);
            let kl = match self.kl {
                Kl::Exact => divergence(&policy, &reference),
                Kl::K3 => row(k3(&now, &of_candidates)),
            }
            .sum(Kind::Float);
            tally.kl = kl.double_value(&[]);
            loss += kl * self.beta;
        }
        let log_ratio = (now.detach() - old) * &known;
        tally.groups = teaches.numel() as f64;
        tally.flat = tally.groups - teaches.sum(Kind::Float).double_value(&[]);
        tally.entropy = entropy(&policy.detach()).sum(Kind::Float).double_value(&[]);
        tally.known = known.sum(Kind::Float).double_value(&[]);
        tally.clipped = (cut.to_kind(Kind::Float) * &known).sum(Kind::Float).double_value(&[]);
        tally.log_ratio = log_ratio.sum(Kind::Float).double_value(&[]);
        tally.log_ratio_max = if log_ratio.numel() > 0 { log_ratio.abs().max().double_value(&[]) } else { 0.0 };
        Corrected { loss, tally }
    }
}
