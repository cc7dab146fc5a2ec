//! Metrics of training: per step, per stage, and progress reports.

use std::collections::BTreeMap;

use serde::Serialize;

use super::policy_metrics::{PolicyMetrics, ShownGroup};
use super::rationale_metrics::RationaleMetrics;

/// One step, over all processes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StepMetrics {
    /// Mean loss; of the last update if the step makes several.
    pub loss: f64,
    /// Gradient norm before clipping.
    pub grad_norm: f64,
    /// Items left out of a query's negatives because the query is known to have found them.
    pub masked: usize,
    /// Pairs of the step.
    pub pairs: usize,
    /// Texts and tokens that this process encoded.
    pub texts: usize,
    /// Tokens of these texts.
    pub tokens: usize,
    /// Time by phase, of the first process.
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

/// Time of a step by phase.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PhaseSeconds {
    /// Drawing batches and tokenizing.
    pub data: f64,
    /// First forward pass.
    pub forward: f64,
    /// Waiting for the judge.
    pub judge: f64,
    /// The objective, gathering vectors and returning their gradients.
    pub loss: f64,
    /// Second forward pass and backward pass.
    pub backward: f64,
    /// Summing gradients over processes.
    pub reduce: f64,
    /// Clipping and AdamW.
    pub optimizer: f64,
}

impl PhaseSeconds {
    /// Every phase with its seconds.
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
    /// Steps made.
    pub step: u64,
    /// Steps of the whole stage.
    pub steps: u64,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Over all processes.
    pub texts_per_second: f64,
    /// Metrics of the step.
    #[serde(flatten)]
    pub metrics: StepMetrics,
}

/// A line of `evaluations.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Steps made before it.
    pub step: u64,
    /// In percent.
    #[serde(flatten)]
    pub metrics: BTreeMap<&'static str, f64>,
    /// Whether it is better than all before it.
    pub is_best: bool,
    /// Time that it took.
    pub seconds: f64,
    /// Name of the metric that decides.
    #[serde(skip)]
    pub metric: &'static str,
}

impl Evaluation {
    /// Value of the metric that decides.
    pub fn value(&self) -> f64 {
        self.metrics.get(self.metric).copied().unwrap_or_default()
    }
}

/// Progress of a stage.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Hard negatives are mined before the first step.
    Mining {
        /// Queries mined so far.
        queries: usize,
        /// Queries in all.
        of: usize,
    },
    /// After a step.
    Step(&'a StepReport),
    /// After an evaluation.
    Evaluation(&'a Evaluation),
}

/// Summary of a finished stage.
#[derive(Clone, Debug, Serialize)]
pub struct StageSummary {
    /// Steps made.
    pub step: u64,
    /// Steps of the whole stage.
    pub steps: u64,
    /// Loss of the last step; none if every step had been made before.
    pub loss: Option<f64>,
    /// The step whose weights the model has, if the stage evaluated; its last one otherwise.
    pub best_step: u64,
    /// Parameters that were trained.
    pub num_parameters: usize,
    /// The model folder is complete; otherwise the stage was asked to stop and can be resumed.
    pub finished: bool,
}
