//! Types of what the trainer does and has done. The trainer sends them, and this service passes them on.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

#[derive(Default, Serialize, Deserialize, ToSchema)]
pub struct TrainingAnswer {
    /// Curves by name, such as `loss`, each a list of step and value.
    #[schema(value_type = Option<BTreeMap<String, Vec<Object>>>)]
    pub log: Option<Value>,
    /// The trainer's current activity, if its address is set.
    pub now: Option<TrainerShape>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct TrainerShape {
    /// Such as `training` or `waiting`.
    pub doing: String,
    pub round: Option<u64>,
    pub stage: Option<String>,
    pub step: u64,
    pub steps: u64,
    /// Progress of each stage towards its next run.
    pub stages: Vec<StageWaitShape>,
    pub alarms: Vec<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct StageWaitShape {
    pub stage: String,
    /// New examples, and how many make the stage due.
    pub fresh: u64,
    pub examples: u64,
    /// Seconds since its last run, and how many make it due.
    pub since: u64,
    pub seconds: u64,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RoundsAnswer {
    /// Null if no trainer's address is set.
    pub rounds: Option<Vec<RoundShape>>,
}

/// A round of training. Times are seconds since 1970.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct RoundShape {
    pub number: u64,
    pub began_at: i64,
    /// Null while it runs.
    pub ended_at: Option<i64>,
    /// Version that it started from.
    pub parent: Option<String>,
    pub version: Option<String>,
    /// Verdict of the gate.
    pub passed: Option<bool>,
    pub reasons: Vec<String>,
    pub stages: Vec<RoundStageShape>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RoundStageShape {
    pub stage: String,
    /// Why it was due.
    pub why: String,
    /// New examples.
    pub fresh: u64,
}

/// A round with the gate's decision. The first fields are those of the list.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct RoundAnswer {
    pub number: u64,
    pub began_at: i64,
    pub ended_at: Option<i64>,
    pub parent: Option<String>,
    pub version: Option<String>,
    pub passed: Option<bool>,
    pub reasons: Vec<String>,
    pub stages: Vec<RoundStageShape>,
    /// Empty before the gate has decided.
    pub splits: Vec<GateSplitShape>,
    /// Queries of the newest days without clicks; null if the gate's judgements are not from the log.
    pub unclicked: Option<Vec<UnclickedShape>>,
}

/// Decision of the gate on one split.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct GateSplitShape {
    pub split: String,
    pub passed: bool,
    pub reasons: Vec<String>,
    /// Average drift of the query vectors.
    pub drift: Option<f64>,
    pub rows: Vec<GateRowShape>,
    pub changes: Option<ChangesShape>,
}

/// A metric of a slice, in percent.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct GateRowShape {
    pub slice: String,
    pub num_queries: u64,
    pub metric: String,
    pub served: Option<f64>,
    pub candidate: Option<f64>,
    pub difference: Option<f64>,
    #[schema(value_type = Option<Vec<f64>>)]
    pub interval: Option<[f64; 2]>,
    pub significant: bool,
}

/// How a metric changes query by query.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ChangesShape {
    pub metric: String,
    pub better: u64,
    pub worse: u64,
    pub same: u64,
    /// Largest gains first, then the largest losses.
    pub queries: Vec<ChangedQueryShape>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct ChangedQueryShape {
    pub query: String,
    pub slice: Option<String>,
    pub served: f64,
    pub candidate: f64,
    pub served_hits: Vec<ChangedHitShape>,
    pub candidate_hits: Vec<ChangedHitShape>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct ChangedHitShape {
    pub id: String,
    pub title: String,
    pub score: f32,
    /// Relevance, from `L1` to `L4`.
    pub level: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct UnclickedShape {
    pub query: String,
    pub searches: u64,
}
