//! The process: opens what answers, and the socket it is asked on.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use souk::config::Config;
use souk_http::Keys;

use crate::routes::router;
use crate::{Judge, OracleJudge, Service};

/// The variable with keys, between commas or spaces.
const KEYS: &str = "SOUK_RELEVANCE_KEYS";

/// Serves the configured model, or the oracle of a simulated shop. `ready` hears of the address and who answers, once
/// requests are taken. Returns after a signal, when what was begun is answered.
pub fn serve(
    config: &Config,
    oracle: Option<&Path>,
    ready: impl FnOnce(SocketAddr, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let settings = config.relevance.serve.clone();
    settings.check()?;
    let keys = Keys::open(settings.key_file.as_deref(), KEYS)?;
    let judge = match oracle {
        Some(shop) => Judge::Oracle(Box::new(OracleJudge::load(shop)?)),
        None => Judge::of_model(config.open_relevance()?, settings.worker)?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let name = judge.id().to_owned();
        let open = async |address: SocketAddr| {
            if keys.is_empty() && !address.ip().is_loopback() {
                tracing::warn!(%address, "everybody who reaches this address may ask: give keys");
            }
            Ok(router(Arc::new(Service::new(judge, keys, &settings)?)))
        };
        let ready = |address| ready(address, &name);
        souk_http::serve((&settings.listen, "relevance.serve.listen"), None, open, ready).await
    })
}
