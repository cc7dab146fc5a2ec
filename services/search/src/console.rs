//! The web console: static files compiled into the program, to search, compare, vote, promote and follow the training.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use souk_http::Fault;

use crate::items::path_name;

const PAGE: &str = include_str!("../console/index.html");
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Files below `/console/`: name, content type and text.
const FILES: &[(&str, &str, &str)] = &[
    ("charts.js", SCRIPT, include_str!("../console/charts.js")),
    ("compare.js", SCRIPT, include_str!("../console/compare.js")),
    ("console.css", STYLE, include_str!("../console/console.css")),
    ("dialogs.js", SCRIPT, include_str!("../console/dialogs.js")),
    ("elements.js", SCRIPT, include_str!("../console/elements.js")),
    ("facets.js", SCRIPT, include_str!("../console/facets.js")),
    ("filters.js", SCRIPT, include_str!("../console/filters.js")),
    ("groups.js", SCRIPT, include_str!("../console/groups.js")),
    ("hits.js", SCRIPT, include_str!("../console/hits.js")),
    ("main.js", SCRIPT, include_str!("../console/main.js")),
    ("map.css", STYLE, include_str!("../console/map.css")),
    ("map.js", SCRIPT, include_str!("../console/map.js")),
    ("models.js", SCRIPT, include_str!("../console/models.js")),
    ("now.js", SCRIPT, include_str!("../console/now.js")),
    ("plot.js", SCRIPT, include_str!("../console/plot.js")),
    ("queries.js", SCRIPT, include_str!("../console/queries.js")),
    ("round.js", SCRIPT, include_str!("../console/round.js")),
    ("rounds.js", SCRIPT, include_str!("../console/rounds.js")),
    ("route.js", SCRIPT, include_str!("../console/route.js")),
    ("search.js", SCRIPT, include_str!("../console/search.js")),
    ("service.js", SCRIPT, include_str!("../console/service.js")),
    ("training.css", STYLE, include_str!("../console/training.css")),
    ("training.js", SCRIPT, include_str!("../console/training.js")),
    ("versions.js", SCRIPT, include_str!("../console/versions.js")),
    ("votes.js", SCRIPT, include_str!("../console/votes.js")),
    ("words.js", SCRIPT, include_str!("../console/words.js")),
];

pub async fn page() -> Response {
    answer("text/html; charset=utf-8", PAGE)
}

pub async fn file(name: Result<Path<String>, PathRejection>) -> Result<Response, Fault> {
    let name = path_name(name)?;
    let known = FILES.iter().find(|(known, ..)| *known == name);
    let missing = || Fault::not_found(format!("the console has no file `{name}`"));
    known.map(|&(_, kind, text)| answer(kind, text)).ok_or_else(missing)
}

/// Serves a file with headers that block scripts and content from elsewhere, whatever the catalogue's texts contain.
fn answer(kind: &'static str, body: &'static str) -> Response {
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
