//! Error responses of the OpenAPI document.

use utoipa::{IntoResponses, ToSchema};

#[derive(ToSchema)]
#[schema(as = Error)]
#[expect(dead_code, reason = "describes what `Fault` writes")]
pub struct ErrorBody {
    error: ErrorShape,
}

#[derive(ToSchema)]
#[schema(as = ErrorDetail)]
#[expect(dead_code, reason = "describes what `Fault` writes")]
pub struct ErrorShape {
    message: String,
    r#type: String,
    param: Option<String>,
    code: String,
}

/// Error responses.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes what `Fault` answers")]
pub enum ErrorResponses {
    /// Malformed request
    #[response(status = 400)]
    Malformed(#[to_schema] ErrorBody),
    /// A key is required
    #[response(status = 401)]
    UnknownKey(#[to_schema] ErrorBody),
    /// An admin key is required; without keys: the request came from another page or host name
    #[response(status = 403)]
    Forbidden(#[to_schema] ErrorBody),
    /// Not found
    #[response(status = 404)]
    NotFound(#[to_schema] ErrorBody),
    /// The body did not arrive in time
    #[response(status = 408)]
    TooSlow(#[to_schema] ErrorBody),
    /// The current state does not allow it
    #[response(status = 409)]
    Conflict(#[to_schema] ErrorBody),
    /// The body is too large
    #[response(status = 413)]
    TooLarge(#[to_schema] ErrorBody),
    /// The request is well-formed but cannot be answered
    #[response(status = 422)]
    Unprocessable(#[to_schema] ErrorBody),
    /// Too many requests: try again after the seconds in Retry-After
    #[response(status = 429)]
    Busy(#[to_schema] ErrorBody),
    /// Internal error: see the service's log
    #[response(status = 500)]
    Failed(#[to_schema] ErrorBody),
    /// A dependency does not answer: try again after the seconds in Retry-After
    #[response(status = 503)]
    NotReady(#[to_schema] ErrorBody),
    /// Deadline exceeded
    #[response(status = 504)]
    TooLate(#[to_schema] ErrorBody),
}
