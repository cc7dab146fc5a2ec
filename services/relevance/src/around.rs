//! What every request goes through: a name, a clock and a count around all of them; a key and a place around those that
//! ask for judgement, before a byte of their bodies is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use souk::telemetry::RELEVANCE_REQUESTS;

use crate::Service;
use crate::fault::Fault;
use crate::routes::ROUTES;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Milliseconds from the request's head to the answer's, as TEI calls them.
const TOTAL_TIME: HeaderName = HeaderName::from_static("x-total-time");
const LONGEST_ID: usize = 128;

pub async fn note(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request_id(request.headers());
    // names from outside would make metrics without end
    let route = ROUTES.into_iter().find(|route| *route == request.uri().path()).unwrap_or("other");
    let mut response = next.run(request).await;
    let seconds = began.elapsed().as_secs_f64();
    let status = response.status().as_u16();
    RELEVANCE_REQUESTS.answered(route, status, seconds);
    tracing::info!(route, status, seconds, id = id.to_str().unwrap_or_default(), "answered");
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    if let Ok(time) = HeaderValue::from_str(&format!("{:.3}", 1e3 * seconds)) {
        headers.insert(TOTAL_TIME, time);
    }
    response
}

/// The caller's own, if it can be shown; otherwise a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let plain =
        |id: &&HeaderValue| (1..=LONGEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    match headers.get(REQUEST_ID).filter(plain) {
        Some(id) => id.clone(),
        None => {
            let id = format!("{:x}-{:x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("unnamed"))
        }
    }
}

pub async fn admit(State(service): State<Arc<Service>>, request: Request, next: Next) -> Response {
    if !service.keys.admit(request.headers()) {
        return Fault::unknown_key().into_response();
    }
    let Ok(_place) = service.room.clone().try_acquire_owned() else {
        let most = service.settings.most_requests;
        return Fault::busy(format!("{most} requests are in work: try again")).into_response();
    };
    next.run(request).await
}
