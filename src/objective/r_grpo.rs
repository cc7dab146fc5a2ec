//! Settings of Retrieval-GRPO. The formula (eq. 7) and the step are in `train::algorithms::r_grpo`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Candidates, Needs, ObjectiveSettings, Scaling, matryoshka, positive};
use souk_io::error::{Error, Result};

/// Settings of Retrieval-GRPO; the defaults are the paper's, which has no `min_std`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RGrpoSettings {
    /// τ, as in the supervised stage.
    pub temperature: f64,
    /// G: candidates of each query.
    pub group: usize,
    /// Items drawn from the whole catalogue that join the batch, to retrieve from more.
    pub global_negatives: usize,
    /// The set of items that the policy picks from.
    pub support: Support,
    /// Scaling of advantages.
    pub advantage: Scaling,
    /// Smaller deviations of a group's rewards count as this, with `advantage = "std"`.
    pub min_std: f64,
    /// ε of the clip.
    pub clip: f64,
    /// β, the weight of the KL divergence; 0: no reference policy.
    pub beta: f64,
    /// Weight of each candidate in the loss.
    #[serde(skip_serializing_if = "CandidateWeights::is_equal")]
    pub weights: CandidateWeights,
    /// Updates with one set of rewards. The clip has an effect from the second on.
    pub inner_epochs: usize,
    /// Prefixes of the vector over which the loss is averaged; none: the whole vector, with which candidates are retrieved.
    pub dimensions: Vec<i64>,
}

/// The set of items that the policy picks from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// Every item of the gathered batch.
    #[default]
    Batch,
    /// The retrieved candidates alone.
    Group,
}

/// Weight of each candidate in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CandidateWeights {
    /// 1/G, as in the paper. A candidate that the policy hardly ever picks is moved like any other, and the KL divergence hardly holds it.
    #[default]
    Equal,
    /// The policy's probability of picking it. The loss is lowest at π_ref · exp(A/β).
    Policy,
}

impl CandidateWeights {
    fn is_equal(&self) -> bool {
        *self == Self::Equal
    }
}

impl Default for RGrpoSettings {
    fn default() -> Self {
        Self {
            temperature: 0.05,
            group: 16,
            global_negatives: 0,
            support: Support::Batch,
            advantage: Scaling::Std,
            min_std: 0.02,
            clip: 0.2,
            beta: 0.2,
            weights: CandidateWeights::Equal,
            inner_epochs: 1,
            dimensions: Vec::new(),
        }
    }
}

impl ObjectiveSettings for RGrpoSettings {
    fn check(&self, dimensions: i64) -> Result<()> {
        matryoshka::check(&self.dimensions, dimensions)?;
        positive("temperature", self.temperature)?;
        positive("clip", self.clip)?;
        for (name, value) in [("beta", self.beta), ("min_std", self.min_std)] {
            if !value.is_finite() || value < 0.0 {
                return Err(Error::config(format!("objective.{name}"), format!("is {value}: set it to 0 or more")));
            }
        }
        if self.group < 2 {
            let problem = format!("is {}: an advantage compares candidates, so set it to 2 or more", self.group);
            return Err(Error::config("objective.group", problem));
        }
        match self.inner_epochs {
            0 => Err(Error::config("objective.inner_epochs", "is 0: set it to 1 or more")),
            _ => Ok(()),
        }
    }

    fn needs(&self) -> Needs {
        Needs {
            global_negatives: self.global_negatives,
            candidates: Candidates::Retrieved(self.group),
            reference: self.beta > 0.0,
            ..Needs::default()
        }
    }
}
