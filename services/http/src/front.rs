//! Middleware: a request id, a timer and metrics around every request; key and concurrency checks around those that cost
//! something. A request takes a place when its body is here, so slow clients keep nobody out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use souk_io::telemetry::{self, RequestMetrics, join};
use tokio::sync::Semaphore;
use tracing::Instrument;
use tracing::field::Empty;

use crate::body::BodyReceiver;
use crate::fault::Fault;
use crate::keys::Keys;
use crate::origin;
use crate::role::Role;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Milliseconds from request to response headers, as in TEI.
const TOTAL_TIME: HeaderName = HeaderName::from_static("x-total-time");
const MAX_ID: usize = 128;

/// Limits and keys of a service.
pub struct Front {
    pub(crate) keys: Keys,
    /// A permit per concurrent request.
    room: Arc<Semaphore>,
    max_requests: usize,
    bodies: BodyReceiver,
    metrics: &'static RequestMetrics,
}

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct FrontLimits {
    /// Concurrent requests.
    pub max_requests: usize,
    /// Bytes of a body.
    pub max_bytes: usize,
    /// Seconds for a body to arrive.
    pub body_seconds: u64,
}

impl Front {
    pub fn new(keys: Keys, limits: FrontLimits, metrics: &'static RequestMetrics) -> Self {
        let FrontLimits { max_requests, max_bytes, body_seconds } = limits;
        let bodies = BodyReceiver::new(max_bytes, Duration::from_secs(body_seconds), max_requests);
        Self { keys, room: Arc::new(Semaphore::new(max_requests)), max_requests, bodies, metrics }
    }

    /// Whether requests need a key.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }
}

/// Logs and counts every request, known route or not.
pub async fn record(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request_id(request.headers());
    // unknown paths would create unlimited metrics
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    // at level error, so that every log line of the request has its id
    let shown = id.to_str().unwrap_or_default();
    let span = tracing::error_span!(
        "request",
        otel.name = route,
        otel.kind = "server",
        otel.status_code = Empty,
        http.response.status_code = Empty,
        route,
        id = shown,
        key = Empty
    );
    join(&span, |name| Some(request.headers().get(name)?.to_str().ok()?.to_owned()));
    let mut response = next.run(request).instrument(span.clone()).await;
    let seconds = began.elapsed().as_secs_f64();
    let status = response.status().as_u16();
    front.metrics.record(route, status, seconds);
    span.record("http.response.status_code", i64::from(status));
    if response.status().is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    span.in_scope(|| tracing::info!(status, seconds, "answered"));
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    if let Ok(time) = HeaderValue::from_str(&format!("{:.3}", 1e3 * seconds)) {
        headers.insert(TOTAL_TIME, time);
    }
    response
}

/// The client's id if it is printable, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let plain = |id: &&HeaderValue| (1..=MAX_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    match headers.get(REQUEST_ID).filter(plain) {
        Some(id) => id.clone(),
        None => {
            let id = format!("{:x}-{:x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("unnamed"))
        }
    }
}

/// Checks the key and its role, receives the body and takes a permit. What operators do is logged under the target `audit`.
pub async fn admit(State((front, role)): State<(Arc<Front>, Role)>, request: Request, next: Next) -> Response {
    // without keys, only own pages
    if front.keys.is_empty()
        && let Err(fault) = origin::check(request.headers())
    {
        return fault.into_response();
    }
    let key = match front.keys.check(request.headers(), role) {
        Ok(key) => key,
        Err(fault) => return fault.into_response(),
    };
    tracing::Span::current().record("key", &key);
    let request = match front.bodies.receive(request).await {
        Ok(request) => request,
        Err(fault) => return fault.into_response(),
    };
    let Ok(_permit) = front.room.clone().try_acquire_owned() else {
        let limit = front.max_requests;
        return Fault::busy(format!("{limit} requests are in progress: try again")).into_response();
    };
    if role == Role::Operate {
        // before it runs: it may go on although the caller has left
        tracing::info!(target: "audit", key, method = %request.method(), path = request.uri().path(), "an operator's request");
    }
    next.run(request).await
}

/// Metrics in Prometheus' format.
pub async fn metrics() -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], telemetry::render()).into_response()
}
