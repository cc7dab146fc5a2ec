//! The relevance service: a query and items in, calibrated scores and levels out, over HTTP. A trained cross-encoder or the
//! simulated shop's oracle answers on the same routes (`docs/relevance.md`).
//!
//! `shapes` are what is asked and answered, `routes` what is done with it, `judge` who answers, `serve` the process. What
//! every HTTP service needs comes from `souk_http`. The caller of `run` owns socket and shutdown.

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

/// What all requests share.
pub struct Service {
    judge: JudgeBackend,
    front: Arc<Front>,
    /// Why the judge would not answer.
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

/// Answers on `listener` until `shutdown`; then what was begun is finished, within half a minute.
pub async fn run(
    listener: TcpListener,
    service: Arc<Service>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    souk_http::run(listener, routes::router(service), None, shutdown).await
}
