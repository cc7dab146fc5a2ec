//! Settings of Retrieval-GRPO. The formula (eq. 7) and the step are in `train::algorithms::r_grpo`.

use serde::{Deserialize, Serialize};

use super::{Candidates, Needs, ObjectiveSettings, Scaling, positive};
use souk_io::error::{Error, Result};

/// Settings of Retrieval-GRPO; the defaults are the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// ε of the clip.
    pub clip: f64,
    /// β, the weight of the KL divergence; 0: no reference policy.
    pub beta: f64,
    /// Estimator of the KL divergence.
    pub kl: Kl,
    /// Updates with one set of rewards. The clip has an effect from the second on.
    pub inner_epochs: usize,
}

/// The set of items that the policy picks from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// Every item of the gathered batch.
    #[default]
    Batch,
    /// The retrieved candidates alone.
    Group,
}

/// Estimator of the KL divergence from the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kl {
    /// Over the whole support.
    #[default]
    Exact,
    /// Schulman's k3 estimate from the candidates.
    K3,
}

impl Default for RGrpoSettings {
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

impl ObjectiveSettings for RGrpoSettings {
    fn check(&self, _: i64) -> Result<()> {
        positive("temperature", self.temperature)?;
        positive("clip", self.clip)?;
        if !self.beta.is_finite() || self.beta < 0.0 {
            return Err(Error::config("objective.beta", format!("is {}: set it to 0 or more", self.beta)));
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
