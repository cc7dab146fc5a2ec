//! `/training` and `/rounds`: what the trainer does and has done. Asks the trainer over HTTP; of a training folder, only the curves are
//! known.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{self, State};
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde_json::Value;
use souk::report::TrainingLog;
use souk::reward::{Failure, FailureKind, Http};
use souk::search::SearchSettings;
use souk::{Error, Result};
use souk_http::{Fault, json_body};
use tokio::task::spawn_blocking;

use crate::SearchService;
use crate::shapes::{ErrorResponses, RoundAnswer, RoundsAnswer, TrainingAnswer};

const SETTING: &str = "search.training";
/// Timeout of a request to the trainer.
const PATIENCE: Duration = Duration::from_secs(4);

/// Where training is shown from.
enum Source {
    Nothing,
    Folder(PathBuf),
    Trainer(Http),
}

/// Get the curves of the running training, and what the trainer does
#[utoipa::path(get, path = "/training", tag = "models",
    responses((status = 200, body = TrainingAnswer), ErrorResponses), security(("key" = [])))]
pub async fn training(State(service): State<Arc<SearchService>>) -> std::result::Result<Response, Fault> {
    let settings = service.settings();
    let answer = in_background(move || match Source::open(&settings)? {
        Source::Nothing => Ok(TrainingAnswer::default()),
        Source::Folder(folder) => Ok(TrainingAnswer { log: curves(&folder)?, now: None }),
        Source::Trainer(http) => ask(&http, "training")?.ok_or_else(no_trainer),
    });
    Ok(json_body(&answer.await?))
}

/// List the trainer's rounds, newest first
#[utoipa::path(get, path = "/rounds", tag = "models",
    responses((status = 200, body = RoundsAnswer), ErrorResponses), security(("key" = [])))]
pub async fn rounds(State(service): State<Arc<SearchService>>) -> std::result::Result<Response, Fault> {
    let settings = service.settings();
    let answer = in_background(move || match Source::open(&settings)? {
        Source::Nothing | Source::Folder(_) => Ok(RoundsAnswer { rounds: None }),
        Source::Trainer(http) => ask(&http, "rounds")?.ok_or_else(no_trainer),
    });
    Ok(json_body(&answer.await?))
}

/// Get a round: what it learned, how the gate decided, and which queries changed
#[utoipa::path(get, path = "/rounds/{number}", tag = "models", operation_id = "round",
    params(("number" = u64, Path, description = "Number of the round")),
    responses((status = 200, body = RoundAnswer), ErrorResponses), security(("key" = [])))]
pub async fn round(
    State(service): State<Arc<SearchService>>,
    number: std::result::Result<extract::Path<u64>, PathRejection>,
) -> std::result::Result<Response, Fault> {
    let extract::Path(number) =
        number.map_err(|rejection| Fault::malformed(Some("number".into()), rejection.body_text()))?;
    let settings = service.settings();
    let found: Option<RoundAnswer> = in_background(move || match Source::open(&settings)? {
        Source::Nothing | Source::Folder(_) => Ok(None),
        Source::Trainer(http) => ask(&http, &format!("rounds/{number}")),
    })
    .await?;
    let unknown = || Fault::not_found(format!("there is no round {number}: GET /rounds lists the rounds"));
    found.map(|found| json_body(&found)).ok_or_else(unknown)
}

impl Source {
    fn open(settings: &SearchSettings) -> Result<Self> {
        let Some(place) = &settings.training else { return Ok(Self::Nothing) };
        if !["http", "https"].contains(&place.scheme()) {
            return Ok(Self::Folder(place.secret().into()));
        }
        Http::open(place, "", settings.training_key_env.as_deref()).map(Self::Trainer)
    }
}

/// The server has no such routes.
fn no_trainer() -> Error {
    upstream("is not the address of a trainer of this version: check it".into(), false)
}

fn upstream(problem: String, retryable: bool) -> Error {
    Error::Upstream { service: SETTING.into(), problem, retryable, source: None }
}

fn curves(folder: &Path) -> Result<Option<Value>> {
    let log = TrainingLog::load(folder)?.map(|log| log.thinned(TrainingLog::SHOWN));
    let broken = |e| Error::device("cannot write the curves as JSON").because(e);
    log.map(|log| serde_json::to_value(log).map_err(broken)).transpose()
}

/// The trainer's answer; none if it has no such thing.
fn ask<T: DeserializeOwned>(http: &Http, path: &str) -> Result<Option<T>> {
    let answer = http.get(path, PATIENCE).map_err(|Failure { kind, problem, .. }| {
        upstream(format!("the trainer {problem}"), kind == FailureKind::Passing)
    })?;
    let unknown = |e| upstream(format!("the trainer is of another version of Souk: {e}"), false);
    answer.map(|answer| serde_json::from_value(answer).map_err(unknown)).transpose()
}

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> std::result::Result<T, Fault> {
    let ended = |e| Error::device("the request was interrupted").because(e);
    spawn_blocking(work).await.map_err(ended)?.map_err(|error| match error {
        // only the console asks, and its reader can mend the setting
        Error::Upstream { .. } | Error::Config { .. } => Fault::not_ready(error.with_causes()),
        error => error.into(),
    })
}
