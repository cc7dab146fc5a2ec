//! Process of a service: binds the socket before anything is loaded, and shuts down gracefully on SIGTERM or Ctrl-C.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use axum::Router;
use souk_io::Error;
use souk_serving::search::Tls;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::listen::Server;
use crate::tls::Certificate;

/// Address of a service; displays as its URL.
#[derive(Clone, Copy)]
pub struct Endpoint {
    pub address: SocketAddr,
    scheme: &'static str,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.address)
    }
}

/// Binds `listen`, the value of the configuration key `key`, and serves the router from `open` until a signal. Returns what
/// `open` returned beside the router. Calls `ready` once requests are answered; until then the service reports that it is alive and
/// not ready, and a signal ends the process at once.
pub async fn serve<T>(
    listen: &str,
    key: &str,
    tls: Option<&Tls>,
    open: impl AsyncFnOnce(Endpoint) -> anyhow::Result<(Router, T)>,
    ready: impl FnOnce(Endpoint, &T) -> anyhow::Result<()>,
) -> anyhow::Result<T> {
    let certificate = tls.map(Certificate::open).transpose()?;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|e| Error::config(key, format!("cannot listen on {listen}")).because(e))?;
    let address = listener.local_addr().context("cannot read the socket's address")?;
    let endpoint = Endpoint { address, scheme: if certificate.is_some() { "https" } else { "http" } };
    let ((sender, router), (stop, stopped)) = (watch::channel(None), oneshot::channel::<()>());
    let server = Server::new(router, certificate);
    let serving = tokio::spawn(async move { server.run(listener, async { drop(stopped.await) }).await });
    let (router, kept) = open(endpoint).await?;
    let signal = shutdown_signal();
    ready(endpoint, &kept)?;
    sender.send_replace(Some(router));
    signal.await;
    drop(stop);
    serving.await.context("the server failed")?;
    Ok(kept)
}

/// Completes on SIGTERM or SIGINT. Listens from this call on.
pub fn shutdown_signal() -> impl Future<Output = ()> {
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    async move {
        let [terminate, interrupt] = &mut signals;
        tokio::select! { () = received(terminate) => {}, () = received(interrupt) => {} }
    }
}

/// Completes when the signal arrives; never if its handler could not be installed.
async fn received(signal: &mut std::io::Result<Signal>) {
    match signal {
        Ok(signal) => drop(signal.recv().await),
        Err(error) => {
            tracing::warn!(%error, "cannot listen for a signal");
            std::future::pending::<()>().await;
        }
    }
}

/// Prints an error and returns the exit code: 2 if the user has to change something, else 1.
pub fn exit_code(program: &str, outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // stderr may be closed
    let _ = writeln!(std::io::stderr(), "{program}: {error:#}");
    let usage = matches!(error.downcast_ref(), Some(Error::Config { .. } | Error::Input { .. }));
    ExitCode::from(if usage { 2 } else { 1 })
}
