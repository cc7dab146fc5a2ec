//! Request and response types. Unknown fields are errors in this service's own routes.

mod embedding;
mod learning;
mod map;
mod models;
mod responses;
mod voting;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value};
use souk::index::Filter;
use souk::lexical::Hybrid;
use souk::search::{Arm, ChannelScore, Rerank, TermScore, TermScores};
use utoipa::{IntoParams, ToSchema};

pub use self::embedding::*;
pub use self::learning::*;
pub use self::map::*;
pub use self::models::*;
pub use self::responses::*;
pub use self::voting::*;

/// Search by a text, or by a vector of the served model.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// Text that the shopper typed.
    #[schema(min_length = 1, nullable = false)]
    pub query: Option<String>,
    /// Query vector, instead of a query or next to one for hybrid search.
    #[schema(nullable = false)]
    pub vector: Option<Vec<f32>>,
    #[serde(default = "ten", deserialize_with = "whole")]
    #[schema(minimum = 1, default = 10)]
    pub k: usize,
    /// Number of hits to skip.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    pub offset: usize,
    #[schema(value_type = Option<Object>)]
    pub filter: Option<Filter>,
    /// Search width in the HNSW graph.
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub ef: Option<usize>,
    /// Version to search; defaults to the served one.
    #[schema(min_length = 1)]
    pub model: Option<String>,
    /// Explain each hit with the score of every channel.
    #[serde(default)]
    pub explain: bool,
    /// Add lexical search; by default as in the service's settings.
    #[schema(value_type = Option<HybridShape>)]
    pub hybrid: Option<Hybrid>,
    /// Whether the version's reranker orders the first hits of hybrid search; by default as in the service's settings.
    #[schema(value_type = Option<RerankShape>)]
    pub rerank: Option<Rerank>,
    /// Fields whose values are counted over the first hits.
    #[serde(default)]
    #[schema(max_items = 20)]
    pub facets: Vec<String>,
    /// Shopper's id: the same id always gets the same side of an experiment.
    pub client_id: Option<String>,
}

/// Parses a whole number; `10` and `10.0` are equal in JSON.
pub(crate) fn whole<'de, D: Deserializer<'de>>(value: D) -> Result<usize, D::Error> {
    let number = Number::deserialize(value)?;
    let from_float = || number.as_f64().filter(|x| x.fract() == 0.0 && (0.0..9e15).contains(x)).map(|x| x as u64);
    let number = number.as_u64().or_else(from_float).and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| D::Error::custom("expected a whole number of 0 or more"))
}

