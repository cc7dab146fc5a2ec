//! What can be set of a search service. The defaults serve a shop of a million items on one machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::experiment::Experiment;
use crate::index::MilvusSettings;
use souk_io::error::{Error, Result};
use souk_lexical::LexicalOptions;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SearchSettings {
    /// Address and port.
    pub listen: String,
    /// A file with one key a line, an admin's after `admin:`; requests then need one. The variable SOUK_SEARCH_KEYS does
    /// the same.
    pub key_file: Option<PathBuf>,
    pub tls: Option<Tls>,
    /// The service's own folder: indexes, and the journal of what changed. One process at a time has it.
    pub state: PathBuf,
    /// A data folder, whose items are indexed when the service starts for the first time.
    pub data: Option<PathBuf>,
    /// What [model] path is called in the registry; by default its folder's name.
    pub version: Option<String>,
    /// Where items and vectors are.
    pub index: Place,
    /// Whether items can be searched by their terms, which hybrid search needs; of an embedded index only.
    pub lexical: Option<LexicalOptions>,
    /// A folder that a trainer writes steps.jsonl to; the console shows its curves.
    pub training: Option<PathBuf>,
    pub experiments: Vec<Experiment>,
    /// Where searches, votes and clicks are written, for the trainer to learn from.
    pub events: Events,
    pub bounds: Bounds,
    /// What a trainer offers, because it passed its gate, is served by itself.
    pub adopt: bool,
    /// A version without a report of its evaluation is promoted as well.
    pub promote_unmeasured: bool,
    /// Vectors of a version's canaries may be apart from what they were by this share of their length.
    pub canary_tolerance: f32,
    /// A version is promoted where a search through its index finds this share of what a look at all finds.
    pub min_recall: f64,
    /// Seconds between looks at the registry, and at the index's recall; 0: never.
    pub registry_seconds: u64,
    pub recall_seconds: u64,
    /// A new snapshot is made in the background once this share of the items has changed.
    pub rebuild_share: f64,
}

/// A certificate chain and its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Place {
    /// In this process, from files in `state`.
    Embedded {},
    /// On a server, in collections whose names begin with a prefix that no other writer has.
    Milvus(MilvusSettings),
}

impl Default for Place {
    fn default() -> Self {
        Self::Embedded {}
    }
}

/// A file, or a topic of the brokers in [log].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Events {
    pub path: Option<PathBuf>,
    pub topic: Option<String>,
    /// As UBI calls whoever asks.
    pub application: String,
}

/// What one request may be, and how many there may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Hits of one page, and where it may begin.
    pub max_hits: usize,
    pub max_offset: usize,
    /// Letters of one text, texts of one request to embed, and items of one request to write.
    pub max_text: usize,
    pub max_texts: usize,
    pub max_items: usize,
    /// Bytes of one request.
    pub max_bytes: usize,
    /// Requests that are read or worked on at a time; more are told to come back.
    pub max_requests: usize,
    /// How many times as long as alone searches may take, on average, side by side; who would make them slower is told to
    /// come back. Higher, more are answered a second, and later.
    pub slowdown: f64,
    /// Seconds that a request's body may take to arrive.
    pub body_seconds: u64,
    /// Milliseconds that a request may take; what is not done then is not done.
    pub deadline_ms: u64,
}

impl Default for SearchSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            key_file: None,
            tls: None,
            state: "souk-search".into(),
            data: None,
            version: None,
            index: Place::default(),
            lexical: Some(LexicalOptions::default()),
            training: None,
            experiments: Vec::new(),
            events: Events::default(),
            bounds: Bounds::default(),
            adopt: true,
            promote_unmeasured: false,
            canary_tolerance: 1e-3,
            min_recall: 0.9,
            registry_seconds: 5,
            recall_seconds: 300,
            rebuild_share: 0.05,
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
        }
    }
}

impl SearchSettings {
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
            return Err(Error::config(format!("search.bounds.{name}"), "is 0: say 1 or more"));
        }
        for (name, seconds) in [("body_seconds", self.bounds.body_seconds), ("deadline_ms", self.bounds.deadline_ms)] {
            if seconds == 0 {
                return Err(Error::config(format!("search.bounds.{name}"), "is 0: nothing would be answered"));
            }
        }
        let slowdown = self.bounds.slowdown;
        if slowdown.is_nan() || slowdown <= 1.0 {
            let problem = format!("is {slowdown}: say more than 1, for none is faster than alone");
            return Err(Error::config("search.bounds.slowdown", problem));
        }
        if !(self.canary_tolerance >= 0.0 && (0.0..=1.0).contains(&self.min_recall) && self.rebuild_share > 0.0) {
            let problem = "canary_tolerance is 0 or more, min_recall 0 to 1, rebuild_share above 0";
            return Err(Error::config("search", problem));
        }
        if self.events.path.is_some() && self.events.topic.is_some() {
            return Err(Error::config("search.events", "names both a file and a topic: give one of them"));
        }
        if let Place::Milvus(milvus) = &self.index {
            milvus.check()?;
        }
        self.experiments.iter().try_for_each(Experiment::check)
    }
}
