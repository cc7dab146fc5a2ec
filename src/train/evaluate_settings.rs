//! Settings of the evaluation during training.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};

/// Evaluation during training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluateSettings {
    /// Steps between evaluations. The model is also evaluated before the first step and after the last.
    pub every: u64,
    /// Split whose queries are evaluated. It may be the one that is trained on, if `train.held_out` keeps some of its queries.
    pub split: String,
    /// Metric that is to be highest: the stage's model gets the weights of its best evaluation.
    pub metric: EvaluationMetric,
    /// Ends the stage after so many evaluations in a row that are no better than the best one; 0: never.
    pub patience: u64,
}

/// A metric that needs judgements only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EvaluationMetric {
    /// Order of the first 10 hits.
    #[default]
    #[serde(rename = "ndcg@10")]
    Ndcg,
    /// The same without unjudged hits.
    #[serde(rename = "ndcg_judged@10")]
    NdcgJudged,
    /// Rank of the first Good hit.
    #[serde(rename = "mrr@10")]
    Mrr,
    /// Share of the Good items among the first 100 hits.
    #[serde(rename = "hitrate@100")]
    Hitrate,
}

impl EvaluationMetric {
    /// All metrics.
    pub const ALL: [Self; 4] = [Self::Ndcg, Self::NdcgJudged, Self::Mrr, Self::Hitrate];

    /// As in `metrics.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ndcg => "ndcg@10",
            Self::NdcgJudged => "ndcg_judged@10",
            Self::Mrr => "mrr@10",
            Self::Hitrate => "hitrate@100",
        }
    }
}

impl Default for EvaluateSettings {
    fn default() -> Self {
        Self { every: 200, split: "dev".into(), metric: EvaluationMetric::default(), patience: 0 }
    }
}

impl EvaluateSettings {
    /// Rejects settings that make no sense.
    pub fn check(&self) -> Result<()> {
        if self.every == 0 {
            return Err(Error::config("train.evaluate.every", "is 0: set it to 1 or more"));
        }
        Ok(())
    }
}
