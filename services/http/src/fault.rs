//! Error responses: a status, and a body in OpenAI's nested format. The only place where library errors become HTTP responses.
//! Internal errors are logged, and their causes are not sent to the client.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use souk_io::Error;

use crate::json::json_body;
use crate::role::Role;

#[derive(Debug)]
pub struct Fault {
    status: StatusCode,
    message: String,
    /// The invalid field.
    param: Option<String>,
    code: &'static str,
}

impl Fault {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code }
    }

    /// The body is not a request of this route.
    pub fn malformed(param: Option<String>, message: impl Into<String>) -> Self {
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, "malformed", message) }
    }

    /// The request is well-formed but cannot be answered.
    pub fn unprocessable(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        Self { param, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unprocessable", message) }
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes: send less per request");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    pub fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too_slow", "the body did not arrive in time")
    }

    pub fn unknown_key() -> Self {
        let message = "send a valid key as `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// The key lacks a role.
    pub fn forbidden(key: &str, role: Role) -> Self {
        let message = format!("the key `{key}` has no role `{role}`, which this route needs");
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// A browser's request from a page of another origin.
    pub fn foreign(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "foreign", message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The current state does not allow the request.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub fn too_late(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "too_late", message)
    }

    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", message)
    }

    pub fn not_ready(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message)
    }

    /// Changes are refused for now.
    pub fn read_only(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "read_only", message)
    }

    /// `routes` lists the valid routes.
    pub fn no_route(routes: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "no_route", routes)
    }

    pub fn wrong_method() -> Self {
        let message = "this route takes other methods: see the header Allow";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", message)
    }

    /// The error type that OpenAI clients distinguish.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Busy { .. } => Self::busy(error.to_string()),
            Error::Input { .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unprocessable", error.to_string()),
            Error::Upstream { ref service, retryable: true, .. } => {
                let message = format!("{service} does not answer: try again");
                tracing::warn!(?error, "a dependency did not answer");
                Self::not_ready(message)
            }
            error => {
                tracing::error!(?error, "request failed");
                let message = "the request failed: see the service's log";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message)
            }
        }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let error = json!({"message": self.message, "type": self.kind(), "param": self.param, "code": self.code});
        let mut response = (self.status, json_body(&json!({"error": error}))).into_response();
        let headers = response.headers_mut();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
