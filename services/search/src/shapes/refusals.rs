//! Every way to say no, as the document describes it.

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

/// Every way to say no.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes what `Fault` answers")]
pub enum Refusals {
    /// Not a request of this route
    #[response(status = 400)]
    Malformed(#[to_schema] ErrorBody),
    /// A key is needed
    #[response(status = 401)]
    UnknownKey(#[to_schema] ErrorBody),
    /// An admin's key is needed, or, where there are no keys, another page or name asked
    #[response(status = 403)]
    Forbidden(#[to_schema] ErrorBody),
    /// There is no such thing
    #[response(status = 404)]
    NotFound(#[to_schema] ErrorBody),
    /// The body did not arrive in time
    #[response(status = 408)]
    TooSlow(#[to_schema] ErrorBody),
    /// What is there does not allow it
    #[response(status = 409)]
    Conflict(#[to_schema] ErrorBody),
    /// The body is too large
    #[response(status = 413)]
    TooLarge(#[to_schema] ErrorBody),
    /// A request, but one that cannot be answered
    #[response(status = 422)]
    Unprocessable(#[to_schema] ErrorBody),
    /// Too much is asked at once: try again after the seconds in Retry-After
    #[response(status = 429)]
    Busy(#[to_schema] ErrorBody),
    /// A fault of the service; its log says more
    #[response(status = 500)]
    Failed(#[to_schema] ErrorBody),
    /// Something that is needed does not answer: try again after the seconds in Retry-After
    #[response(status = 503)]
    NotReady(#[to_schema] ErrorBody),
    /// Not done in time
    #[response(status = 504)]
    TooLate(#[to_schema] ErrorBody),
}
