//! HTTP routes: status, health and metrics.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::get;
use serde_json::json;
use souk_http::{Fault, Front, Probe, Role, admit, json_body, metrics, record};
use tokio::task::spawn_blocking;

use crate::registry::Registry;
use crate::status::{Status, StatusReport};

const ROUTES: &str = "the routes are GET /status, /healthz, /readyz and /metrics";

pub struct AppState {
    pub front: Arc<Front>,
    pub status: Arc<Status>,
    pub registry: Arc<Registry>,
    pub probe: Probe<Result<(), &'static str>>,
    pub served: Probe<Option<String>>,
}

/// `/metrics` may be at another address.
pub fn router(state: Arc<AppState>, has_metrics: bool) -> Router {
    let mut shown = Router::new()
        .route("/status", get(status))
        .route_layer(from_fn_with_state((state.front.clone(), Role::Search), admit));
    if has_metrics {
        shown = shown.route("/metrics", get(metrics));
    }
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .merge(shown)
        .fallback(async || Fault::no_route(ROUTES))
        .method_not_allowed_fallback(async || Fault::wrong_method())
        .layer(from_fn_with_state(state.front.clone(), record))
        .with_state(state)
}

/// `served` is missing while the ledger does not answer.
async fn status(State(state): State<Arc<AppState>>) -> Response {
    let registry = state.registry.clone();
    let query = async { spawn_blocking(move || registry.served()).await.ok()?.ok()?.map(|served| served.version) };
    let served = state.served.get(query).await;
    json_body(&StatusReport { served, ..state.status.shown() })
}

/// Ready if the ledger answers. Alarms are listed, but do not make the trainer unready.
async fn ready(State(state): State<Arc<AppState>>) -> Result<Response, Fault> {
    let query = async {
        let registry = state.registry.clone();
        match spawn_blocking(move || registry.check()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err("the ledger does not answer: see the log"),
        }
    };
    state.probe.get(query).await.map_err(Fault::not_ready)?;
    let alarms: Vec<&str> = state.status.shown().alarms.into_keys().collect();
    Ok(json_body(&json!({"ready": true, "alarms": alarms})))
}
