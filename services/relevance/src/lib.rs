//! The relevance service: a query and items in, calibrated scores and levels out, over HTTP. A trained cross-encoder or the
//! simulated shop's oracle answers on the same routes (`docs/relevance.md`).
//!
//! `shapes` are what is asked and answered, `routes` what is done with it, `judge` who answers, `fault` every way to say
//! no, `keys` who may ask, `around` what every request goes through, `serve` the process. The caller of `run` owns socket
//! and shutdown. Nothing that comes over the wire panics or takes unbounded memory.

mod around;
mod fault;
mod judge;
mod keys;
mod oracle;
mod routes;
mod serve;
mod shapes;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use souk::relevance::ServeSettings;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

pub use self::judge::Judge;
pub use self::keys::Keys;
pub use self::oracle::OracleJudge;
pub use self::serve::serve;

/// How long requests in work may take to end once the service was asked to.
const GRACE: Duration = Duration::from_secs(30);

/// What all requests share.
pub struct Service {
    judge: Judge,
    keys: Keys,
    settings: ServeSettings,
    /// One for each request that may be read or judged.
    room: Arc<Semaphore>,
}

impl Service {
    pub fn new(judge: Judge, keys: Keys, settings: ServeSettings) -> souk::Result<Self> {
        settings.check()?;
        let room = Arc::new(Semaphore::new(settings.most_requests));
        Ok(Self { judge, keys, settings, room })
    }
}

/// Answers on `listener` until `shutdown`; then what was begun is finished, within half a minute.
pub async fn run(
    listener: TcpListener,
    service: Arc<Service>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (tell, mut told) = watch::channel(false);
    let asked = async move {
        // an error says that nobody is left to tell
        drop(told.wait_for(|stop| *stop).await);
    };
    let served = axum::serve(listener, routes::router(service)).with_graceful_shutdown(asked);
    tokio::select! {
        ended = served => ended,
        () = async move {
            shutdown.await;
            tell.send_replace(true);
            tokio::time::sleep(GRACE).await;
        } => Ok(()),
    }
}
