//! Versions, their indexes and reports, and what is served.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A trained model, to be known by a name.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
    #[schema(min_length = 1, max_length = 256, pattern = "^[A-Za-z0-9._-]+$")]
    pub version: String,
    /// Its folder, as the service sees it.
    #[schema(min_length = 1, pattern = "^[^\\x00]*$")]
    pub path: String,
    pub parent: Option<String>,
    /// What `souk evaluate` wrote of it: metrics.json.
    #[schema(value_type = Option<Object>)]
    pub report: Option<Map<String, Value>>,
}

#[derive(Serialize, ToSchema)]
pub struct ModelsAnswer {
    pub served: Option<ServedShape>,
    pub building: Option<BuildingShape>,
    pub versions: Vec<VersionShape>,
}

#[derive(Serialize, ToSchema)]
pub struct ServedShape {
    pub version: String,
    pub generation: String,
    pub promoted_at: i64,
}

#[derive(Serialize, ToSchema)]
pub struct BuildingShape {
    pub version: String,
    pub done: u64,
    pub of: u64,
}

#[derive(Serialize, ToSchema)]
pub struct VersionShape {
    pub version: String,
    pub number: i64,
    pub path: String,
    pub fingerprint: String,
    pub parent: Option<String>,
    pub state: String,
    pub created_at: i64,
    #[schema(value_type = Object)]
    pub metrics: Value,
    /// Whether a search may name it now.
    pub loaded: bool,
    pub generations: Vec<GenerationShape>,
    pub report: Option<ReportShape>,
    /// Why it could not be served when that was last tried.
    pub failure: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct GenerationShape {
    pub generation: String,
    pub state: String,
    pub created_at: i64,
}

#[derive(Serialize, ToSchema)]
pub struct ReportShape {
    pub split: String,
    pub created_at: i64,
    #[schema(value_type = Object)]
    pub metrics: Value,
}

/// What is served from now on, or what is being built first.
#[derive(Serialize, ToSchema)]
pub struct PromoteAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub served: Option<ServedShape>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub building: Option<BuildingShape>,
}

/// Nothing is asked for beyond the route itself.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Curves of a training that goes on, each of pairs of step and value.
#[derive(Serialize, ToSchema)]
pub struct TrainingAnswer {
    #[schema(value_type = Option<BTreeMap<String, Vec<Object>>>)]
    pub log: Option<BTreeMap<&'static str, Value>>,
}
