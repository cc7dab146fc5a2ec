//! The web console: three static files compiled into the program, to search, compare, vote and promote.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

const PAGE: &str = include_str!("../console/index.html");
const STYLE: &str = include_str!("../console/console.css");
const SCRIPT: &str = include_str!("../console/console.js");

pub async fn page() -> Response {
    file("text/html; charset=utf-8", PAGE)
}

pub async fn style() -> Response {
    file("text/css; charset=utf-8", STYLE)
}

pub async fn script() -> Response {
    file("text/javascript; charset=utf-8", SCRIPT)
}

/// Serves a file with headers that block scripts and content from elsewhere, whatever the catalogue's texts contain.
fn file(kind: &'static str, body: &'static str) -> Response {
    let guards: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
        ),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (guards, body).into_response()
}
