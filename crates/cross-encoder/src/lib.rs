//! Relevance model: a cross-encoder that reads query and item together and grades how well the item answers. It is trained on
//! graded pairs and calibrated on held-out queries.
//!
//! `pairs` draws and splits the data, `reader` tokenizes pairs, `reading` says which states are read, `head` has losses and
//! levels, `model` is the complete model with its folder, `lists` is the listwise loss, `train` trains, `calibration` and
//! `agreement` evaluate, `judge` implements the judge interface, `reranker` makes a relevance model a part of a version, and `hybrid`
//! makes a judge of a version's hybrid search.

mod agreement;
mod calibration;
mod folder;
mod head;
mod hybrid;
mod judge;
mod lists;
mod manifest;
mod model;
mod pairs;
mod reader;
mod reading;
mod reranker;
mod train;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::agreement::Agreement;
pub use self::calibration::{Bin, Calibration, Choice, NUM_BINS, Reliability};
pub use self::head::{Grading, Loss};
pub use self::hybrid::{AskedTexts, HYBRID_JUDGE, HybridGrading, HybridJudge, HybridScorer};
pub use self::judge::CrossEncoderJudge;
pub use self::manifest::{Base, CrossEncoderManifest, MANIFEST, TrainedOn};
pub use self::model::{CrossEncoder, EncoderShape};
pub use self::pairs::{DataPart, GradedPair, GradedPairs, part_of};
pub use self::reader::{PairReader, PairSide, PairText};
pub use self::reading::Reading;
pub use self::reranker::{
    MAX_RERANKED, PairScorer, RERANKER, Reordered, RerankFit, RerankQuality, Reranker, copy_reranker, disable_reranker,
    reorder,
};
pub use self::train::{JudgeMeasurement, JudgeReport, METRICS, TrainProgress, Training};
use souk_io::error::{Error, Result};
use souk_io::tls::Tls;
use souk_nn::optimizer::OptimizerSettings;
use souk_nn::worker::Limits;

/// Settings of a relevance model: training and serving.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RelevanceSettings {
    /// Random seed.
    pub seed: u64,
    /// Split whose judgements are used for training.
    pub split: String,
    /// Fraction of queries that are held out: half for calibration, half for evaluation.
    pub held_out: f64,
    /// Random catalogue items per query that are added as L1, because judged pairs are all near misses.
    pub random_negatives: usize,
    /// Unjudged hits of BM25 per query, drawn from the first 100, that are added as L1: a model that reranks hits must tell them apart.
    pub lexical_negatives: usize,
    /// Loss of a pair.
    pub loss: Loss,
    /// Weight of a listwise softmax over the pairs of a query, added to the loss of their levels; 0: pairs are learned one by one. For a
    /// model that reranks hits.
    pub list_weight: f64,
    /// Default: first token for an encoder, last token for a decoder.
    pub pooling: Option<Reading>,
    /// Starts from only the lowest layers of the model.
    pub num_layers: Option<usize>,
    /// Maximum tokens of query and item together, never more than the model's positions. Default: 512.
    pub max_tokens: Option<usize>,
    /// Passes over all pairs.
    pub epochs: f64,
    /// Stops after this many pairs, whatever `epochs` says; 0: no limit.
    pub max_pairs: u64,
    /// Tokens per batch; one batch makes one update.
    pub batch_tokens: usize,
    /// Number of pairs that are sorted by length together.
    pub block_pairs: usize,
    /// Default: the dropout in the model's configuration.
    pub dropout: bool,
    /// AdamW and its schedule.
    pub optimizer: OptimizerSettings,
    /// Objective of the choice of thresholds.
    pub thresholds: Choice,
    /// `souk relevance serve`.
    pub serve: ServeSettings,
}

impl Default for RelevanceSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            split: "train".into(),
            held_out: 0.1,
            random_negatives: 4,
            lexical_negatives: 0,
            loss: Loss::Ordinal,
            list_weight: 0.0,
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
        if !self.list_weight.is_finite() || self.list_weight < 0.0 {
            return Err(Error::config("relevance.list_weight", format!("is {}: use 0 or more", self.list_weight)));
        }
        if self.list_weight > 0.0 && self.loss == Loss::FourWay {
            let problem = "needs one score per pair, and `four_way` has four: use relevance.loss = \"ordinal\"";
            return Err(Error::config("relevance.list_weight", problem));
        }
        if !(self.held_out > 0.0 && self.held_out < 1.0) {
            let problem = format!("is {}: use a fraction between 0 and 1", self.held_out);
            return Err(Error::config("relevance.held_out", problem));
        }
        Ok(())
    }
}

/// Settings of the relevance service.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServeSettings {
    /// Address and port.
    pub listen: String,
    /// File with one key per line, as `[[NAME=]ROLE+ROLE[@RATE]:]KEY`; judging then needs one with the role `search`. It is read
    /// again when it changes. The variable SOUK_RELEVANCE_KEYS adds keys too.
    pub key_file: Option<PathBuf>,
    /// Whether others may reach `listen` although there are no keys.
    pub allow_no_keys: bool,
    /// Address of `/metrics`, if it is another one than `listen`, where it needs no key.
    pub metrics_listen: Option<String>,
    /// Certificate and key; without them the service speaks plain HTTP.
    pub tls: Option<Tls>,
    /// Maximum items per request.
    pub max_items: usize,
    /// Maximum bytes per request.
    pub max_bytes: usize,
    /// Maximum concurrent requests.
    pub max_requests: usize,
    /// Seconds that a request's body may take to arrive.
    pub body_seconds: u64,
    /// Batch and queue sizes of the model's thread.
    pub worker: Limits,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8090".into(),
            key_file: None,
            allow_no_keys: false,
            metrics_listen: None,
            tls: None,
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

/// Each request may hold a full body.
const MAX_REQUESTS: usize = 1 << 20;
