//! Which models answer, in the formats of other programs: `/v1/models` of OpenAI's API, `/info` of TEI's.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use souk::search::OpenGeneration;
use souk_http::{Fault, json_body};

use crate::SearchService;
use crate::shapes::{ErrorResponses, InfoAnswer, ModelShape, OpenaiModels};

/// Name by which requests mean the version that is served at the time.
pub const SERVED: &str = "served";

/// The open version of that name, or the served one.
pub async fn find(service: &SearchService, name: &str) -> Result<Arc<OpenGeneration>, Fault> {
    if name == SERVED {
        return Ok(service.serving.served());
    }
    let unknown = || {
        let open = service.serving.open_versions().join(", ");
        Fault::not_found(format!("the model `{name}` does not exist; use `{SERVED}`, or an open version: {open}"))
    };
    service.serving.version(name).await?.ok_or_else(unknown)
}

/// List the models that embed, in OpenAI's format
#[utoipa::path(get, path = "/v1/models", tag = "embedding",
    responses((status = 200, body = OpenaiModels), ErrorResponses), security(("key" = [])))]
pub async fn openai_models(State(service): State<Arc<SearchService>>) -> Response {
    let open = service.serving.open_versions();
    let names = std::iter::once(SERVED.to_owned()).chain(open);
    let data = names.map(|id| ModelShape { id, object: "model", created: 0, owned_by: "souk" }).collect();
    json_body(&OpenaiModels { object: "list", data })
}

/// Describe the served model, in TEI's format
#[utoipa::path(get, path = "/info", tag = "embedding",
    responses((status = 200, body = InfoAnswer), ErrorResponses), security(("key" = [])))]
pub async fn info(State(service): State<Arc<SearchService>>) -> Response {
    let (served, settings) = (service.serving.served(), service.settings());
    let bounds = &settings.bounds;
    let record = served.record();
    json_body(&InfoAnswer {
        model_id: record.version.clone(),
        model_sha: record.model.clone(),
        dimensions: record.dimensions,
        max_input_length: served.max_tokens(),
        max_client_batch_size: bounds.max_texts,
        max_concurrent_requests: bounds.max_requests,
        auto_truncate: true,
        version: env!("CARGO_PKG_VERSION"),
    })
}
