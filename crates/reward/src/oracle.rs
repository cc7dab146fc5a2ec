//! The simulated shop's oracle as a judge: it knows what every shopper of a folder of `souk market` meant, so it has a
//! verdict on any pair of that folder. It reads no text.

use std::path::Path;

use super::{Question, RewardSource, Verdict};
use souk_io::error::Result;
use souk_market::Oracle;

pub struct MarketOracle {
    oracle: Oracle,
}

impl MarketOracle {
    /// Of a folder that `souk market` wrote.
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
}
