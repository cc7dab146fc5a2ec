//! Responses while a service is still starting: alive, not ready. Other requests wait for a few seconds, because the service
//! usually starts in one.

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use crate::fault::Fault;

const MAX_WAIT: Duration = Duration::from_secs(5);
const STARTING: &str = "the service is starting: try again";

/// The service's router, once there is one.
pub type RouterReceiver = Receiver<Option<Router>>;

pub fn starting(router: RouterReceiver) -> Router {
    Router::new().fallback(wait).with_state(router)
}

async fn wait(State(mut router): State<RouterReceiver>, request: Request) -> Response {
    if router.borrow().is_none() {
        match request.uri().path() {
            "/healthz" => return "ok\n".into_response(),
            "/readyz" => return Fault::not_ready(STARTING).into_response(),
            _ => {}
        }
    }
    let ready = timeout(MAX_WAIT, router.wait_for(Option::is_some)).await;
    let Some(router) = ready.ok().and_then(|router| router.ok()?.clone()) else {
        return Fault::not_ready(STARTING).into_response();
    };
    call(router, request).await
}

async fn call(router: Router, request: Request) -> Response {
    TowerToHyperService::new(router).call(request).await.into_response()
}
