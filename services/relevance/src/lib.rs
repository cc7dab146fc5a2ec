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
use std::time::Duration;

use souk::cross_encoder::ServeSettings;
use souk::telemetry::RELEVANCE_REQUESTS;
use souk_http::{Front, Keys, Probe};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

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
}

impl Service {
    pub fn new(judge: JudgeBackend, keys: Keys, settings: &ServeSettings) -> souk::Result<Self> {
        settings.check()?;
        let front = Front {
            keys,
            room: Arc::new(Semaphore::new(settings.max_requests)),
            max_requests: settings.max_requests,
            max_bytes: settings.max_bytes,
            body_time: Duration::from_secs(settings.body_seconds),
            metrics: &RELEVANCE_REQUESTS,
        };
        Ok(Self { judge, front: Arc::new(front), probe: Probe::default(), max_items: settings.max_items })
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
