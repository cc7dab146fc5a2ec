//! The routes: what the trainer says of itself.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;
use souk_http::{Fault, Front, Probe, Role, admit, json_body, note};
use tokio::task::spawn_blocking;

use crate::registry::Registry;
use crate::status::{Shown, Status};

const ROUTES: &str = "there is GET /status, /healthz, /readyz and /metrics";

pub struct Asked {
    pub front: Arc<Front>,
    pub status: Arc<Status>,
    pub registry: Arc<Registry>,
    pub probe: Probe<Result<(), &'static str>>,
    pub served: Probe<Option<String>>,
}

pub fn router(asked: Arc<Asked>) -> Router {
    let shown = Router::new()
        .route("/status", get(status))
        .route_layer(from_fn_with_state((asked.front.clone(), Role::Read), admit));
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(shown)
        .fallback(async || Fault::no_route(ROUTES))
        .method_not_allowed_fallback(async || Fault::wrong_method())
        .layer(from_fn_with_state(asked.front.clone(), note))
        .with_state(asked)
}

/// A ledger that is away leaves out what only it knows.
async fn status(State(asked): State<Arc<Asked>>) -> Response {
    let registry = asked.registry.clone();
    let look = async { spawn_blocking(move || registry.served()).await.ok()?.ok()?.map(|served| served.version) };
    let served = asked.served.found(look).await;
    json_body(&Shown { served, ..asked.status.shown() })
}

/// Ready is who can publish, and has no alarm that only people can end.
async fn ready(State(asked): State<Arc<Asked>>) -> Result<Response, Fault> {
    let look = async {
        let registry = asked.registry.clone();
        match spawn_blocking(move || registry.check()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err("the ledger does not answer; the log says why"),
        }
    };
    asked.probe.found(look).await.map_err(Fault::not_ready)?;
    let alarms: Vec<&str> = asked.status.shown().alarms.into_keys().collect();
    Ok(json_body(&json!({"ready": true, "alarms": alarms})))
}

async fn metrics() -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], souk::telemetry::render()).into_response()
}
