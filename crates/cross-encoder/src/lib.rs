//! The relevance model: a cross-encoder that reads a query and an item together and says how well the item answers. Graded
//! pairs in, a judge out whose scores mean something: they are calibrated on queries that it never learned from.
//!
//! `pairs` says what is learned from and what is held out, `reader` makes one sequence of two texts, `reading` says what
//! is looked at, `head` makes a loss and levels of what the model says, `model` is the whole and its folder, `train` trains
//! it, `calibration` and `agreement` say how far it can be believed, `judge` lets it answer as any other source of rewards.

mod agreement;
mod calibration;
mod folder;
mod head;
mod judge;
mod manifest;
mod model;
mod pairs;
mod reader;
mod reading;
mod train;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::agreement::Agreement;
pub use self::calibration::{Bin, Calibration, Choice, NUM_BINS, Reliability};
pub use self::head::{Grading, Loss};
pub use self::judge::CrossEncoderJudge;
pub use self::manifest::{Base, CrossEncoderManifest, MANIFEST, TrainedOn};
pub use self::model::{CrossEncoder, EncoderShape};
pub use self::pairs::{DataPart, GradedPair, GradedPairs, part_of};
pub use self::reader::{PairReader, PairSide, PairText};
pub use self::reading::Reading;
pub use self::train::{JudgeMeasurement, JudgeReport, METRICS, TrainProgress, Training};
use souk_io::error::{Error, Result};
use souk_nn::optimizer::OptimizerSettings;
use souk_nn::worker::Limits;

/// How a relevance model is trained, and how it is served.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelevanceSettings {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Whose judgements are learned from.
    pub split: String,
    /// Share of the queries that are not learned from: half of them calibrate, half measure.
    pub held_out: f64,
    /// Items drawn from the whole catalogue for each query and taken as L1: judged pairs are near misses all.
    pub random_negatives: usize,
    pub loss: Loss,
    /// By default the first token of BERT, the last of a decoder.
    pub pooling: Option<Reading>,
    /// Keeps the lowest so many layers of the model to begin with.
    pub num_layers: Option<usize>,
    /// Query and item together are cut to so many tokens; by default what the model has positions for, 512 at most.
    pub max_tokens: Option<usize>,
    /// Times that every pair is seen.
    pub epochs: f64,
    /// Ends after so many pairs, whatever `epochs` says; 0: no such limit.
    pub max_pairs: u64,
    /// Tokens of one batch, which makes one update.
    pub batch_tokens: usize,
    /// Pairs that are sorted by length among themselves.
    pub block_pairs: usize,
    /// The dropout of the model's own configuration.
    pub dropout: bool,
    pub optimizer: OptimizerSettings,
    /// What the levels' thresholds are chosen for.
    pub thresholds: Choice,
    pub serve: ServeSettings,
}

impl Default for RelevanceSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            split: "train".into(),
            held_out: 0.1,
            random_negatives: 4,
            loss: Loss::Ordinal,
            pooling: None,
            num_layers: None,
            max_tokens: None,
            epochs: 1.0,
            max_pairs: 0,
            batch_tokens: 4096,
            block_pairs: 4096,
            dropout: false,
            optimizer: OptimizerSettings { learning_rate: 5e-5, ..OptimizerSettings::default() },
            thresholds: Choice::Agreement,
            serve: ServeSettings::default(),
        }
    }
}

impl RelevanceSettings {
    pub fn check(&self) -> Result<()> {
        let counts = [("batch_tokens", self.batch_tokens), ("block_pairs", self.block_pairs)];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Error::config(format!("relevance.{name}"), "is 0: use 1 or more"));
        }
        if !self.epochs.is_finite() || self.epochs <= 0.0 {
            return Err(Error::config("relevance.epochs", format!("is {}: use a number above 0", self.epochs)));
        }
        if !(self.held_out > 0.0 && self.held_out < 1.0) {
            let problem = format!("is {}: use a fraction between 0 and 1", self.held_out);
            return Err(Error::config("relevance.held_out", problem));
        }
        Ok(())
    }
}

/// How the relevance service answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServeSettings {
    /// Address and port.
    pub listen: String,
    /// A file with one key a line; requests to judge then need one. The variable SOUK_RELEVANCE_KEYS does the same.
    pub key_file: Option<PathBuf>,
    /// Items of one request.
    pub max_items: usize,
    /// Bytes of one request.
    pub max_bytes: usize,
    /// Requests that are read or judged at a time.
    pub max_requests: usize,
    /// Seconds that a request's body may take to arrive.
    pub body_seconds: u64,
    pub worker: Limits,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8090".into(),
            key_file: None,
            max_items: 1000,
            max_bytes: 2 << 20,
            max_requests: 256,
            body_seconds: 30,
            worker: Limits::default(),
        }
    }
}

impl ServeSettings {
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("max_items", self.max_items as u64),
            ("max_bytes", self.max_bytes as u64),
            ("max_requests", self.max_requests as u64),
            ("body_seconds", self.body_seconds),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Error::config(format!("relevance.serve.{name}"), "is 0: use 1 or more"));
        }
        if self.max_requests > MAX_REQUESTS {
            let problem = format!("is {}: more than {MAX_REQUESTS} fit into no memory", self.max_requests);
            return Err(Error::config("relevance.serve.max_requests", problem));
        }
        if self.max_items > self.worker.queue_texts {
            let problem = format!("is {}, and the queue holds {}", self.max_items, self.worker.queue_texts);
            return Err(Error::config("relevance.serve.max_items", problem));
        }
        Ok(())
    }
}

/// Each may hold a body.
const MAX_REQUESTS: usize = 1 << 20;
