//! `/models`: versions, their evaluation, and which one is served. A version and its index are swapped as one unit.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use souk::store::{NewVersion, ServedVersion, Version, VersionState};
use souk_http::{Fault, json_body, read, read_optional};
use tokio::time::timeout;

use crate::SearchService;
use crate::about::SERVED;
use crate::items::path_name;
use crate::limits::{MAX_NAME, is_longer};
use crate::registry::VersionEntry;
use crate::shapes::{
    BuildingShape, EmptyBody, ErrorResponses, GenerationShape, ModelsAnswer, PromoteAnswer, RegisterRequest,
    ReportShape, RollBackRequest, ServedShape, VersionShape,
};

/// A promotion that takes longer continues in the background, answered with 202.
const INLINE_WAIT: Duration = Duration::from_secs(2);

/// List versions, their evaluation and which is served
#[utoipa::path(get, path = "/models", tag = "models", operation_id = "list_models",
    responses((status = 200, body = ModelsAnswer), ErrorResponses), security(("key" = [])))]
pub async fn list(State(service): State<Arc<SearchService>>) -> Result<Response, Fault> {
    let read = async { Ok((service.registry.entries().await?, service.registry.served().await?)) };
    let (entries, served) = service.in_time(read).await?;
    let open = service.serving.open_versions();
    let versions = entries.into_iter().map(|entry| version(entry, &open)).collect();
    let served = served.map(|(served, _)| served_shape(served));
    Ok(json_body(&ModelsAnswer { served, building: build_shape(&service), versions }))
}

fn version(entry: VersionEntry, open: &[String]) -> VersionShape {
    let VersionEntry { version, generations, report, failure } = entry;
    let generations = generations.into_iter().map(|known| GenerationShape {
        generation: known.generation,
        state: name(&known.state),
        created_at: known.created_at,
    });
    let report = report.map(|report| ReportShape {
        split: report.split,
        created_at: report.created_at,
        metrics: report.metrics,
    });
    VersionShape {
        loaded: open.contains(&version.version),
        state: name(&version.state),
        version: version.version,
        number: version.number,
        path: version.path,
        fingerprint: version.fingerprint,
        parent: version.parent,
        created_at: version.created_at,
        metrics: version.metrics,
        generations: generations.collect(),
        report,
        failure,
    }
}

fn name(state: &impl serde::Serialize) -> String {
    serde_json::to_value(state).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

fn served_shape(served: ServedVersion) -> ServedShape {
    let ServedVersion { version, generation, promoted_at } = served;
    ServedShape { version, generation, promoted_at }
}

fn build_shape(service: &SearchService) -> Option<BuildingShape> {
    service.serving.build_progress().map(|building| BuildingShape {
        version: building.version.clone(),
        done: building.done.load(Ordering::Relaxed),
        of: building.of.load(Ordering::Relaxed),
    })
}

/// Register a trained model, or add its evaluation report
#[utoipa::path(post, path = "/models", tag = "models", request_body = RegisterRequest,
    responses((status = 200, body = VersionShape), ErrorResponses), security(("key" = [])))]
pub async fn register(State(service): State<Arc<SearchService>>, request: Request) -> Result<Response, Fault> {
    let request: RegisterRequest = read(request).await?;
    let (name, path) = (&request.version, request.path.clone());
    let is_valid = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    if name.is_empty() || is_longer(name, MAX_NAME) || !name.chars().all(is_valid) {
        let problem = format!("must have 1 to {MAX_NAME} letters, digits, dots, hyphens or underscores");
        return Err(Fault::unprocessable("version", problem));
    }
    if name == SERVED {
        let problem = format!("is `{SERVED}`, which means whatever version is served: use another name");
        return Err(Fault::unprocessable("version", problem));
    }
    if !std::path::Path::new(&path).is_dir() {
        return Err(Fault::not_found(format!("`path` is `{path}`, which is not a folder on this machine")));
    }
    let serving = service.serving.clone();
    let folder = path.clone();
    let ended = |e| souk::Error::device("cannot read the model").because(e);
    let opened = tokio::task::spawn_blocking(move || serving.fingerprint(&folder)).await.map_err(ended)?;
    let fingerprint = opened.map_err(|error| {
        tracing::warn!(?error, path, "cannot open the model");
        Fault::conflict(format!("`path` has no model that can be served: {error}"))
    })?;
    let entry = service.in_time(add_version(&service, request, fingerprint)).await?;
    Ok(json_body(&version(entry, &service.serving.open_versions())))
}

