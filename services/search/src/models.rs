//! `/models`: which versions there are, what they scored, and which is served. A version and its index move as one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use souk::report::TrainingLog;
use souk::store::{NewVersion, Served, Version, VersionState};
use souk_http::{Fault, json_body, read, read_optional};
use tokio::time::timeout;

use crate::Service;
use crate::hits::{MAX_NAME, is_longer};
use crate::items::named;
use crate::registry::Entry;
use crate::shapes::{
    BuildingShape, GenerationShape, ModelsAnswer, Nothing, PromoteAnswer, Refusals, RegisterRequest, ReportShape,
    ServedShape, TrainingAnswer, VersionShape,
};

/// A promotion that takes longer goes on by itself.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Of a curve; more are not seen on a screen.
const MAX_POINTS: usize = 1500;

/// Versions, what they scored, and what is served
#[utoipa::path(get, path = "/models", tag = "models",
    responses((status = 200, body = ModelsAnswer), Refusals), security(("key" = [])))]
pub async fn list(State(service): State<Arc<Service>>) -> Result<Response, Fault> {
    let read = async { Ok((service.registry.entries().await?, service.registry.served().await?)) };
    let (entries, served) = service.in_time(read).await?;
    let open = service.shop.open_versions();
    let versions = entries.into_iter().map(|entry| version(entry, &open)).collect();
    let served = served.map(|(served, _)| shape(served));
    Ok(json_body(&ModelsAnswer { served, building: building(&service), versions }))
}

fn version(entry: Entry, open: &[String]) -> VersionShape {
    let Entry { version, generations, report, failure } = entry;
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

fn shape(served: Served) -> ServedShape {
    let Served { version, generation, promoted_at } = served;
    ServedShape { version, generation, promoted_at }
}

fn building(service: &Service) -> Option<BuildingShape> {
    service.shop.building().map(|building| BuildingShape {
        version: building.version.clone(),
        done: building.done.load(Ordering::Relaxed),
        of: building.of.load(Ordering::Relaxed),
    })
}

/// Make a trained model known, or give the report of one that is
#[utoipa::path(post, path = "/models", tag = "models", request_body = RegisterRequest,
    responses((status = 200, body = VersionShape), Refusals), security(("key" = [])))]
pub async fn register(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Fault> {
    let asked: RegisterRequest = read(&service.front, request).await?;
    let (name, path) = (&asked.version, asked.path.clone());
    let fine = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if name.is_empty() || is_longer(name, MAX_NAME) || !name.chars().all(fine) {
        let problem = format!("a name has 1 to {MAX_NAME} letters, digits, dots, lines and underscores");
        return Err(Fault::unprocessable("version", problem));
    }
    if !std::path::Path::new(&path).is_dir() {
        return Err(Fault::unprocessable("path", format!("`{path}` is no folder that this service sees")));
    }
    let shop = service.shop.clone();
    let folder = path.clone();
    let ended = |e| souk::Error::device("the model could not be read").because(e);
    let opened = tokio::task::spawn_blocking(move || shop.fingerprint(&folder)).await.map_err(ended)?;
    let fingerprint = opened.map_err(|error| {
        tracing::warn!(?error, path, "no model");
        Fault::unprocessable("path", format!("holds no model that can be served: {error}"))
    })?;
    let entry = service.in_time(registered(&service, asked, fingerprint)).await?;
    Ok(json_body(&version(entry, &service.shop.open_versions())))
}

async fn registered(service: &Service, asked: RegisterRequest, fingerprint: String) -> Result<Entry, Fault> {
    let RegisterRequest { version: name, path, parent, report } = asked;
    let ledger = service.registry.ledger().await?;
    match ledger.version(&name).await? {
        None => {
            if let Some(parent) = &parent
                && ledger.version(parent).await?.is_none()
            {
                return Err(Fault::unprocessable("parent", format!("there is no version `{parent}`")));
            }
            let new = NewVersion { version: name.clone(), path, fingerprint, parent, metrics: json!({}) };
            ledger.add_version(&new).await?;
        }
        Some(known) if known.fingerprint == fingerprint && report.is_some() => {}
        Some(_) => {
            let problem = format!(
                "there is a version `{name}` already: give another name, or the same model with a report of its evaluation"
            );
            return Err(Fault::conflict(problem));
        }
    }
    if let Some(report) = report {
        let split = report.get("split").and_then(Value::as_str).unwrap_or("test").to_owned();
        ledger.add_report(&name, &split, &Value::Object(report)).await?;
    }
    let lost = || Fault::not_found("the version was not kept");
    let version = ledger.version(&name).await?.ok_or_else(lost)?;
    Ok(service.registry.entry(version).await?)
}

/// Serve a version, with an index of its own
#[utoipa::path(post, path = "/models/{version}/promote", tag = "models", params(("version" = String, Path)),
    request_body(content = Option<Nothing>),
    responses((status = 200, body = PromoteAnswer), (status = 202, body = PromoteAnswer), Refusals),
    security(("key" = [])))]
