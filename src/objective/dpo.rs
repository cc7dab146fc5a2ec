//! Direct preference optimisation on mined hard negatives, the other second stage that Retrieval-GRPO is compared with:
//!
//! ```text
//! L = (1/|Q|) Σ_q mean over r_i > r_j of −log σ( β (log π_θ(d_i|q)/π_ref(d_i|q) − log π_θ(d_j|q)/π_ref(d_j|q)) )
//! ```
//!
//! The policy's normaliser is the same for both items of a pair and falls out, whatever the support.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::pairwise::{Mined, over_preferences};
use super::{Corrected, Group, cosines, positive};
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dpo {
    pub temperature: f64,
    /// How little a policy may leave the reference for a preference.
    pub beta: f64,
    #[serde(flatten)]
    pub mined: Mined,
}

impl Default for Dpo {
    fn default() -> Self {
        Self { temperature: 0.05, beta: 0.2, mined: Mined::default() }
    }
}

impl Dpo {
    pub(super) fn check(&self) -> Result<()> {
        positive("temperature", self.temperature)?;
        positive("beta", self.beta)?;
        self.mined.check()
    }

    pub(super) fn loss(&self, queries: &Tensor, items: &Tensor, group: &Group) -> Result<Corrected> {
        let Some(reference) = group.reference else {
            return Err(Error::input("a preference is measured against a reference, and there is none"));
        };
        let gained = cosines(queries, items) - reference;
        let gained = gained.gather(1, group.candidates, false) * (self.beta / self.temperature);
        Ok(over_preferences(&gained, group))
    }
}
