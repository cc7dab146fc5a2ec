//! Routes of the service, the role that each one requires, and the OpenAPI document.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::get;
use souk::index::VectorQuery;
use souk::search::StreamLag;
use souk_http::{Fault, Gate, Role, admit, json_body, record, shed_load};
use tokio::time::timeout;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::openapi::{ApiDocument, document};
use crate::repeats::answer_repeats;
use crate::shapes::{ErrorResponses, ReadyAnswer};
use crate::{SearchService, about, catalogue_map, console, embedding, events, hits, items, learning, models, voting};

const NO_ROUTE: &str = "no such route: GET /openapi.json lists the routes";
/// Timeout of encoding one word and searching; a slower model is broken. The probes of docker/kubernetes/ wait longer.
const PROBE: Duration = Duration::from_secs(5);
/// Timeout of reading one row; short, because a search does not need the ledger, and probes often wait only a second.
const STORE_PROBE: Duration = Duration::from_millis(300);

pub fn router(service: Arc<SearchService>) -> Router {
    let bounds = service.settings().bounds.clone();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let gate = Arc::new(Gate::new(cores, bounds.max_requests, bounds.slowdown));
    let fast = OpenApiRouter::new()
        .routes(routes!(hits::search))
        .routes(routes!(hits::compare))
        .route_layer(from_fn_with_state(gate, shed_load));
    let admits = |role: Role| from_fn_with_state((service.front.clone(), role), admit);
    let reading = OpenApiRouter::new()
        .merge(fast)
        .routes(routes!(hits::fields))
        .routes(routes!(embedding::embed))
        .routes(routes!(embedding::embeddings))
        .routes(routes!(about::openai_models))
        .routes(routes!(about::info))
        .routes(routes!(voting::summary))
        .routes(routes!(items::get))
        .routes(routes!(items::list))
        .routes(routes!(models::list))
        .routes(routes!(learning::training))
        .routes(routes!(learning::rounds))
        .routes(routes!(learning::round))
        .routes(routes!(catalogue_map::map))
        .route_layer(admits(Role::Search));
    let writing = OpenApiRouter::new()
        .routes(routes!(items::put))
        .routes(routes!(items::update))
        .routes(routes!(items::bulk))
        .routes(routes!(items::delete))
        .route_layer(from_fn_with_state(service.clone(), answer_repeats))
        .route_layer(admits(Role::Write));
    let operating = OpenApiRouter::new()
        .routes(routes!(models::register))
        .routes(routes!(models::promote))
        .routes(routes!(models::roll_back))
        .route_layer(admits(Role::Operate));
    let mut open = OpenApiRouter::new().routes(routes!(alive)).routes(routes!(ready)).routes(routes!(health));
    if service.settings().metrics_listen.is_none() {
        open = open.routes(routes!(metrics));
    }
    let (router, openapi) = OpenApiRouter::with_openapi(ApiDocument::openapi())
        .merge(reading)
        .merge(OpenApiRouter::new().routes(routes!(voting::cast)).route_layer(admits(Role::Vote)))
        .merge(OpenApiRouter::new().routes(routes!(events::tell)).route_layer(admits(Role::Events)))
        .merge(writing)
        .merge(operating)
        .merge(open)
        .split_for_parts();
    let document = Arc::new(document(&openapi, &bounds, &service.serving.served(), service.front.has_keys()));
    router
        .route("/openapi.json", get(async move || json_body(&*document)))
        .route("/favicon.ico", get(async || StatusCode::NO_CONTENT))
        .route("/", get(console::page))
        .route("/console/{file}", get(console::file))
        .fallback(async || Fault::no_route(NO_ROUTE))
        .method_not_allowed_fallback(async || Fault::wrong_method())
        .layer(from_fn_with_state(service.front.clone(), record))
        .with_state(service)
}

/// Liveness: the process runs
#[utoipa::path(get, path = "/healthz", tag = "operation", responses((status = 200, body = String)))]
async fn alive() -> &'static str {
    "ok\n"
}

/// Readiness: a search would succeed, and the catalogue is up to date
#[utoipa::path(get, path = "/readyz", tag = "operation", responses((status = 200, body = ReadyAnswer), ErrorResponses))]
async fn ready(State(service): State<Arc<SearchService>>) -> Result<Response, Fault> {
    let store = check_ready(&service).await?;
    let lag = service.serving.stream_lag();
    let served = service.serving.served();
    let (model, index) = (served.record().version.clone(), served.record().generation.clone());
    let (catalogue, catalogue_end) = (lag.position, lag.end);
    Ok(json_body(&ReadyAnswer { ready: true, model, index, store, catalogue, catalogue_end }))
}

/// Readiness, as TEI names it
#[utoipa::path(get, path = "/health", tag = "operation", responses((status = 200, body = String), ErrorResponses))]
async fn health(State(service): State<Arc<SearchService>>) -> Result<&'static str, Fault> {
    check_ready(&service).await?;
    Ok("ok\n")
}

/// Fails unless a search would succeed on a current catalogue. Returns whether the ledger answers.
async fn check_ready(service: &SearchService) -> Result<bool, Fault> {
    let store = service.probe.get(probe_search(service)).await.map_err(Fault::not_ready)?;
    check_lag(&service.serving.stream_lag(), service.settings().max_behind_seconds).map_err(Fault::not_ready)?;
    Ok(store)
}

/// Whether a service that is so far behind the catalogue stream may answer.
fn check_lag(lag: &StreamLag, max_seconds: u64) -> Result<(), String> {
    let StreamLag { position, end, seconds, problem } = lag;
    let problem = problem.as_ref().map_or(String::new(), |problem| format!(": {problem}"));
    match seconds {
        _ if max_seconds == 0 => Ok(()),
        None => Err(format!("catching up with the catalogue, at change {position} of {end}{problem}")),
        Some(seconds) if *seconds > max_seconds as f64 => {
            Err(format!("behind the catalogue for {seconds:.0} s, at change {position} of {end}{problem}"))
        }
        Some(_) => Ok(()),
    }
}

/// Runs a search. Returns whether the ledger answers, or why a search would fail.
async fn probe_search(service: &SearchService) -> Result<bool, &'static str> {
    let served = service.serving.served();
    let search = async {
        served.check_encoder().await?;
        let mut vector = vec![0.0; served.record().dimensions as usize];
        vector[0] = 1.0;
        served.index().nearest(VectorQuery::new(&vector, 1), None).await
    };
    match timeout(PROBE, search).await {
        // a full queue means that the service works
        Ok(Ok(_) | Err(souk::Error::Busy { .. })) => {}
        Ok(Err(error)) => {
            tracing::error!(?error, "the readiness probe failed");
            return Err("the model or the index does not answer: see the log");
        }
        Err(_) => return Err("the model does not answer in time"),
    }
    Ok(timeout(STORE_PROBE, service.registry.served()).await.is_ok_and(|answer| answer.is_ok()))
}

/// Metrics in Prometheus' format
#[utoipa::path(get, path = "/metrics", tag = "operation", responses((status = 200, body = String)))]
async fn metrics() -> Response {
    souk_http::metrics().await
}