pub async fn promote(
    State(service): State<Arc<Service>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Fault> {
    let name = named(name)?;
    let Nothing {} = read_optional(&service.front, request).await?;
    let version = service.in_time(promotable(&service, &name)).await?;
    let going_on = || Fault::conflict("another version is being promoted: wait for it");
    let turn = service.registry.turn().ok_or_else(going_on)?;
    let (registry, shop) = (service.registry.clone(), service.shop.clone());
    // goes on where the caller leaves
    let promoting = tokio::spawn(async move { registry.promote(&shop, &version, turn).await });
    settled(&service, promoting).await
}

async fn promotable(service: &Service, name: &str) -> Result<Version, Fault> {
    let ledger = service.registry.ledger().await?;
    let unknown = || Fault::not_found(format!("there is no version `{name}`"));
    let version = ledger.version(name).await?.ok_or_else(unknown)?;
    if let VersionState::Rejected | VersionState::RolledBack = version.state {
        let problem = format!("`{name}` was rejected or rolled back before: a version does not come back");
        return Err(Fault::conflict(problem));
    }
    if !service.settings().promote_unmeasured && ledger.page_reports(name, None, 1).await?.is_empty() {
        let problem = format!(
            "`{name}` has no report of its evaluation: give metrics.json with POST /models, or set search.promote_unmeasured"
        );
        return Err(Fault::conflict(problem));
    }
    Ok(version)
}

/// Go back to what was served before
#[utoipa::path(post, path = "/models/rollback", tag = "models", request_body(content = Option<Nothing>),
    responses((status = 200, body = PromoteAnswer), (status = 202, body = PromoteAnswer), Refusals),
    security(("key" = [])))]
pub async fn roll_back(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Fault> {
    let Nothing {} = read_optional(&service.front, request).await?;
    // what is served now is what the caller wants to be rid of, whatever is promoted meanwhile
    let nothing = || Fault::conflict("nothing is served: there is nothing to roll back");
    let (served, _) = served(&service).await?.ok_or_else(nothing)?;
    let (registry, shop) = (service.registry.clone(), service.shop.clone());
    let rolling = tokio::spawn(async move { registry.roll_back(&shop, &served.version).await });
    settled(&service, rolling).await
}

async fn served(service: &Service) -> Result<Option<(Served, Version)>, Fault> {
    service.in_time(async { Ok(service.registry.served().await?) }).await
}

/// What is served where that was quick, else that something is being built.
async fn settled(
    service: &Service,
    mut changing: tokio::task::JoinHandle<souk::Result<()>>,
) -> Result<Response, Fault> {
    let Ok(ended) = timeout(AT_ONCE, &mut changing).await else {
        let body = json_body(&PromoteAnswer { served: None, building: building(service) });
        return Ok((StatusCode::ACCEPTED, body).into_response());
    };
    let broken = |e| souk::Error::device("the change was broken off").because(e);
    match ended.map_err(broken)? {
        Ok(()) => {}
        Err(error @ (souk::Error::Input { .. } | souk::Error::Config { .. } | souk::Error::Data { .. })) => {
            return Err(Fault::conflict(error.to_string()));
        }
        Err(error) => return Err(error.into()),
    }
    let served = served(service).await?.map(|(served, _)| shape(served));
    Ok(json_body(&PromoteAnswer { served, building: None }))
}

/// Curves of the training that goes on
#[utoipa::path(get, path = "/training", tag = "models",
    responses((status = 200, body = TrainingAnswer), Refusals), security(("key" = [])))]
pub async fn training(State(service): State<Arc<Service>>) -> Result<Response, Fault> {
    let Some(folder) = service.settings().training.clone() else { return Ok(json_body(&TrainingAnswer { log: None })) };
    let ended = |e| souk::Error::device("the log could not be read").because(e);
    let log = tokio::task::spawn_blocking(move || TrainingLog::load(&folder)).await.map_err(ended)??;
    let log = log.map(|log| {
        let log = log.thinned(MAX_POINTS);
        [
            ("loss", json!(log.loss)),
            ("learning_rate", json!(log.learning_rate)),
            ("reward", json!(log.reward)),
            ("levels", json!(log.levels)),
            ("kl", json!(log.kl)),
            ("entropy", json!(log.entropy)),
        ]
        .into()
    });
    Ok(json_body(&TrainingAnswer { log }))
}
