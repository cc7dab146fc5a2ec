//! `[judge]`: which judge to use and its limits. `open` checks the settings and opens the judge with its cache and audits.
//! Errors say what to write instead.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::resilient::{ResilientJudge, within};
use super::wire::{ChatSettings, Http, JudgeClient, Openai, Prompt, Rerank, Souk, Thresholds};
use super::{AuditedJudge, CachedJudge, Judgements, KnownElse, MarketOracle, RewardSource};
use souk_cache::Cache;
use souk_io::address::Address;
use souk_io::audit::AuditLog;
use souk_io::beir::DataFolder;
use souk_io::error::{Error, Result};

pub use super::resilient::JudgeLimits;
pub use super::wire::RerankShape;

/// Judge configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Judge {
    /// Oracle of a simulated shop.
    Oracle {},
    /// Judgements in the data folder.
    Qrels(QrelsJudge),
    /// Relevance model in this process.
    Model(ModelJudge),
    /// Judgements in the data folder; a relevance model for pairs that have none.
    KnownElseModel(KnownElseModelJudge),
    /// Souk's relevance service.
    Souk(SoukJudge),
    /// Chat model behind an OpenAI-compatible API.
    Openai(OpenaiJudge),
    /// Reranker behind an API.
    Rerank(RerankJudge),
}

/// Judgements in the data folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QrelsJudge {
    /// Split of the judgements.
    pub split: String,
}

impl Default for QrelsJudge {
    fn default() -> Self {
        Self { split: train_split() }
    }
}

/// Folder written by `souk relevance train`, or a model whose hybrid search is a judge (`souk fit-fusion --as-judge`). It reads texts, so
/// it has a verdict on every pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelJudge {
    /// Folder written by `souk relevance train`, or a model whose hybrid search is a judge (`souk fit-fusion --as-judge`).
    pub path: PathBuf,
    /// Tokens per forward pass; verdicts do not depend on it.
    #[serde(default = "batch_tokens")]
    pub batch_tokens: usize,
    /// Judge in int8, which is faster (CPU only). Pairs near a threshold are judged again in f32, so the weights are kept in
    /// both precisions.
    #[serde(default)]
    pub int8: bool,
}

impl ModelJudge {
    /// With the default settings.
    pub fn at(path: &Path) -> Self {
        Self { path: path.into(), batch_tokens: batch_tokens(), int8: false }
    }
}

/// Judgements in the data folder, and a relevance model in this process for the pairs that have none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KnownElseModelJudge {
    /// Split of the judgements.
    #[serde(default = "train_split")]
    pub split: String,
    /// Folder of the model, as for `type = "model"`.
    pub path: PathBuf,
    /// Tokens per forward pass; verdicts do not depend on it.
    #[serde(default = "batch_tokens")]
    pub batch_tokens: usize,
    /// Judge in int8, which is faster (CPU only).
    #[serde(default)]
    pub int8: bool,
}

/// Souk's relevance service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SoukJudge {
    /// For example `http://127.0.0.1:8090`.
    pub url: Address,
    /// Expected model; verdicts of another model are rejected.
    pub model: String,
    /// Environment variable with the API key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// Items per request.
    #[serde(default = "batch")]
    pub batch: usize,
    /// Timeouts, retries and concurrency.
    #[serde(default)]
    pub limits: JudgeLimits,
}

/// Chat model behind an OpenAI-compatible API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenaiJudge {
    /// For example `http://127.0.0.1:8000/v1`.
    pub url: Address,
    /// Name of the model in requests.
    pub model: String,
    /// Environment variable with the API key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// Prompt template; default: `crates/reward/src/wire/grading.txt`.
    #[serde(default)]
    pub prompt: Option<PathBuf>,
    /// True: ask for JSON by schema; false: ask for one digit.
    #[serde(default = "yes")]
    pub structured: bool,
    /// Alternatives per token whose log-probabilities are requested, up to 20; 0: none.
    #[serde(default = "logprobs")]
    pub logprobs: u8,
    /// Maximum tokens of the answer; 0: the server's default.
    #[serde(default = "max_tokens")]
    pub max_tokens: u32,
    /// Maximum characters of an item's text in the prompt.
    #[serde(default = "item_chars")]
    pub item_chars: usize,
    /// Minimum scores of L2, L3 and L4, for scores computed from log-probabilities.
    #[serde(default = "nearest")]
    pub thresholds: Thresholds,
    /// Additional request fields, such as `chat_template_kwargs = { enable_thinking = false }`.
    #[serde(default)]
    pub body: Map<String, Value>,
    /// Timeouts, retries and concurrency.
    #[serde(default)]
    pub limits: JudgeLimits,
}

