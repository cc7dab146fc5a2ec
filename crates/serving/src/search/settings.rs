//! Settings of a search service. The defaults fit a shop of a million items on one machine.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::experiment::Experiment;
use crate::index::MilvusSettings;
use souk_cross_encoder::{MAX_RERANKED, RerankFit};
use souk_io::address::Address;
use souk_io::error::{Error, Result};
use souk_io::tls::Tls;
use souk_lexical::{Hybrid, LexicalOptions};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SearchSettings {
    /// Address and port.
    pub listen: String,
    /// File with one key per line, as `[[NAME=]ROLE+ROLE[@RATE]:]KEY`; every request then needs a key. It is read again when it
    /// changes. The variable SOUK_SEARCH_KEYS adds keys too.
    pub key_file: Option<PathBuf>,
    /// Whether others may reach `listen` although there are no keys.
    pub allow_no_keys: bool,
    /// Address of `/metrics`, if it is another one than `listen`, where it needs no key.
    pub metrics_listen: Option<String>,
    /// Certificate and key; without them the service speaks plain HTTP.
    pub tls: Option<Tls>,
    /// Folder of the service: indexes and the journal of changes. One process at a time can use it.
    pub state: PathBuf,
    /// Free bytes required on the disk of `state`. With fewer, searches continue, but items are not changed and no index is built.
    pub free_bytes: u64,
    /// Data folder to index on the first start.
    pub data: Option<PathBuf>,
    /// Address of backups: on the first start, the service begins with the newest one instead of the data folder, if there is one.
    pub backups: Option<String>,
    /// Name of [model] path in the registry; defaults to its folder's name.
    pub version: Option<String>,
    /// Where items and vectors are stored.
    pub index: IndexBackend,
    /// Search by terms (BM25), which hybrid search needs.
    pub lexical: Option<LexicalOptions>,
    /// Whether a search is hybrid if the request does not say; `true`, `false` or weights of the channels.
    #[schemars(extend("x-reloaded" = true))]
    pub hybrid: Hybrid,
    /// Whether the first hits of hybrid search are reranked if the version has a reranker and the request does not say; `true`, `false` or
    /// `{ depth = N }`.
    #[schemars(extend("x-reloaded" = true))]
    pub rerank: Rerank,
    /// Address of the trainer, such as `http://127.0.0.1:8070`, for its rounds and training curves in the console; or a folder with
    /// steps.jsonl, for the curves alone.
    #[schemars(extend("x-reloaded" = true))]
    pub training: Option<Address>,
    /// Environment variable that holds a key of the trainer.
    #[schemars(extend("x-reloaded" = true))]
    pub training_key_env: Option<String>,
    /// Online experiments between channels.
    #[schemars(extend("x-reloaded" = true))]
    pub experiments: Vec<Experiment>,
    /// Where searches, votes and clicks are logged for the trainer.
    pub events: Events,
    /// Limits of one request, and of concurrent requests.
    pub bounds: Bounds,
    /// Serve versions that a trainer offers after passing its gate.
    pub adopt: bool,
    /// Allow promoting a version without an evaluation report.
    #[schemars(extend("x-reloaded" = true))]
    pub promote_unmeasured: bool,
    /// Another engine that uses this service's vectors: it is told of a version before that is served, and the swap waits for it.
    pub promotion_webhook: Option<PromotionWebhook>,
    /// Allowed relative distance between a canary's vector now and when the index was built.
    pub canary_tolerance: f32,
    /// Recall of the ten nearest items against brute force: searches are as wide as it needs, by what is measured.
    pub recall: f64,
    /// Recall below which a new index is an error.
    pub min_recall: f64,
    /// Seconds between checks of the registry; 0 disables them.
    pub registry_seconds: u64,
    /// Seconds between checks of the index's recall; 0 disables them.
    pub recall_seconds: u64,
    /// Fraction of changed items that triggers a new snapshot in the background.
    pub rebuild_share: f64,
    /// Seconds that the service may lack changes of the catalogue stream and still be ready; 0: any.
    #[schemars(extend("x-reloaded" = true))]
    pub max_behind_seconds: u64,
}

