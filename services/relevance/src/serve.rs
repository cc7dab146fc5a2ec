//! The process: opens what answers, and the socket it is asked on.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use souk::config::Config;
use souk_http::{Endpoint, Keys};
use tokio::task::spawn_blocking;

use crate::routes::router;
use crate::{Judge, OracleJudge, Service};

/// The variable with keys, between commas or spaces.
const KEYS: &str = "SOUK_RELEVANCE_KEYS";

/// Serves the configured model, or the oracle of a simulated shop. `ready` hears of where the service is asked and who
/// answers, once requests are answered. Returns after a signal, when what was begun is answered.
pub fn serve(
    config: &Config,
    oracle: Option<&Path>,
    ready: impl FnOnce(Endpoint, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let settings = &config.relevance.serve;
    settings.check()?;
    let keys = Keys::open(settings.key_file.as_deref(), KEYS)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let open = async |endpoint: Endpoint| {
        if keys.is_empty() && !endpoint.address.ip().is_loopback() {
            tracing::warn!(%endpoint, "everybody who reaches this address may ask: give keys");
        }
        let (config, oracle) = (config.clone(), oracle.map(Path::to_owned));
        let opening = spawn_blocking(move || judge(&config, oracle.as_deref()));
        let judge = opening.await.context("the judge could not be opened")??;
        let service = Arc::new(Service::new(judge, keys, settings)?);
        ready(endpoint, service.judge.id())?;
        Ok(router(service))
    };
    let served = runtime.block_on(souk_http::serve((&settings.listen, "relevance.serve.listen"), None, open));
    // a model that is still being loaded is of no use to anybody now
    runtime.shutdown_background();
    served
}

fn judge(config: &Config, oracle: Option<&Path>) -> souk::Result<Judge> {
    match oracle {
        Some(shop) => Ok(Judge::Oracle(Box::new(OracleJudge::load(shop)?))),
        None => Judge::of_model(config.open_relevance()?, config.relevance.serve.worker),
    }
}