async fn add_version(
    service: &SearchService,
    request: RegisterRequest,
    fingerprint: String,
) -> Result<VersionEntry, Fault> {
    let RegisterRequest { version: name, path, parent, report } = request;
    let ledger = service.registry.ledger().await?;
    match ledger.version(&name).await? {
        None => {
            if let Some(parent) = &parent
                && ledger.version(parent).await?.is_none()
            {
                return Err(Fault::unprocessable("parent", format!("no version `{parent}`")));
            }
            let new = NewVersion { version: name.clone(), path, fingerprint, parent, metrics: json!({}) };
            ledger.add_version(&new).await?;
        }
        Some(known) if known.fingerprint == fingerprint && report.is_some() => {}
        Some(_) => {
            let problem =
                format!("version `{name}` exists: give another name, or the same model with an evaluation report");
            return Err(Fault::conflict(problem));
        }
    }
    if let Some(report) = report {
        let split = report.get("split").and_then(Value::as_str).unwrap_or("test").to_owned();
        ledger.add_report(&name, &split, &Value::Object(report)).await?;
    }
    let missing = || Fault::not_found("the version was not saved");
    let version = ledger.version(&name).await?.ok_or_else(missing)?;
    Ok(service.registry.entry(version).await?)
}

/// Serve a version; builds its index if needed
#[utoipa::path(post, path = "/models/{version}/promote", tag = "models", params(("version" = String, Path)),
    request_body(content = Option<EmptyBody>),
    responses((status = 200, body = PromoteAnswer), (status = 202, body = PromoteAnswer), ErrorResponses),
    security(("key" = [])))]
pub async fn promote(
    State(service): State<Arc<SearchService>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Fault> {
    let name = path_name(name)?;
    let EmptyBody {} = read_optional(request).await?;
    let version = service.in_time(promotable(&service, &name)).await?;
    let busy = || Fault::conflict("another version is being promoted: try again later");
    let permit = service.registry.try_start_promotion().ok_or_else(busy)?;
    let (registry, serving) = (service.registry.clone(), service.serving.clone());
    // continues if the caller disconnects
    let promoting = tokio::spawn(async move { registry.promote(&serving, &version, permit).await });
    promote_answer(&service, promoting).await
}

async fn promotable(service: &SearchService, name: &str) -> Result<Version, Fault> {
    let ledger = service.registry.ledger().await?;
    let unknown = || Fault::not_found(format!("no version `{name}`"));
    let version = ledger.version(name).await?.ok_or_else(unknown)?;
    if let VersionState::Rejected | VersionState::RolledBack = version.state {
        let problem = format!("`{name}` was rejected or rolled back: register the model under a new name");
        return Err(Fault::conflict(problem));
    }
    if !service.settings().promote_unmeasured && ledger.page_reports(name, None, 1).await?.is_empty() {
        let problem = format!(
            "`{name}` has no report of its evaluation: send metrics.json with POST /models, or set \
             search.promote_unmeasured"
        );
        return Err(Fault::conflict(problem));
    }
    Ok(version)
}

/// Roll back to the previously served version
#[utoipa::path(post, path = "/models/rollback", tag = "models", request_body(content = Option<RollBackRequest>),
    responses((status = 200, body = PromoteAnswer), (status = 202, body = PromoteAnswer), ErrorResponses),
    security(("key" = [])))]
pub async fn roll_back(State(service): State<Arc<SearchService>>, request: Request) -> Result<Response, Fault> {
    let RollBackRequest { version } = read_optional(request).await?;
    // roll back what is served now, whatever is promoted meanwhile
    let nothing = || Fault::conflict("no version is served: nothing to roll back");
    let (served, _) = served(&service).await?.ok_or_else(nothing)?;
    let version = version.unwrap_or(served.version);
    let (registry, serving) = (service.registry.clone(), service.serving.clone());
    let rolling = tokio::spawn(async move { registry.roll_back(&serving, &version).await });
    promote_answer(&service, rolling).await
}

async fn served(service: &SearchService) -> Result<Option<(ServedVersion, Version)>, Fault> {
    service.in_time(async { Ok(service.registry.served().await?) }).await
}

/// Answers with the served version if the change finished quickly, else with the running build.
async fn promote_answer(
    service: &SearchService,
    mut changing: tokio::task::JoinHandle<souk::Result<()>>,
) -> Result<Response, Fault> {
    let Ok(ended) = timeout(INLINE_WAIT, &mut changing).await else {
        let body = json_body(&PromoteAnswer { served: None, building: build_shape(service) });
        return Ok((StatusCode::ACCEPTED, body).into_response());
    };
    let broken = |e| souk::Error::device("the change was interrupted").because(e);
    match ended.map_err(broken)? {
        Ok(()) => {}
        Err(
            error @ (souk::Error::Input { .. }
            | souk::Error::Config { .. }
            | souk::Error::Data { .. }
            | souk::Error::Upstream { retryable: false, .. }),
        ) => return Err(Fault::conflict(error.to_string())),
        Err(error) => return Err(error.into()),
    }
    let served = served(service).await?.map(|(served, _)| served_shape(served));
    Ok(json_body(&PromoteAnswer { served, building: None }))
}
