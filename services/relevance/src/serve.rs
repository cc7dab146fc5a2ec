//! The process: opens what answers, binds the socket, and ends on SIGTERM or Ctrl-C.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use souk::config::Config;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{Judge, Keys, OracleJudge, Service, run};

/// Serves the configured model, or the oracle of a simulated shop. `ready` hears of the address and who answers, once
/// requests are taken. Returns after a signal, when what was begun is answered.
pub fn serve(
    config: &Config,
    oracle: Option<&Path>,
    ready: impl FnOnce(SocketAddr, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let settings = config.relevance.serve.clone();
    settings.check()?;
    let keys = Keys::open(settings.key_file.as_deref())?;
    let judge = match oracle {
        Some(shop) => Judge::Oracle(Box::new(OracleJudge::load(shop)?)),
        None => Judge::of_model(config.open_relevance()?, settings.worker)?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let mut signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
        let listener = TcpListener::bind(&settings.listen)
            .await
            .map_err(|e| souk::Error::config("relevance.serve.listen", "cannot listen there").because(e))?;
        let address = listener.local_addr().context("cannot tell the address")?;
        if keys.is_empty() && !address.ip().is_loopback() {
            tracing::warn!(%address, "everybody who reaches this address may ask: give keys");
        }
        ready(address, judge.id())?;
        let service = Arc::new(Service::new(judge, keys, settings)?);
        let shutdown = async move {
            let [terminate, interrupt] = &mut signals;
            tokio::select! { () = heard(terminate) => {}, () = heard(interrupt) => {} }
        };
        run(listener, service, shutdown).await.context("the listener failed")
    })
}

/// Never, where a signal cannot be listened for.
async fn heard(signal: &mut std::io::Result<Signal>) {
    match signal {
        Ok(signal) => drop(signal.recv().await),
        Err(error) => {
            tracing::warn!(%error, "a signal cannot be listened for");
            std::future::pending::<()>().await;
        }
    }
}
