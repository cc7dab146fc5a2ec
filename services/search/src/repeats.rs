//! Repeated writes: a write with an `Idempotency-Key` that was answered with success is answered again, not made again. Answers are in
//! `store.cache`, so with Redis every replica knows them. A cache may forget, and then the write is made again.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use souk::cache::MAX_VALUE;
use souk_http::Fault;

use crate::SearchService;

const KEY: &str = "idempotency-key";
/// Marks an answer that was kept.
const REPLAYED: &str = "idempotent-replayed";
const MAX_LENGTH: usize = 200;
const DIGEST: usize = 32;

/// Answers a repeated write, or makes it and keeps its answer.
pub async fn answer_repeats(State(service): State<Arc<SearchService>>, request: Request, next: Next) -> Response {
    let key = match entry_key(request.headers()) {
        Ok(None) => return next.run(request).await,
        Ok(Some(key)) => key,
        Err(fault) => return fault.into_response(),
    };
    let (parts, body) = request.into_parts();
    let body = match to_bytes(body, usize::MAX).await {
        Ok(body) => body,
        Err(error) => return Fault::malformed(None, error.to_string()).into_response(),
    };
    let content = digest(&[parts.method.as_str().as_bytes(), parts.uri.to_string().as_bytes(), &body]);
    let cache = service.serving.cache();
    // an unreachable cache costs the repetition, never the write
    let kept = cache.get_many(std::slice::from_ref(&key)).await.ok().and_then(|mut kept| kept.pop().flatten());
    if let Some((before, answer)) = kept.as_deref().and_then(|kept| kept.split_at_checked(DIGEST)) {
        if before != content {
            let problem = "was used for another write: take a new key for each";
            return Fault::unprocessable("Idempotency-Key", problem).into_response();
        }
        let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut response = ([json], Bytes::copy_from_slice(answer)).into_response();
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        return response;
    }
    let (head, body) = next.run(Request::from_parts(parts, Body::from(body))).await.into_parts();
    let Ok(answer) = to_bytes(body, usize::MAX).await else { return (head, Body::empty()).into_response() };
    if head.status == StatusCode::OK && answer.len() + DIGEST <= MAX_VALUE {
        let kept = [content.as_slice(), &answer].concat();
        if let Err(error) = cache.put_many(&[(key, kept.into())]).await {
            tracing::debug!(?error, "cannot keep the answer of a write");
        }
    }
    (head, answer).into_response()
}

/// The cache's key for the caller's; none if the caller gave none.
fn entry_key(headers: &HeaderMap) -> Result<Option<Vec<u8>>, Fault> {
    let Some(key) = headers.get(KEY) else { return Ok(None) };
    let key = key.as_bytes();
    if !(1..=MAX_LENGTH).contains(&key.len()) || !key.iter().all(u8::is_ascii_graphic) {
        let problem = format!("is not 1 to {MAX_LENGTH} visible ASCII characters");
        return Err(Fault::unprocessable("Idempotency-Key", problem));
    }
    // two callers may choose the same one
    let caller = headers.get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    Ok(Some([b"write:".as_slice(), &digest(&[caller, key])].concat()))
}

fn digest(parts: &[&[u8]]) -> [u8; DIGEST] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