/// Whether the first hits are reranked: `true`, `false`, or how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected true, false, or how many hits: {\"depth\": 20}")]
pub enum Rerank {
    /// `true`: as many hits as the reranker was fitted for.
    Enabled(bool),
    /// The given number of hits.
    First(RerankDepth),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RerankDepth {
    /// Number of hits.
    #[serde(deserialize_with = "whole")]
    depth: usize,
}

/// `10` and `10.0` are equal in JSON.
fn whole<'de, D: Deserializer<'de>>(value: D) -> std::result::Result<usize, D::Error> {
    let number = f64::deserialize(value)?;
    let whole = Some(number).filter(|number| number.fract() == 0.0 && (0.0..9e15).contains(number));
    whole.map(|number| number as usize).ok_or_else(|| D::Error::custom("expected a whole number of 0 or more"))
}

impl Default for Rerank {
    fn default() -> Self {
        Self::Enabled(true)
    }
}

impl Rerank {
    pub fn check(self) -> std::result::Result<(), String> {
        match self {
            Self::First(RerankDepth { depth }) if !(1..=MAX_RERANKED).contains(&depth) => {
                Err(format!("has depth {depth}: set it to 1 to {MAX_RERANKED}"))
            }
            _ => Ok(()),
        }
    }

    /// Number of hits that a reranker reads.
    pub fn depth(self, fit: &RerankFit) -> usize {
        match self {
            Self::Enabled(false) => 0,
            Self::Enabled(true) => fit.depth,
            Self::First(RerankDepth { depth }) => depth,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum IndexBackend {
    /// In this process, from files in `state`.
    Embedded {},
    /// On a Milvus server, in collections with a prefix that no other writer uses.
    Milvus(MilvusSettings),
}

impl Default for IndexBackend {
    fn default() -> Self {
        Self::Embedded {}
    }
}

/// Event log: a file, or a topic of the brokers in [log].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Events {
    /// A file.
    pub path: Option<PathBuf>,
    /// A topic of the brokers in [log].
    pub topic: Option<String>,
    /// Application name in UBI events.
    pub application: String,
}

/// Receiver of promotions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromotionWebhook {
    /// URL that gets a POST with the version; it answers `{"ready": true}` once it has embedded its items, `{"ready": false}` before.
    pub url: Address,
    /// Environment variable that holds a bearer token for `url`.
    pub key_env: Option<String>,
    /// Seconds that a promotion waits; after that it fails, and the served version stays.
    #[serde(default = "a_day")]
    pub timeout_seconds: u64,
    /// Seconds between two requests while it waits.
    #[serde(default = "half_a_minute")]
    pub retry_seconds: u64,
}

fn a_day() -> u64 {
    86_400
}

fn half_a_minute() -> u64 {
    30
}

/// Limits of one request, and of concurrent requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Maximum hits per page.
    pub max_hits: usize,
    /// Maximum offset of a page.
    pub max_offset: usize,
    /// Maximum characters of a text.
    pub max_text: usize,
    /// Maximum texts per embedding request.
    pub max_texts: usize,
    /// Maximum items per write.
    pub max_items: usize,
    /// Maximum bytes of a request.
    pub max_bytes: usize,
    /// Maximum concurrent requests; more get 429.
    pub max_requests: usize,
    /// Maximum average search time under load, relative to a search alone; requests that would exceed it get 429.
    /// Higher values answer more requests per second, each more slowly.
    pub slowdown: f64,
    /// Timeout for receiving a request's body, in seconds.
    pub body_seconds: u64,
    /// Deadline of a request in milliseconds; unfinished work is dropped.
    #[schemars(extend("x-reloaded" = true))]
    pub deadline_ms: u64,
    /// Milliseconds that reranking may take; after that, hits keep their fused order.
    #[schemars(extend("x-reloaded" = true))]
    pub rerank_ms: u64,
}

impl Default for SearchSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            key_file: None,
            allow_no_keys: false,
            metrics_listen: None,
            tls: None,
            state: "souk-search".into(),
            free_bytes: 1 << 30,
            data: None,
            backups: None,
            version: None,
            index: IndexBackend::default(),
            lexical: Some(LexicalOptions::default()),
            hybrid: Hybrid::default(),
            rerank: Rerank::default(),
            training: None,
            training_key_env: None,
            experiments: Vec::new(),
            events: Events::default(),
            bounds: Bounds::default(),
            adopt: true,
            promote_unmeasured: false,
            promotion_webhook: None,
            canary_tolerance: 1e-3,
            recall: 0.98,
            min_recall: 0.9,
            registry_seconds: 5,
            recall_seconds: 300,
            rebuild_share: 0.05,
            max_behind_seconds: 300,
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_hits: 1000,
            max_offset: 10_000,
            max_text: 4000,
            max_texts: 256,
            max_items: 1000,
            max_bytes: 8 << 20,
            max_requests: 64,
            slowdown: 1.5,
            body_seconds: 10,
            deadline_ms: 5000,
            rerank_ms: 500,
        }
    }
}

