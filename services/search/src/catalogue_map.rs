//! `/map`: a sample of the served index in the plane, similar items close to each other. Computed once for each index.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Response;
use serde_json::Value;
use souk::domain::Item;
use souk::map::layout;
use souk_http::{Fault, json_body};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::SearchService;
use crate::shapes::{ErrorResponses, MapAnswer, MapParams, MapPoint};

const NUM_ITEMS: usize = 1000;

/// The newest map. A second request waits for the first.
#[derive(Default)]
pub struct MapCache(Mutex<Option<Arc<CatalogueMap>>>);

struct CatalogueMap {
    generation: String,
    num_items: usize,
    items: Vec<(Item, [f32; 2])>,
}

/// Map a sample of the served items by the similarity of their vectors
#[utoipa::path(get, path = "/map", tag = "items", operation_id = "map", params(MapParams),
    responses((status = 200, body = MapAnswer), ErrorResponses), security(("key" = [])))]
pub async fn map(
    State(service): State<Arc<SearchService>>,
    params: Result<Query<MapParams>, QueryRejection>,
) -> Result<Response, Fault> {
    let Query(MapParams { field }) = params.map_err(|rejection| Fault::malformed(None, rejection.body_text()))?;
    let version = service.serving.served().record().version.clone();
    let map = current(&service).await?;
    let points = map.items.iter().map(|(item, [x, y])| MapPoint {
        id: item.id.clone(),
        title: item.title.clone(),
        x: *x,
        y: *y,
        group: field.as_ref().and_then(|field| text(item.fields.get(field)?)),
    });
    Ok(json_body(&MapAnswer { version, num_items: map.num_items, points: points.collect() }))
}

async fn current(service: &SearchService) -> Result<Arc<CatalogueMap>, Fault> {
    let served = service.serving.served();
    let generation = &served.record().generation;
    let mut cache = service.map.0.lock().await;
    if let Some(map) = cache.as_ref().filter(|map| map.generation == *generation) {
        return Ok(map.clone());
    }
    let num_items = served.index().num_items().await?;
    let sample = served.index().sample(NUM_ITEMS).await?;
    let (items, vectors): (Vec<Item>, Vec<Vec<f32>>) = sample.into_iter().unzip();
    let ended = |e| souk::Error::device("the map was interrupted").because(e);
    let places = spawn_blocking(move || layout(&vectors)).await.map_err(ended)?;
    let items = items.into_iter().zip(places).collect();
    let map = Arc::new(CatalogueMap { generation: generation.clone(), num_items, items });
    *cache = Some(map.clone());
    Ok(map)
}

/// A field's value as the name of a group: a text, or the first text of a list.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(values) => values.first()?.as_str().map(String::from),
        _ => None,
    }
}
