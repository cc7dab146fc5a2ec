//! While a service still opens what it answers from: it says that it lives, and that it is not ready. What else is asked is
//! held for a while, for most often it takes a second.

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use crate::fault::Fault;
use crate::listen::ask;

const HELD: Duration = Duration::from_secs(5);
const NOT_YET: &str = "what this service answers from is still being opened: ask again";

/// The router of a service, once there is one.
pub type Given = Receiver<Option<Router>>;

pub fn opening(given: Given) -> Router {
    Router::new().fallback(held).with_state(given)
}

async fn held(State(mut given): State<Given>, request: Request) -> Response {
    if given.borrow().is_none() {
        match request.uri().path() {
            "/healthz" => return "ok\n".into_response(),
            "/readyz" => return Fault::not_ready(NOT_YET).into_response(),
            _ => {}
        }
    }
    let given = timeout(HELD, given.wait_for(Option::is_some)).await;
    let Some(router) = given.ok().and_then(|given| given.ok()?.clone()) else {
        return Fault::not_ready(NOT_YET).into_response();
    };
    ask(router, request).await
}