pub(crate) fn maybe_whole<'de, D: Deserializer<'de>>(value: D) -> Result<Option<usize>, D::Error> {
    #[derive(Deserialize)]
    struct Whole(#[serde(deserialize_with = "whole")] usize);
    Ok(Option::<Whole>::deserialize(value)?.map(|Whole(number)| number))
}

fn ten() -> usize {
    10
}

/// True, false, or weights of rank fusion.
#[derive(ToSchema)]
#[schema(as = Hybrid)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the library reads")]
pub enum HybridShape {
    Enabled(bool),
    Weighted(WeightsShape),
}

/// Weights of the channels and of the terms. `true` has the weights fitted to the model, else 1 for all three.
#[derive(ToSchema)]
#[schema(as = Weights)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "describes what the library reads")]
pub struct WeightsShape {
    #[schema(minimum = 0, maximum = 1e6, default = 1.0)]
    dense: f32,
    #[schema(minimum = 0, maximum = 1e6, default = 1.0)]
    lexical: f32,
    /// Weight of how well an item's text matches the query's terms, letters and numbers.
    #[schema(minimum = 0, maximum = 1e6, default = 0.0)]
    terms: f32,
    /// Fuses ranks instead of scores; without `terms`. Higher values flatten the advantage of the first ranks; 60 is usual.
    #[schema(minimum = 0, maximum = 1e6)]
    constant: Option<f32>,
}

/// True, false, or how many hits are reranked.
#[derive(ToSchema)]
#[schema(as = Rerank)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the library reads")]
pub enum RerankShape {
    Enabled(bool),
    First(RerankDepthShape),
}

#[derive(ToSchema)]
#[schema(as = RerankDepth)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "describes what the library reads")]
pub struct RerankDepthShape {
    #[schema(minimum = 1, maximum = 200)]
    depth: usize,
}

#[derive(Serialize, ToSchema)]
pub struct SearchAnswer {
    pub query: Option<String>,
    /// Id for later events.
    pub query_id: String,
    /// The version, its index, and the position of the last catalogue change in that index.
    pub model: String,
    pub index: String,
    pub catalogue: u64,
    pub took_ms: f64,
    /// Number of first hits that were reranked; 0 if that took too long, absent if it was not tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reranked: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub experiment: Option<ExperimentArm>,
    pub hits: Vec<HitShape>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub facets: Vec<Facet>,
}

/// Experiment and arm of this shopper.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = Assigned)]
pub struct ExperimentArm {
    pub name: String,
    #[schema(value_type = String)]
    pub arm: Arm,
}

/// A hit, with all fields of the catalogue.
#[derive(Clone, Serialize, ToSchema)]
pub struct HitShape {
    pub id: String,
    pub score: f32,
    pub rank: usize,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub explain: Option<Explanation>,
    /// Side that contributed the hit, in an interleaved list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub side: Option<Arm>,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub fields: Map<String, Value>,
}

#[derive(Clone, Serialize, ToSchema)]
#[schema(as = Explained)]
pub struct Explanation {
    pub channels: Channels,
    /// How well the item matches the query's terms, if they are a part of the score.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TermsShape>, nullable = false)]
    pub terms: Option<TermScores>,
    /// The reranker's output, if the hit was reranked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TermShape>, nullable = false)]
    pub reranker: Option<TermScore>,
    /// IDF-weighted fraction of the query's terms that the item has.
    pub overlap: Option<f32>,
}

#[derive(Clone, Serialize, ToSchema)]
pub struct Channels {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PartShape>, nullable = false)]
    pub dense: Option<ChannelScore>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PartShape>, nullable = false)]
    pub lexical: Option<ChannelScore>,
}

/// Terms of a hit, and their parts of its score.
#[derive(ToSchema)]
#[schema(as = Terms)]
#[expect(dead_code, reason = "describes what the library writes")]
pub struct TermsShape {
    /// IDF-weighted fraction of the query's terms that the item has.
    overlap: TermShape,
    /// Fraction of the query's sequences of three letters that the item has.
    trigrams: TermShape,
    /// Number of the query's numbers that the item lacks.
    missing_numbers: TermShape,
    /// How likely the query's terms are, given the terms of the item's text and their translations; only with weights that were fitted with translations.
    #[schema(nullable = false)]
    translation: Option<TermShape>,
}

#[derive(ToSchema)]
#[schema(as = Term)]
#[expect(dead_code, reason = "describes what the library writes")]
pub struct TermShape {
    value: f32,
    weight: f32,
    part: f32,
}

/// Score and rank in one channel, and the channel's part of the hit's score.
#[derive(ToSchema)]
#[schema(as = Part)]
#[expect(dead_code, reason = "describes what the library writes")]
pub struct PartShape {
    score: f32,
    rank: usize,
    weight: f32,
    part: f32,
}

#[derive(Serialize, ToSchema)]
pub struct Facet {
    pub field: String,
    pub values: Vec<FacetValue>,
}

#[derive(Serialize, ToSchema)]
pub struct FacetValue {
    pub value: String,
    pub count: usize,
}

/// Fields to filter by.
#[derive(Serialize, ToSchema)]
pub struct FieldsAnswer {
    pub num_items: usize,
    pub fields: Vec<FieldShape>,
}

#[derive(Serialize, ToSchema)]
pub struct FieldShape {
    pub name: String,
    /// `text`, `number`, or both.
    pub kinds: Vec<&'static str>,
    pub num_items: usize,
    /// Most frequent values.
    pub values: Vec<FacetValue>,
    pub min: Option<f64>,
    pub max: Option<f64>,
}

/// One query through two channels, side by side.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompareRequest {
    #[schema(min_length = 1)]
    pub query: String,
    /// `dense`, `lexical` or `hybrid`, of the served version or another: `VERSION/dense`.
    #[schema(min_length = 1)]
    pub left: String,
    #[schema(min_length = 1)]
    pub right: String,
    #[serde(default = "ten", deserialize_with = "whole")]
    #[schema(minimum = 1, default = 10)]
    pub k: usize,
    #[schema(value_type = Option<Object>)]
    pub filter: Option<Filter>,
}

