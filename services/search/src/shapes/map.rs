//! Types of the catalogue's map.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Parameters of the map.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct MapParams {
    /// Field that groups the items.
    pub field: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct MapAnswer {
    pub version: String,
    /// Items of the index; the map shows up to 1,000 of them.
    pub num_items: usize,
    pub points: Vec<MapPoint>,
}

/// An item of the map. `x` and `y` are 0 to 1.
#[derive(Serialize, ToSchema)]
pub struct MapPoint {
    pub id: String,
    pub title: String,
    pub x: f32,
    pub y: f32,
    /// Text of the field.
    pub group: Option<String>,
}
