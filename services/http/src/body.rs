//! Bytes to a request, and an answer to bytes.

use std::sync::Arc;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::fault::Fault;
use crate::front::Front;

/// The body as what the route takes, within the bounds of size and time.
pub async fn read<T: DeserializeOwned>(front: &Arc<Front>, request: Request) -> Result<T, Fault> {
    parse(&bytes(front, request).await?)
}

/// As `read`; an empty body, or null, is the default.
pub async fn read_optional<T: DeserializeOwned + Default>(front: &Arc<Front>, request: Request) -> Result<T, Fault> {
    let body = bytes(front, request).await?;
    if body.is_empty() { Ok(T::default()) } else { Ok(parse::<Option<T>>(&body)?.unwrap_or_default()) }
}

/// The body as it came, within the bounds.
pub(crate) async fn bytes(front: &Front, request: Request) -> Result<Bytes, Fault> {
    let most = front.max_bytes;
    // what is announced as too much is not waited for
    if request.body().size_hint().lower() > most as u64 {
        return Err(Fault::too_large(most));
    }
    let body = timeout(front.body_time, Bytes::from_request(request, &())).await.map_err(|_| Fault::too_slow())?;
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Fault::too_large(most),
        _ => Fault::malformed(None, BoxError::from(rejection).to_string()),
    })
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        // what lies where no field was begun
        let named = path != "." && !path.contains('?');
        Fault::malformed(named.then_some(path), error.inner().to_string())
    })?;
    json.end().map_err(|error| Fault::malformed(None, error.to_string()))?;
    Ok(parsed)
}

/// A JSON body with its type.
pub fn json_body(value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written as JSON");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