/// Reranker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RerankJudge {
    /// For example `http://127.0.0.1:8081` or `https://api.cohere.com/v2`.
    pub url: Address,
    /// Format of requests and answers.
    pub shape: RerankShape,
    /// Name of the model in requests.
    pub model: String,
    /// Environment variable with the API key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// Minimum scores of L2, L3 and L4.
    #[serde(default = "quarters")]
    pub thresholds: Thresholds,
    /// Items per request.
    #[serde(default = "batch")]
    pub batch: usize,
    /// Timeouts, retries and concurrency.
    #[serde(default)]
    pub limits: JudgeLimits,
}

fn train_split() -> String {
    "train".into()
}

fn yes() -> bool {
    true
}

fn batch_tokens() -> usize {
    2048
}

fn batch() -> usize {
    32
}

fn logprobs() -> u8 {
    20
}

fn max_tokens() -> u32 {
    16
}

fn item_chars() -> usize {
    2000
}

fn nearest() -> Thresholds {
    Thresholds::NEAREST
}

fn quarters() -> Thresholds {
    Thresholds::QUARTERS
}

/// Request fields that Souk sets itself.
const OWN_FIELDS: [&str; 8] =
    ["model", "messages", "n", "stream", "logprobs", "top_logprobs", "response_format", "max_tokens"];

/// Audit log, and the fraction of verdicts to record.
pub type Audits = (Arc<dyn AuditLog>, f64);

/// Opens the judge, wrapped with verdict cache and audits. If cache or ledger were opened on a runtime, the runtime must
/// outlive the judge. A model in this process is opened elsewhere, with the other models.
pub fn open(
    judge: &Judge,
    data: &DataFolder,
    model: impl FnOnce(&ModelJudge) -> Result<Arc<dyn RewardSource>>,
    cache: Option<Arc<dyn Cache>>,
    audits: Option<Audits>,
) -> Result<Arc<dyn RewardSource>> {
    let mut source = match judge.model() {
        Some(judge) => model(&judge)?,
        None => judge.open(data)?,
    };
    if let Some(cache) = cache {
        source = Arc::new(CachedJudge::start(source, cache)?);
    }
    if let Judge::KnownElseModel(judge) = judge {
        source = Arc::new(KnownElse::new(judgements(data, &judge.split)?, source));
    }
    if let Some((ledger, rate)) = audits {
        source = Arc::new(AuditedJudge::start(source, ledger, rate)?);
    }
    Ok(source)
}

impl Judge {
    /// True if the judge is a remote service.
    pub fn is_remote(&self) -> bool {
        !matches!(self, Self::Oracle {} | Self::Qrels(_)) && self.model().is_none()
    }

    /// The relevance model that it runs in this process.
    pub fn model(&self) -> Option<ModelJudge> {
        match self {
            Self::Model(judge) => Some(judge.clone()),
            Self::KnownElseModel(judge) => {
                let KnownElseModelJudge { path, batch_tokens, int8, .. } = judge.clone();
                Some(ModelJudge { path, batch_tokens, int8 })
            }
            _ => None,
        }
    }

    fn open(&self, data: &DataFolder) -> Result<Arc<dyn RewardSource>> {
        match self {
            Self::Oracle {} => Ok(Arc::new(MarketOracle::load(data.path())?)),
            Self::Model(_) | Self::KnownElseModel(_) => {
                Err(Error::input("a relevance model must be opened by its caller"))
            }
            Self::Qrels(QrelsJudge { split }) => Ok(Arc::new(judgements(data, split)?)),
            Self::Souk(judge) => {
                let http = Http::open(&judge.url, Souk::ROUTE, judge.key_env.as_deref())?;
                resilient(Souk::new(http, named(&judge.model)?), &judge.limits, judge.batch)
            }
            Self::Rerank(judge) => {
                judge.thresholds.check("thresholds")?;
                let http = Http::open(&judge.url, Rerank::ROUTE, judge.key_env.as_deref())?;
                let client = Rerank::new(http, judge.shape, named(&judge.model)?, judge.thresholds);
                resilient(client, &judge.limits, judge.batch)
            }
            Self::Openai(judge) => {
                let http = Http::open(&judge.url, Openai::ROUTE, judge.key_env.as_deref())?;
                resilient(Openai::new(http, judge.chat_settings()?), &judge.limits, 1)
            }
        }
    }
}

impl OpenaiJudge {
    fn chat_settings(&self) -> Result<ChatSettings> {
        self.thresholds.check("thresholds")?;
        within("logprobs", self.logprobs, 0..=20)?;
        within("item_chars", self.item_chars, 1..=1_000_000)?;
        if let Some(name) = OWN_FIELDS.into_iter().find(|name| self.body.contains_key(*name)) {
            let problem = format!("sets `{name}`: use the judge's own setting instead");
            return Err(Error::config("body", problem));
        }
        Ok(ChatSettings {
            model: named(&self.model)?.into(),
            prompt: Prompt::open(self.prompt.as_deref(), self.structured)?,
            structured: self.structured,
            logprobs: self.logprobs,
            max_tokens: self.max_tokens,
            item_chars: self.item_chars,
            thresholds: self.thresholds,
            body: self.body.clone(),
        })
    }
}

