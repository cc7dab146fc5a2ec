//! The process: opens backend and socket.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use souk::config::Config;
use souk_http::{Endpoint, Entrance, Keys};

use crate::routes::router;
use crate::{JudgeBackend, OracleJudge, Service};

/// Environment variable with keys, separated by commas or spaces.
const KEYS: &str = "SOUK_RELEVANCE_KEYS";

/// Serves the configured model, or the oracle of a simulated shop. `ready` receives address and backend once requests are
/// served. Returns after a signal, when open requests are finished.
pub fn serve(
    config: &Config,
    oracle: Option<&Path>,
    ready: impl FnOnce(Endpoint, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let settings = &config.relevance.serve;
    settings.check()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let entrance = Entrance {
        section: "relevance.serve",
        listen: &settings.listen,
        metrics_listen: settings.metrics_listen.as_deref(),
        tls: settings.tls.as_ref(),
        key_file: settings.key_file.as_deref(),
        key_variable: KEYS,
        allow_no_keys: settings.allow_no_keys,
    };
    let open = async |_: Endpoint, keys: Keys| {
        // no other thread runs yet
        let judge = match oracle {
            Some(shop) => JudgeBackend::Oracle(Box::new(OracleJudge::load(shop, &config.item_text())?)),
            None => JudgeBackend::of_model(config.open_relevance()?, settings.worker)?,
        };
        let service = Arc::new(Service::new(judge, keys, settings)?);
        Ok((router(service.clone()), service))
    };
    let ready = |endpoint, service: &Arc<Service>| ready(endpoint, service.judge.id());
    runtime.block_on(souk_http::serve(&entrance, open, ready)).map(drop)
}
