//! HTTP routes: status, training curves, rounds, health and metrics.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::get;
use serde_json::json;
use souk::report::TrainingLog;
use souk_http::{Fault, Front, Probe, Role, admit, json_body, metrics, record};
use tokio::task::spawn_blocking;

use crate::registry::Registry;
use crate::round_details;
use crate::round_loop::TRAINING;
use crate::status::{Status, StatusReport};

const ROUTES: &str = "the routes are GET /status, /training, /rounds, /rounds/N, /healthz, /readyz and /metrics";

pub struct AppState {
    pub front: Arc<Front>,
    pub status: Arc<Status>,
    pub registry: Arc<Registry>,
    pub probe: Probe<Result<(), &'static str>>,
    pub served: Probe<Option<String>>,
    /// State folder of the trainer.
    pub folder: PathBuf,
}

/// `/metrics` may be at another address.
pub fn router(state: Arc<AppState>, has_metrics: bool) -> Router {
    let mut shown = Router::new()
        .route("/status", get(status))
        .route("/training", get(training))
        .route("/rounds", get(rounds))
        .route("/rounds/{number}", get(round))
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

/// Curves of the stage that is trained, or was trained last, and what the trainer does.
async fn training(State(state): State<Arc<AppState>>) -> Result<Response, Fault> {
    let folder = state.folder.join(TRAINING);
    let log = read(move || TrainingLog::load(&folder)).await?.map(|log| log.thinned(TrainingLog::SHOWN));
    let StatusReport { doing, round, stage, step, steps, stages, alarms, .. } = state.status.shown();
    let alarms: Vec<&str> = alarms.into_keys().collect();
    let now = json!({
        "doing": doing, "round": round, "stage": stage, "step": step, "steps": steps, "stages": stages, "alarms": alarms,
    });
    Ok(json_body(&json!({"log": log, "now": now})))
}

async fn rounds(State(state): State<Arc<AppState>>) -> Result<Response, Fault> {
    Ok(json_body(&read(move || round_details::list(&state.folder)).await?))
}

async fn round(
    State(state): State<Arc<AppState>>,
    number: Result<Path<u64>, PathRejection>,
) -> Result<Response, Fault> {
    let unknown = || Fault::not_found("there is no such round: GET /rounds lists the rounds");
    let Path(number) = number.map_err(|_| unknown())?;
    let found = read(move || round_details::details(&state.folder, number)).await?;
    found.map(|found| json_body(&found)).ok_or_else(unknown)
}

/// Reads files on a thread for it.
async fn read<T: Send + 'static>(work: impl FnOnce() -> souk::Result<T> + Send + 'static) -> Result<T, Fault> {
    let ended = |e| souk::Error::device("reading was interrupted").because(e);
    Ok(spawn_blocking(work).await.map_err(ended)??)
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