fn judgements(data: &DataFolder, split: &str) -> Result<Judgements> {
    Judgements::gather("qrels", data.judgements(split)?)
}

fn resilient(client: impl JudgeClient + 'static, limits: &JudgeLimits, batch: usize) -> Result<Arc<dyn RewardSource>> {
    limits.check()?;
    within("batch", batch, 1..=10_000)?;
    Ok(Arc::new(ResilientJudge::new(Box::new(client), limits.clone(), batch)))
}

fn named(model: &str) -> Result<&str> {
    let problem = "is empty: name the model that judges, for verdicts are kept under its name";
    if model.trim().is_empty() { Err(Error::config("model", problem)) } else { Ok(model) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(judge: Value) -> std::result::Result<Judge, String> {
        serde_json::from_value(judge).map_err(|e| e.to_string())
    }

    fn no_model(_: &ModelJudge) -> Result<Arc<dyn RewardSource>> {
        Err(Error::input("no model"))
    }

    fn opened(judge: Value) -> std::result::Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("corpus.jsonl"), "").unwrap();
        std::fs::create_dir(folder.path().join("qrels")).unwrap();
        std::fs::write(folder.path().join("qrels/dev.tsv"), "query-id\tcorpus-id\tscore\nq\ti\t4\n").unwrap();
        let source = open(&read(judge)?, &DataFolder::open(folder.path()).unwrap(), no_model, None, None);
        source.map(|source| source.id().to_owned()).map_err(|e| format!("{e} {e:?}"))
    }

    #[test]
    fn each_judge_is_chosen_by_its_type_and_has_vetted_defaults() {
        assert_eq!(read(json!({ "type": "oracle" })).unwrap(), Judge::Oracle {});
        assert_eq!(opened(json!({ "type": "qrels", "split": "dev" })).unwrap(), "qrels");
        let url = "http://127.0.0.1:1/v1";
        assert_eq!(
            opened(json!({ "type": "souk", "url": url, "model": "m" })).unwrap(),
            format!("souk m at {url}/score")
        );
        let judge = read(json!({ "type": "openai", "url": url, "model": "m" })).unwrap();
        let written = serde_json::to_value(&judge).unwrap();
        assert_eq!(written["limits"], serde_json::to_value(JudgeLimits::default()).unwrap());
        assert_eq!((&written["logprobs"], &written["structured"]), (&json!(20), &json!(true)));
        assert_eq!(serde_json::from_value::<Judge>(written).unwrap(), judge, "what is written is read again");
    }

    #[test]
    fn what_is_not_known_or_cannot_be_meant_is_refused_by_name() {
        let judge = |name: &str, value: Value| {
            let mut judge = json!({ "type": "openai", "url": "http://127.0.0.1:1", "model": "m" });
            judge[name] = value;
            judge
        };
        let rerank = |thresholds: Value| json!({ "type": "rerank", "shape": "tei", "url": "http://h", "model": "m", "thresholds": thresholds });
        for (judge, named) in [
            (json!({ "type": "oracle", "url": "x" }), "url"),
            (json!({ "type": "qrels", "splt": "x" }), "splt"),
            (json!({ "type": "guess" }), "guess"),
            (json!({ "type": "souk", "url": "http://h" }), "model"),
            (json!({ "type": "souk", "url": "http://h", "model": " " }), "name the model"),
            (json!({ "type": "souk", "url": "http://h", "model": "m", "batch": 0 }), "`batch`|batch: is 0"),
            (judge("batch", json!(4)), "batch"),
            (judge("url", json!("127.0.0.1:1")), "use http://"),
            (judge("url", json!("http://me:secret@h")), "key_env"),
            (judge("key_env", json!("SOUK_NO_SUCH_VARIABLE")), "SOUK_NO_SUCH_VARIABLE"),
            (judge("prompt", json!("no/such/prompt.txt")), "no/such/prompt.txt"),
            (judge("logprobs", json!(21)), "logprobs: is 21: use 0 to 20"),
            (judge("item_chars", json!(0)), "item_chars"),
            (judge("body", json!({ "stream": true })), "`stream`"),
            (judge("thresholds", json!([0.5, 0.5, 0.6])), "ascending"),
            (judge("limits", json!({ "concurrency": 0 })), "limits.concurrency"),
            (judge("limits", json!({ "retries": -1 })), "-1"),
            (judge("limits", json!({ "timeout_seconds": 200 })), "limits.deadline_seconds: is 120: use 200"),
            (judge("limits", json!({ "timeout": 2 })), "timeout"),
            (rerank(json!([0.0, 0.5, 0.6])), "thresholds"),
            (rerank(json!([0.1, 0.5])), "length"),
            (rerank(json!([0.1, 0.5, 1.1])), "thresholds"),
        ] {
            let error = opened(judge.clone()).expect_err(&judge.to_string());
            assert!(named.split('|').any(|named| error.contains(named)), "{judge}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