/// The order of the sides stays hidden until a vote is cast.
#[derive(Serialize, ToSchema)]
pub struct CompareAnswer {
    pub query: String,
    pub comparison: String,
    pub left: HitPage,
    pub right: HitPage,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Page)]
pub struct HitPage {
    pub hits: Vec<HitShape>,
}

/// Items to add, each replacing the item with the same id.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemsRequest {
    #[schema(value_type = Vec<ItemShape>)]
    pub items: Vec<Map<String, Value>>,
}

/// An item with any catalogue fields; `_id` is accepted for `id`.
#[derive(ToSchema)]
#[schema(as = Item)]
#[expect(dead_code, reason = "describes what the library reads")]
pub struct ItemShape {
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00]*$")]
    id: String,
    title: Option<String>,
    text: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct ItemsAnswer {
    pub upserted: usize,
    /// Number of items whose id is new.
    pub new: usize,
    /// Position of the last catalogue change, for `at_least`.
    pub catalogue: u64,
}

/// Fields to replace, and null for fields to remove.
#[derive(ToSchema)]
#[schema(as = ItemFields)]
#[expect(dead_code, reason = "describes what the library reads")]
pub struct ItemFields {
    title: Option<String>,
    text: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct UpdateAnswer {
    /// Position of the change, for `at_least`.
    pub catalogue: u64,
}

#[derive(Default, Serialize, ToSchema)]
pub struct BulkAnswer {
    pub put: usize,
    pub updated: usize,
    pub deleted: usize,
    /// Position of the last change, for `at_least`.
    pub catalogue: u64,
}

#[derive(Serialize, ToSchema)]
pub struct ItemsPage {
    #[schema(value_type = Vec<ItemShape>)]
    pub items: Vec<Map<String, Value>>,
    /// Position of the last catalogue change that the page includes.
    pub catalogue: u64,
}

/// Parameters of a list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListParams {
    /// Lists the items after this id.
    pub after: Option<String>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 1000)]
    pub limit: Option<usize>,
    /// Waits until the answer includes the catalogue change at this position.
    pub at_least: Option<u64>,
}

/// Parameters of a read.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ReadParams {
    /// Waits until the answer includes the catalogue change at this position, which every write returns. Use it to read
    /// your own writes from another replica.
    pub at_least: Option<u64>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WriteParams {
    /// Writes only if none of the items has changed after this position of the catalogue, else answers 409. Give the `catalogue`
    /// that you read them at. Not with a Kafka topic of changes.
    pub if_position: Option<u64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only documents the header, which is read for all writes at once")]
pub struct RepeatParams {
    /// A key of your choice for this write. A write that was answered with success is answered again if it is sent with the same
    /// key, and not made again.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 200, pattern = "^[!-~]+$")]
    pub idempotency_key: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct DeleteAnswer {
    pub deleted: bool,
    pub catalogue: u64,
}

/// A shopper's action after a search, in UBI's terms.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsRequest {
    pub events: Vec<EventShape>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EventShape {
    pub action_name: ActionName,
    #[schema(min_length = 1, max_length = 256)]
    pub query_id: String,
    #[serde(default)]
    #[schema(max_length = 256)]
    pub client_id: String,
    #[schema(min_length = 1, max_length = 256)]
    pub item: String,
    /// 1-based.
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub position: Option<usize>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionName {
    Impression,
    Click,
    AddToCart,
    Purchase,
}

#[derive(Serialize, ToSchema)]
pub struct EventsAnswer {
    pub taken: usize,
}

/// Readiness: what searches need works; `store` says whether the ledger does.
#[derive(Serialize, ToSchema)]
pub struct ReadyAnswer {
    pub ready: bool,
    pub model: String,
    pub index: String,
    /// Whether the ledger answers; without it, versions and votes cannot change.
    pub store: bool,
    /// Position of the last catalogue change that searches see, and that of the stream's last one, as far as known.
    pub catalogue: u64,
    pub catalogue_end: u64,
}
