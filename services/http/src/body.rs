//! Reads request bodies within limits of size and time, and parses them as JSON.

use std::sync::Arc;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::fault::Fault;
use crate::front::Front;

/// Reads and parses the body.
pub async fn read<T: DeserializeOwned>(front: &Arc<Front>, request: Request) -> Result<T, Fault> {
    parse(&read_bytes(front, request).await?)
}

/// Like `read`; an empty body or null gives the default.
pub async fn read_optional<T: DeserializeOwned + Default>(front: &Arc<Front>, request: Request) -> Result<T, Fault> {
    let body = read_bytes(front, request).await?;
    if body.is_empty() { Ok(T::default()) } else { Ok(parse::<Option<T>>(&body)?.unwrap_or_default()) }
}

/// Reads the raw body.
pub async fn read_bytes(front: &Front, request: Request) -> Result<Bytes, Fault> {
    let limit = front.max_bytes;
    // reject by Content-Length without reading
    if request.body().size_hint().lower() > limit as u64 {
        return Err(Fault::too_large(limit));
    }
    let body = timeout(front.body_time, Bytes::from_request(request, &())).await.map_err(|_| Fault::too_slow())?;
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Fault::too_large(limit),
        _ => Fault::malformed(None, BoxError::from(rejection).to_string()),
    })
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        // the path of an error outside any field
        let named = path != "." && !path.contains('?');
        Fault::malformed(named.then_some(path), error.inner().to_string())
    })?;
    json.end().map_err(|error| Fault::malformed(None, error.to_string()))?;
    Ok(parsed)
}
