//! Types of versions, their indexes and reports, and the served version.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Trained model to register under a name.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
    #[schema(min_length = 1, max_length = 256, pattern = "^[A-Za-z0-9._-]+$")]
    pub version: String,
    /// Model folder, as the service sees it.
    #[schema(min_length = 1, pattern = "^[^\\x00]*$")]
    pub path: String,
    pub parent: Option<String>,
    /// metrics.json that `souk evaluate` wrote.
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
    /// Whether a search can name it now.
    pub loaded: bool,
    pub generations: Vec<GenerationShape>,
    pub report: Option<ReportShape>,
    /// Why the last attempt to promote it failed.
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

/// The served version, or the build in progress.
#[derive(Serialize, ToSchema)]
pub struct PromoteAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub served: Option<ServedShape>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub building: Option<BuildingShape>,
}

/// Empty body: the route has no parameters.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = Nothing)]
#[serde(deny_unknown_fields)]
pub struct EmptyBody {}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollBackRequest {
    /// The version to roll back, by default the one that is served. With it, a request that is sent twice goes back one step.
    pub version: Option<String>,
}
