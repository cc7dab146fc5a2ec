//! JSON responses.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Response with a JSON body and its content type.
pub fn json_body(value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot serialise the response");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
