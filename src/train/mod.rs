//! A training stage: pairs in, a better encoder out. `step` is the arrow in one function; `run` repeats it, writes down
//! how it went, and survives being killed. Which rule is learned is the objective's business, how many processes there are
//! the collective's.

mod batch;
mod correct;
mod judge;
mod judged;
mod log;
mod mine;
mod policy;
mod proposals;
mod rationales;
mod reference;
mod run;
mod same;
mod share;
mod step;
#[cfg(test)]
mod tests;
mod words;
mod writer;

use serde::{Deserialize, Serialize};

pub use self::policy::{Policy, Spread};
pub use self::rationales::Wrote;
pub use self::run::{Learned, Progress, Rewards, Run, Stage, Summary};
pub use self::same::Hashes;
pub use self::step::Seconds;
pub use self::words::perplexity;
pub use self::writer::WriterSettings;
use crate::backbone::lora::Lora;
use crate::dataset::PairSource;
use crate::error::{Error, Result};
use crate::objective::Needs;
use crate::optimizer::OptimizerSettings;

/// More pairs than a step will have: a larger number is a mistake.
pub const MOST_PAIRS: usize = 1 << 22;

/// How a stage is run, whatever its objective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainSettings {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Pairs in one step of all processes together.
    pub batch: usize,
    /// Times that every pair is seen.
    pub epochs: f64,
    /// Ends after so many steps, whatever `epochs` says; 0: no such limit.
    pub most_steps: u64,
    /// Batches, each with its own negatives, whose gradients make one update.
    pub accumulate: usize,
    /// Where the pairs come from, and the split where these are judgements.
    pub pairs: PairSource,
    pub split: String,
    /// Pairs count by their strength: carts more than clicks, deep clicks more than those at the top.
    pub weigh_by_strength: bool,
    /// Rows that are shuffled among themselves; none: all. For logs that do not fit into memory.
    pub shuffle_block: Option<u64>,
    pub optimizer: OptimizerSettings,
    /// Trains a low-rank adapter instead of all weights.
    pub lora: Option<Lora>,
    /// A server that writes rationales instead of the model that learns (GRACE).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<WriterSettings>,
    /// The dropout of the model's own configuration. Off, one process and many make the same update.
    pub dropout: bool,
    /// Tokens of one forward pass.
    pub chunk_tokens: usize,
    /// Tokens of a batch that go through the model once: their graphs are kept. The others go twice, to save memory.
    pub keep_tokens: usize,
    /// Batches that may be passed over because their loss or its gradient was no finite number; one more ends the stage. They
    /// are written down, and change no weight.
    pub skip_diverged: u64,
    /// Steps from one checkpoint to the next; there is one at the end in any case.
    pub checkpoint_steps: u64,
    /// Checkpoints that are kept.
    pub keep_checkpoints: usize,
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            batch: 256,
            epochs: 1.0,
            most_steps: 0,
            accumulate: 1,
            pairs: PairSource::Auto,
            split: "train".into(),
            weigh_by_strength: false,
            shuffle_block: None,
            optimizer: OptimizerSettings::default(),
            lora: None,
            writer: None,
            dropout: false,
            chunk_tokens: 2048,
            keep_tokens: 8192,
            skip_diverged: 0,
            checkpoint_steps: 200,
            keep_checkpoints: 2,
        }
    }
}

impl TrainSettings {
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("batch", self.batch),
            ("accumulate", self.accumulate),
            ("chunk_tokens", self.chunk_tokens),
            ("checkpoint_steps", self.checkpoint_steps as usize),
            ("keep_checkpoints", self.keep_checkpoints),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Error::config(format!("train.{name}"), "is 0: say 1 or more"));
        }
        if !self.epochs.is_finite() || self.epochs <= 0.0 {
            return Err(Error::config("train.epochs", format!("is {}: say a number above 0", self.epochs)));
        }
        if self.batch.checked_mul(self.accumulate).is_none_or(|pairs| pairs > MOST_PAIRS) {
            let problem = format!("{} x {} pairs in a step are more than {MOST_PAIRS}", self.batch, self.accumulate);
            return Err(Error::config("train.batch", problem));
        }
        self.writer.as_ref().map_or(Ok(()), WriterSettings::check)?;
        let Some(lora) = &self.lora else { return Ok(()) };
        lora.check("train.lora")?;
        if lora.dropout > 0.0 && !self.dropout {
            let problem = "has no effect while train.dropout is false: turn that on, or leave this 0";
            return Err(Error::config("train.lora.dropout", problem));
        }
        Ok(())
    }

    /// What can be learned from so many pairs.
    fn check_pairs(&self, num_pairs: u64, needs: Needs) -> Result<()> {
        if self.batch as u64 > num_pairs {
            let problem = format!("is {}, more than the pairs there are, {num_pairs}: say that or less", self.batch);
            return Err(Error::config("train.batch", problem));
        }
        if self.batch == 1 && needs.global_negatives == 0 && !needs.next_tokens {
            let problem = "is 1, so that no pair has another to be told from: say more, or objective.global_negatives";
            return Err(Error::config("train.batch", problem));
        }
        Ok(())
    }

    /// The batches of one step, and what share of it each is.
    fn batches(&self, (from, to): (u64, u64)) -> impl Iterator<Item = ((u64, u64), f64)> {
        let (batch, all) = (self.batch as u64, (to - from) as f64);
        (from..to).step_by(self.batch).map(move |at| {
            let end = to.min(at + batch);
            ((at, end), (end - at) as f64 / all)
        })
    }

    /// Draws of all steps, and the number of steps.
    fn length(&self, num_pairs: u64) -> (u64, u64) {
        let per_step = (self.batch * self.accumulate) as u64;
        let draws = ((num_pairs as f64 * self.epochs).ceil() as u64).max(1);
        let steps = draws.div_ceil(per_step);
        match self.most_steps {
            0 => (draws, steps),
            most => (draws.min(most.saturating_mul(per_step)), steps.min(most)),
        }
    }
}
