//! The simulated shop's oracle as a judge. It knows the intent behind every query of a folder written by `souk market`, so it
//! has a verdict on every pair of that folder. It reads no text.

use std::path::Path;

use super::{Question, RewardSource, Verdict};
use souk_io::error::Result;
use souk_market::Oracle;

pub struct MarketOracle {
    oracle: Oracle,
}

impl MarketOracle {
    /// Opens a folder written by `souk market`.
    pub fn load(folder: &Path) -> Result<Self> {
        Ok(Self { oracle: Oracle::load(folder)? })
    }
}

impl RewardSource for MarketOracle {
    fn id(&self) -> &str {
        "oracle"
    }

    fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
        let level = |asked: &Question<'_>| self.oracle.judge_ids(asked.query_id, asked.item_id);
        Ok(asked.iter().map(|asked| level(asked).map(Verdict::of)).collect())
    }

    fn refusal(&self, asked: &Question<'_>) -> Option<String> {
        let is_known = self.oracle.judge_ids(asked.query_id, asked.item_id).is_some();
        (!is_known).then(|| "the simulated shop has no such query or item".into())
    }
}
