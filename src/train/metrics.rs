//! What training reports: of each step, of the whole stage, and while it runs.

use serde::Serialize;

use super::policy_metrics::{PolicyMetrics, ShownGroup};
use super::rationale_metrics::RationaleMetrics;

/// One step, over all processes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StepMetrics {
    pub loss: f64,
    /// Gradient norm before clipping.
    pub grad_norm: f64,
    /// Items left out of a query's negatives because the query is known to have found them.
    pub masked: usize,
    pub pairs: usize,
    /// Texts and tokens that this process encoded.
    pub texts: usize,
    pub tokens: usize,
    pub seconds: PhaseSeconds,
    /// Only of algorithms that learn from rewards.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyMetrics>,
    /// Only of GRACE.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub rationales: Option<RationaleMetrics>,
    /// One query's candidates, of the first process, for `groups.jsonl`.
    #[serde(skip)]
    pub shown: Option<ShownGroup>,
    /// A process was asked to stop.
    #[serde(skip)]
    pub stop: bool,
}

impl StepMetrics {
    /// Whether the update was made.
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.grad_norm.is_finite()
    }
}

/// Where the time of a step went.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PhaseSeconds {
    pub data: f64,
    pub forward: f64,
    /// Waiting for the judge.
    pub judge: f64,
    /// The objective, gathering vectors and returning their gradients.
    pub loss: f64,
    pub backward: f64,
    /// Summing gradients over processes.
    pub reduce: f64,
    pub optimizer: f64,
}

impl PhaseSeconds {
    pub fn by_phase(&self) -> [(&'static str, f64); 7] {
        let Self { data, forward, judge, loss, backward, reduce, optimizer } = *self;
        [
            ("data", data),
            ("forward", forward),
            ("judge", judge),
            ("loss", loss),
            ("backward", backward),
            ("reduce", reduce),
            ("optimizer", optimizer),
        ]
    }
}

/// A line of `steps.jsonl`.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    pub step: u64,
    pub steps: u64,
    pub learning_rate: f64,
    /// Over all processes.
    pub texts_per_second: f64,
    #[serde(flatten)]
    pub metrics: StepMetrics,
}

/// How far a stage is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Hard negatives are mined before the first step.
    Mining { queries: usize, of: usize },
    /// After a step.
    Step(&'a StepReport),
}

/// How a stage ended.
#[derive(Clone, Debug, Serialize)]
pub struct StageSummary {
    pub step: u64,
    pub steps: u64,
    /// Loss of the last step; none if every step had been made before.
    pub loss: Option<f64>,
    pub num_parameters: usize,
    /// The model folder is complete; otherwise the stage was asked to stop and can be resumed.
    pub finished: bool,
}
