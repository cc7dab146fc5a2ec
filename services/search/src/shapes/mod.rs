//! What is asked and what is answered. A field of our own routes that is not known is refused.

mod embedding;
mod models;
mod refusals;
mod voting;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value};
use souk::index::Filter;
use souk::search::{Arm, Part, Weights};
use utoipa::ToSchema;

pub use self::embedding::*;
pub use self::models::*;
pub use self::refusals::*;
pub use self::voting::*;

/// A search by a text, or by a vector of the served model.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// What the shopper typed.
    #[schema(min_length = 1, nullable = false)]
    pub query: Option<String>,
    /// Instead of a query, or beside one whose terms are searched.
    #[schema(nullable = false)]
    pub vector: Option<Vec<f32>>,
    #[serde(default = "ten", deserialize_with = "whole")]
    #[schema(minimum = 1, default = 10)]
    pub k: usize,
    /// Hits to leave out before the first.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    pub offset: usize,
    #[schema(value_type = Option<Object>)]
    pub filter: Option<Filter>,
    /// How many items a walk through the graph looks around for.
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub ef: Option<usize>,
    /// A version other than the one that is served.
    #[schema(min_length = 1)]
    pub model: Option<String>,
    /// Say for each hit what each channel gave.
    #[serde(default)]
    pub explain: bool,
    /// Search by terms as well.
    pub hybrid: Option<Hybrid>,
    /// Fields to count the values of, over the first hits.
    #[serde(default)]
    #[schema(max_items = 20)]
    pub facets: Vec<String>,
    /// Who asks: the same one always sees the same side of an experiment.
    pub client_id: Option<String>,
}

/// A whole number however it is written: `10` and `10.0` are the same to JSON.
pub(crate) fn whole<'de, D: Deserializer<'de>>(value: D) -> Result<usize, D::Error> {
    let number = Number::deserialize(value)?;
    let from_float = || number.as_f64().filter(|x| x.fract() == 0.0 && (0.0..9e15).contains(x)).map(|x| x as u64);
    let number = number.as_u64().or_else(from_float).and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| D::Error::custom("expected a whole number, 0 or more"))
}

pub(crate) fn maybe_whole<'de, D: Deserializer<'de>>(value: D) -> Result<Option<usize>, D::Error> {
    #[derive(Deserialize)]
    struct Whole(#[serde(deserialize_with = "whole")] usize);
    Ok(Option::<Whole>::deserialize(value)?.map(|Whole(number)| number))
}

fn ten() -> usize {
    10
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected true, false, or weights: {\"dense\": 1, \"lexical\": 1, \"constant\": 60}")]
pub enum Hybrid {
    Wanted(bool),
    #[schema(value_type = WeightsShape)]
    Weighted(Weights),
}

/// Weights of the channels whose ranks are fused.
#[derive(ToSchema)]
#[schema(as = Weights)]
#[expect(dead_code, reason = "describes what the library reads")]
pub struct WeightsShape {
    #[schema(minimum = 0, maximum = 1e6, default = 1.0)]
    dense: f32,
    #[schema(minimum = 0, maximum = 1e6, default = 1.0)]
    lexical: f32,
    /// The higher, the less the first ranks stand out.
    #[schema(minimum = 0, maximum = 1e6, default = 60.0)]
    constant: f32,
}

#[derive(Serialize, ToSchema)]
pub struct SearchAnswer {
    pub query: Option<String>,
    /// For the events that follow.
    pub query_id: String,
    /// The version, its index, and the number of the last change to the catalogue that was searched.
    pub model: String,
    pub index: String,
    pub catalogue: u64,
    pub took_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub experiment: Option<Assigned>,
    pub hits: Vec<HitShape>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub facets: Vec<Facet>,
}

/// What an experiment shows this shopper.
#[derive(Clone, Serialize, ToSchema)]
pub struct Assigned {
    pub name: String,
    #[schema(value_type = String)]
    pub arm: Arm,
}

/// An item that was found, with all fields of the catalogue beside these.
#[derive(Clone, Serialize, ToSchema)]
pub struct HitShape {
    pub id: String,
    pub score: f32,
    pub rank: usize,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub explain: Option<Explained>,
    /// The side that brought it, where two are shown in one list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub side: Option<Arm>,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub fields: Map<String, Value>,
}

#[derive(Clone, Serialize, ToSchema)]
pub struct Explained {
    pub channels: Channels,
    /// The share of the query's terms, by how rare they are, that the item's text has.
    pub overlap: Option<f32>,
}

#[derive(Clone, Serialize, ToSchema)]
pub struct Channels {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PartShape>, nullable = false)]
    pub dense: Option<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PartShape>, nullable = false)]
    pub lexical: Option<Part>,
}

/// What one channel gave: its own score and rank, and its part of the hit's score.
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

/// What the catalogue can be filtered by.
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
    /// The commonest.
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
    /// `dense`, `lexical` or `hybrid`, of the served version or of another: `VERSION/dense`.
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

/// The sides stand in an order that only the service knows, until a vote is cast.
#[derive(Serialize, ToSchema)]
pub struct CompareAnswer {
    pub query: String,
    pub comparison: String,
    pub left: Page,
    pub right: Page,
}

#[derive(Serialize, ToSchema)]
pub struct Page {
    pub hits: Vec<HitShape>,
}

/// Items to put in, each in the place of what has its id.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemsRequest {
    #[schema(value_type = Vec<ItemShape>)]
    pub items: Vec<Map<String, Value>>,
}

/// An item with whatever fields the catalogue has; `_id` may stand for `id`.
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
    /// Of them, those that were not there before.
    pub new: usize,
    /// The number of the last change to the catalogue.
    pub catalogue: u64,
}

#[derive(Serialize, ToSchema)]
pub struct DeleteAnswer {
    pub deleted: bool,
    pub catalogue: u64,
}

/// What a shopper did after a search, as UBI calls it.
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
    /// From 1.
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

/// Whether what a search needs works now, and what else does.
#[derive(Serialize, ToSchema)]
pub struct ReadyAnswer {
    pub ready: bool,
    pub model: String,
    pub index: String,
    /// Whether the ledger answers; without it versions and votes cannot be changed.
    pub store: bool,
}
