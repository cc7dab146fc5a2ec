//! Relevance service: grades items for a query over HTTP, with calibrated scores and levels. A trained cross-encoder or the
//! simulated shop's oracle answers on the same routes (`docs/relevance.md`).
//!
//! `shapes` has requests and responses, `routes` the handlers, `judge` the backends, and `serve` the process. `souk_http` has
//! what all HTTP services need. The caller of `run` owns socket and shutdown.

mod judge;
mod oracle;
mod routes;
mod serve;
mod shapes;

use std::future::Future;
use std::sync::Arc;

use souk::cross_encoder::ServeSettings;
use souk::telemetry::RELEVANCE_REQUESTS;
use souk_http::{Front, FrontLimits, Keys, Probe};
use tokio::net::TcpListener;

pub use self::judge::JudgeBackend;
pub use self::oracle::OracleJudge;
pub use self::serve::serve;

/// State shared by all requests.
pub struct Service {
    judge: JudgeBackend,
    front: Arc<Front>,
    /// Error if the judge cannot answer.
    probe: Probe<Result<(), &'static str>>,
    max_items: usize,
    /// Whether `/metrics` is here, not at an address of its own.
    has_metrics: bool,
}

impl Service {
    pub fn new(judge: JudgeBackend, keys: Keys, settings: &ServeSettings) -> souk::Result<Self> {
        settings.check()?;
        let ServeSettings { max_requests, max_bytes, body_seconds, .. } = *settings;
        let front = Front::new(keys, FrontLimits { max_requests, max_bytes, body_seconds }, &RELEVANCE_REQUESTS);
        let has_metrics = settings.metrics_listen.is_none();
        Ok(Self { judge, front: Arc::new(front), probe: Probe::default(), max_items: settings.max_items, has_metrics })
    }
}

/// Serves on `listener` until `shutdown`, then finishes open requests within half a minute.
pub async fn run(
    listener: TcpListener,
    service: Arc<Service>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    souk_http::run(listener, routes::router(service), None, shutdown).await
}
