//! Direct preference optimisation on mined hard negatives, a baseline in the Retrieval-GRPO paper:
//!
//! ```text
//! L = (1/|Q|) Σ_q mean over r_i > r_j of −log σ( β (log π_θ(d_i|q)/π_ref(d_i|q) − log π_θ(d_j|q)/π_ref(d_j|q)) )
//! ```
//!
//! The normaliser of the policy is the same for both items of a pair and cancels, whatever the support.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pairwise::{MinedSettings, over_preferences};
use super::{Group, GroupLoss, Needs, ObjectiveSettings, Vectors, cosines, positive};
use souk_io::error::{Error, Result};

/// Settings of DPO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DpoSettings {
    /// τ, the temperature of the softmax.
    pub temperature: f64,
    /// β of DPO: weight of the reference.
    pub beta: f64,
    /// Mining of hard negatives.
    #[serde(flatten)]
    pub mined: MinedSettings,
}

impl Default for DpoSettings {
    fn default() -> Self {
        Self { temperature: 0.05, beta: 0.2, mined: MinedSettings::default() }
    }
}

impl ObjectiveSettings for DpoSettings {
    fn check(&self, _: i64) -> Result<()> {
        positive("temperature", self.temperature)?;
        positive("beta", self.beta)?;
        self.mined.check()
    }

    fn needs(&self) -> Needs {
        Needs { candidates: self.mined.candidates(), reference: true, ..Needs::default() }
    }
}

impl DpoSettings {
    /// Sum of the losses of this process's queries.
    pub fn loss(&self, vectors: &Vectors, group: &Group) -> Result<GroupLoss> {
        let Some(reference) = group.reference else {
            return Err(Error::input("DPO needs the scores of a reference policy"));
        };
        let gained = cosines(vectors.queries, vectors.items) - reference;
        let gained = gained.gather(1, group.candidates, false) * (self.beta / self.temperature);
        Ok(over_preferences(&gained, group))
    }
}