impl SearchSettings {
    /// The settings after the configuration was changed to `read` while the service runs: those that are marked `x-reloaded` apply from
    /// now on, the others after a restart.
    pub fn reloaded(&self, read: &Self) -> Self {
        let Bounds { deadline_ms, rerank_ms, .. } = read.bounds;
        Self {
            hybrid: read.hybrid,
            rerank: read.rerank,
            training: read.training.clone(),
            training_key_env: read.training_key_env.clone(),
            experiments: read.experiments.clone(),
            bounds: Bounds { deadline_ms, rerank_ms, ..self.bounds.clone() },
            promote_unmeasured: read.promote_unmeasured,
            max_behind_seconds: read.max_behind_seconds,
            ..self.clone()
        }
    }

    pub fn check(&self) -> Result<()> {
        let Bounds { max_hits, max_text, max_texts, max_items, max_bytes, max_requests, .. } = self.bounds;
        let counts = [
            ("max_hits", max_hits),
            ("max_text", max_text),
            ("max_texts", max_texts),
            ("max_items", max_items),
            ("max_bytes", max_bytes),
            ("max_requests", max_requests),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Error::config(format!("search.bounds.{name}"), "is 0: set it to 1 or more"));
        }
        let Bounds { body_seconds, deadline_ms, rerank_ms, .. } = self.bounds;
        let times = [("body_seconds", body_seconds), ("deadline_ms", deadline_ms), ("rerank_ms", rerank_ms)];
        for (name, time) in times {
            if time == 0 {
                return Err(Error::config(format!("search.bounds.{name}"), "is 0: set it to 1 or more"));
            }
        }
        let slowdown = self.bounds.slowdown;
        if slowdown.is_nan() || slowdown <= 1.0 {
            let problem = format!("is {slowdown}: set it above 1 (1 is the time of a search without load)");
            return Err(Error::config("search.bounds.slowdown", problem));
        }
        if self.promotion_webhook.as_ref().is_some_and(|webhook| webhook.retry_seconds == 0) {
            return Err(Error::config("search.promotion_webhook.retry_seconds", "is 0: set it to 1 or more"));
        }
        let recalls = [self.recall, self.min_recall];
        if !(self.canary_tolerance >= 0.0
            && recalls.iter().all(|x| (0.0..=1.0).contains(x))
            && self.rebuild_share > 0.0)
        {
            let problem =
                "set canary_tolerance to 0 or more, recall and min_recall to 0 to 1, and rebuild_share above 0";
            return Err(Error::config("search", problem));
        }
        if let Some(fusion) = self.hybrid.fusion(None) {
            fusion.check().map_err(|e| Error::config("search.hybrid", e.to_string()))?;
            if self.lexical.is_none() {
                let problem = "needs search by terms: set search.lexical, or remove this setting";
                return Err(Error::config("search.hybrid", problem));
            }
        }
        self.rerank.check().map_err(|problem| Error::config("search.rerank", problem))?;
        if self.events.path.is_some() && self.events.topic.is_some() {
            return Err(Error::config("search.events", "has both a file and a topic: set one of them"));
        }
        if let IndexBackend::Milvus(milvus) = &self.index {
            milvus.check()?;
        }
        self.experiments.iter().try_for_each(Experiment::check)
    }
}
