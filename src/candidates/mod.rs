//! Which items a query is corrected on. From the batch: its first items by the policy of now. From the catalogue: the
//! nearest of all items in a [`Bank`] of vectors first join the batch, so that the policy of now chooses among them too.
//! A bank may lag behind the policy, for it only proposes: what is scored was encoded by the policy of now.

mod bank;
mod hnsw;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

pub use self::bank::{Bank, BankSearch, Nearest};
use souk_io::error::{Error, Result};

/// The `[candidates]` section: where Retrieval-GRPO finds the items it trains on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CandidateSettings {
    /// The batch alone, or the whole catalogue too.
    pub source: CandidateSource,
    /// Items of the catalogue that each query brings into the batch.
    pub num_neighbors: usize,
    /// Steps from one bank to the next, which is made beside the second half of them.
    pub refresh_steps: u64,
    /// Search method of the catalogue's vectors.
    pub search: BankSearch,
    /// Split whose judged items join the candidates of their query, as at most half of a group.
    pub judged_split: Option<String>,
}

/// Source of candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CandidateSource {
    /// The batch: items of all pairs of all processes, and the random items drawn with them.
    #[default]
    Batch,
    /// The nearest items of the whole catalogue as well.
    Catalogue,
}

impl Default for CandidateSettings {
    fn default() -> Self {
        Self {
            source: CandidateSource::Batch,
            num_neighbors: 16,
            refresh_steps: 50,
            search: BankSearch::Auto,
            judged_split: None,
        }
    }
}

impl CandidateSettings {
    /// Rejects counts of 0.
    pub fn check(&self) -> Result<()> {
        for (name, count) in [("num_neighbors", self.num_neighbors as u64), ("refresh_steps", self.refresh_steps)] {
            if count == 0 {
                return Err(Error::config(format!("candidates.{name}"), "is 0: use 1 or more"));
            }
        }
        Ok(())
    }
}

/// The places `[b, k]` of the highest of scores `[b, n]`, best first; fewer where there are fewer.
pub fn top(scores: &Tensor, k: usize) -> Tensor {
    let k = (k as i64).min(scores.size()[1]);
    let (_, places) = scores.to_kind(Kind::Float).topk(k, 1, true, true);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_no_more_than_there_are() {
        let scores = Tensor::from_slice(&[0.1_f32, 0.9, 0.5, 0.7, 0.2, 0.3]).view([2, 3]);
        assert_eq!(Vec::<Vec<i64>>::try_from(top(&scores, 2)).unwrap(), [[1, 2], [0, 2]]);
        assert_eq!(top(&scores, 9).size(), [2, 3]);
    }
}
