//! The process around a service: binds the socket before anything is opened, and ends on SIGTERM or Ctrl-C when what was
//! begun is answered.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use axum::Router;
use souk::Error;
use souk::search::Tls;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::listen::Door;
use crate::tls::Certificate;

/// Where a service is asked. Shown as the URL that its callers use.
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

/// Binds `listen`, which the configuration calls `place`, and serves the router that `open` gives until a signal; what it
/// gives beside that is kept so long, and given back. `ready` hears of where the service is asked once requests are answered.
/// Until then it says that it lives and is not ready; a signal ends the process at once, with whatever is being built.
pub async fn serve<T>(
    (listen, place): (&str, &str),
    tls: Option<&Tls>,
    open: impl AsyncFnOnce(Endpoint) -> anyhow::Result<(Router, T)>,
    ready: impl FnOnce(Endpoint, &T) -> anyhow::Result<()>,
) -> anyhow::Result<T> {
    let certificate = tls.map(Certificate::open).transpose()?;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|e| Error::config(place, format!("cannot listen on {listen}")).because(e))?;
    let address = listener.local_addr().context("cannot tell the address")?;
    let endpoint = Endpoint { address, scheme: if certificate.is_some() { "https" } else { "http" } };
    let ((give, given), (end, ended)) = (watch::channel(None), oneshot::channel::<()>());
    let door = Door::new(given, certificate);
    let keeping = tokio::spawn(async move { door.keep(listener, async { drop(ended.await) }).await });
    let (router, kept) = open(endpoint).await?;
    let end_of_it = asked_to_end();
    ready(endpoint, &kept)?;
    give.send_replace(Some(router));
    end_of_it.await;
    drop(end);
    keeping.await.context("the socket was given up")?;
    Ok(kept)
}

/// Returns once the process is told to end. Listens from this call on.
pub fn asked_to_end() -> impl Future<Output = ()> {
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    async move {
        let [terminate, interrupt] = &mut signals;
        tokio::select! { () = heard(terminate) => {}, () = heard(interrupt) => {} }
    }
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

/// The end of a program: 2 where its caller has something to change, which it is told.
pub fn exit_code(program: &str, outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // with nobody to read it, the exit code is all that is left to say
    let _ = writeln!(std::io::stderr(), "{program}: {error:#}");
    let usage = matches!(error.downcast_ref(), Some(Error::Config { .. } | Error::Input { .. }));
    ExitCode::from(if usage { 2 } else { 1 })
}
