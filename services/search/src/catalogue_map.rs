//! `/map`: a sample of the served index in the plane, similar items close to each other. Computed when it is asked for, and kept for some
//! minutes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Response;
use serde_json::Value;
use souk::domain::Item;
use souk::map::layout;
use souk::search::OpenGeneration;
use souk_http::{Fault, json_body};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::SearchService;
use crate::shapes::{ErrorResponses, MapAnswer, MapParams, MapPoint};

const NUM_ITEMS: usize = 1000;
/// Age at which a map is computed again, because items have changed meanwhile.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The newest map. A second request waits for the first.
#[derive(Default)]
pub struct MapCache(Arc<Mutex<Option<Arc<CatalogueMap>>>>);

struct CatalogueMap {
    generation: String,
    version: String,
    computed: Instant,
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
    let map = service.map.of(service.serving.served()).await?;
    let points = map.items.iter().map(|(item, [x, y])| MapPoint {
        id: item.id.clone(),
        title: item.title.clone(),
        x: *x,
        y: *y,
        group: field.as_ref().and_then(|field| text(item.fields.get(field)?)),
    });
    Ok(json_body(&MapAnswer { version: map.version.clone(), num_items: map.num_items, points: points.collect() }))
}

impl MapCache {
    /// Map of what is served.
    async fn of(&self, served: Arc<OpenGeneration>) -> souk::Result<Arc<CatalogueMap>> {
        let cache = self.0.clone();
        // a task of its own: if the caller leaves, the next one waits for it instead of beginning again
        let computing = tokio::spawn(async move {
            let mut cache = cache.lock().await;
            let is_fresh = |map: &&Arc<CatalogueMap>| {
                map.generation == served.record().generation && map.computed.elapsed() < MAX_AGE
            };
            if let Some(map) = cache.as_ref().filter(is_fresh) {
                return Ok(map.clone());
            }
            let map = Arc::new(CatalogueMap::compute(&served).await?);
            *cache = Some(map.clone());
            Ok(map)
        });
        computing.await.map_err(interrupted)?
    }
}

impl CatalogueMap {
    async fn compute(served: &OpenGeneration) -> souk::Result<Self> {
        let num_items = served.index().num_items().await?;
        let sample = served.index().sample(NUM_ITEMS).await?;
        let (items, vectors): (Vec<Item>, Vec<Vec<f32>>) = sample.into_iter().unzip();
        let places = spawn_blocking(move || layout(&vectors)).await.map_err(interrupted)?;
        Ok(Self {
            generation: served.record().generation.clone(),
            version: served.record().version.clone(),
            computed: Instant::now(),
            num_items,
            items: items.into_iter().zip(places).collect(),
        })
    }
}

fn interrupted(error: tokio::task::JoinError) -> souk::Error {
    souk::Error::device("the map was interrupted").because(error)
}

/// A field's value as the name of a group: a text, or the first text of a list.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(values) => values.first()?.as_str().map(String::from),
        _ => None,
    }
}
