//! Settings of a training stage.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::evaluate_settings::EvaluateSettings;
use super::tracking::{MlflowSettings, WandbSettings};
use super::writer::WriterSettings;
use crate::objective::Needs;
use souk_ingest::dataset::{PairSource, TrainingSplit};
use souk_io::error::{Error, Result};
use souk_nn::backbone::lora::Lora;
use souk_nn::optimizer::OptimizerSettings;

/// Upper bound of pairs in a step; a larger setting is a mistake.
pub const MAX_PAIRS: usize = 1 << 22;

/// Settings of a stage, whatever its objective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainSettings {
    /// Random seed.
    pub seed: u64,
    /// Pairs in one batch, over all processes.
    pub batch: usize,
    /// Passes over the pairs.
    pub epochs: f64,
    /// Upper bound of steps; 0: only `epochs` counts.
    pub max_steps: u64,
    /// Batches whose gradients make one update, each with its own negatives.
    pub accumulate: usize,
    /// Source of the pairs, and the split if they come from judgements.
    pub pairs: PairSource,
    /// Split of the judgements.
    pub split: String,
    /// Share of the judged queries that are not trained on, so that `souk fit-fusion` can fit to them.
    #[serde(skip_serializing_if = "crate::objective::is_zero")]
    pub held_out: f64,
    /// Weights pairs by their strength: carts above clicks, clicks deep in a list above those at its top.
    pub weigh_by_strength: bool,
    /// Shuffles within blocks of so many rows, for logs larger than memory; none: over all rows.
    pub shuffle_block: Option<u64>,
    /// AdamW and its schedule.
    pub optimizer: OptimizerSettings,
    /// Trains a low-rank adapter instead of all weights.
    pub lora: Option<Lora>,
    /// A server that writes GRACE's rationales instead of the model being trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<WriterSettings>,
    /// Uses the dropout of the model's configuration. Without dropout, one process and many make the same update.
    pub dropout: bool,
    /// Tokens in one forward pass.
    pub chunk_tokens: usize,
    /// Tokens of a batch whose graphs are kept. The others are encoded twice, to save memory (gradient caching).
    pub keep_tokens: usize,
    /// Batches that may be skipped because their loss or gradient is not finite; one more ends the stage. Each is saved to a file.
    pub skip_diverged: u64,
    /// Evaluates the model every few steps, and keeps the weights of the best evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluate: Option<EvaluateSettings>,
    /// Writes TensorBoard event files beside `steps.jsonl`, with its numbers.
    pub tensorboard: bool,
    /// Sends the numbers of `steps.jsonl` and the evaluations to an MLflow server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<MlflowSettings>,
    /// Sends the numbers of `steps.jsonl` and the evaluations to W&B (Weights & Biases).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wandb: Option<WandbSettings>,
    /// Steps between checkpoints. There is always one at the end.
    pub checkpoint_steps: u64,
    /// Number of checkpoints to keep.
    pub keep_checkpoints: usize,
}

/// A range of draws whose gradients are computed together, and its weight in the step's mean.
#[derive(Clone, Debug, PartialEq)]
pub struct MicroBatch {
    /// Numbers of the draws.
    pub draws: Range<u64>,
    /// Share of the step's pairs.
    pub weight: f64,
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            batch: 256,
            epochs: 1.0,
            max_steps: 0,
            accumulate: 1,
            pairs: PairSource::Auto,
            split: "train".into(),
            held_out: 0.0,
            weigh_by_strength: false,
            shuffle_block: None,
            optimizer: OptimizerSettings::default(),
            lora: None,
            writer: None,
            dropout: false,
            chunk_tokens: 2048,
            keep_tokens: 8192,
            skip_diverged: 0,
            evaluate: None,
            tensorboard: false,
            mlflow: None,
            wandb: None,
            checkpoint_steps: 200,
            keep_checkpoints: 2,
        }
    }
}

impl TrainSettings {
    /// Rejects settings that make no sense.
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("batch", self.batch),
            ("accumulate", self.accumulate),
            ("chunk_tokens", self.chunk_tokens),
            ("checkpoint_steps", self.checkpoint_steps as usize),
            ("keep_checkpoints", self.keep_checkpoints),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Error::config(format!("train.{name}"), "is 0: set it to 1 or more"));
        }
        if !(0.0..1.0).contains(&self.held_out) {
            let problem = format!("is {}: set it to 0 or a share below 1, such as 0.1", self.held_out);
            return Err(Error::config("train.held_out", problem));
        }
        if !self.epochs.is_finite() || self.epochs <= 0.0 {
            return Err(Error::config("train.epochs", format!("is {}: set it to a number above 0", self.epochs)));
        }
        if self.batch.checked_mul(self.accumulate).is_none_or(|pairs| pairs > MAX_PAIRS) {
            let problem = format!("{} x {} pairs in a step are more than {MAX_PAIRS}", self.batch, self.accumulate);
            return Err(Error::config("train.batch", problem));
        }
        self.writer.as_ref().map_or(Ok(()), WriterSettings::check)?;
        self.evaluate.as_ref().map_or(Ok(()), EvaluateSettings::check)?;
        let Some(lora) = &self.lora else { return Ok(()) };
        lora.check("train.lora")?;
        if lora.dropout > 0.0 && !self.dropout {
            let problem = "has no effect while train.dropout is false: turn that on, or set this to 0";
            return Err(Error::config("train.lora.dropout", problem));
        }
        Ok(())
    }

    /// The judgements that pairs come from.
    pub fn training_split(&self) -> TrainingSplit<'_> {
        TrainingSplit { name: &self.split, held_out: self.held_out }
    }

    /// Checks the settings against the number of pairs.
    pub(super) fn check_pairs(&self, num_pairs: u64, needs: Needs) -> Result<()> {
        if self.batch as u64 > num_pairs {
            let problem = format!("is {}, but there are only {num_pairs} pairs: set it to that or less", self.batch);
            return Err(Error::config("train.batch", problem));
        }
        if self.batch == 1 && needs.global_negatives == 0 && !needs.next_tokens {
            let problem = "is 1, which leaves no in-batch negatives: set it higher, or set objective.global_negatives";
            return Err(Error::config("train.batch", problem));
        }
        Ok(())
    }

    /// The micro-batches of a step, each weighted by its share of the step's pairs.
    pub(super) fn micro_batches(&self, step: Range<u64>) -> impl Iterator<Item = MicroBatch> + use<> {
        let (batch, all) = (self.batch as u64, (step.end - step.start) as f64);
        step.clone().step_by(self.batch).map(move |at| {
            let draws = at..step.end.min(at + batch);
            MicroBatch { weight: (draws.end - draws.start) as f64 / all, draws }
        })
    }

    /// Draws of the whole stage, and its number of steps.
    pub(super) fn length(&self, num_pairs: u64) -> (u64, u64) {
        let per_step = (self.batch * self.accumulate) as u64;
        let draws = ((num_pairs as f64 * self.epochs).ceil() as u64).max(1);
        let steps = draws.div_ceil(per_step);
        match self.max_steps {
            0 => (draws, steps),
            max => (draws.min(max.saturating_mul(per_step)), steps.min(max)),
        }
    }
}
