//! Process of a service: binds the socket before anything is loaded, and shuts down gracefully on SIGTERM or Ctrl-C.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use souk_io::tls::Tls;
use souk_io::{Error, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::front::metrics;
use crate::keys::Keys;
use crate::listen::{Server, run};
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

/// Where a service listens, and who may use it: settings of one section of the configuration.
#[derive(Clone, Copy)]
pub struct Entrance<'a> {
    /// Name of the section, such as `search`.
    pub section: &'a str,
    pub listen: &'a str,
    /// Address of `/metrics`, if it is another one.
    pub metrics_listen: Option<&'a str>,
    pub tls: Option<&'a Tls>,
    pub key_file: Option<&'a Path>,
    /// Environment variable with more keys.
    pub key_variable: &'a str,
    /// Whether others may reach the service although it has no keys.
    pub allow_no_keys: bool,
}

impl Entrance<'_> {
    async fn bind(&self, setting: &str, address: &str) -> Result<TcpListener> {
        let place = format!("{}.{setting}", self.section);
        let bound = TcpListener::bind(address).await;
        bound.map_err(|e| Error::config(place, format!("cannot listen on {address}")).because(e))
    }

    fn check(&self, address: SocketAddr, keys: &Keys) -> Result<()> {
        if self.allow_no_keys || !keys.is_empty() || address.ip().is_loopback() {
            return Ok(());
        }
        let Self { section, key_variable, .. } = self;
        let problem = format!(
            "is {address}, which others can reach, and there are no keys: give keys in {key_variable} or {section}.key_file, or set \
             {section}.allow_no_keys = true if only trusted programs reach it"
        );
        Err(Error::config(format!("{section}.listen"), problem))
    }
}

/// Binds the entrance's address, and serves the router from `open` until a signal. Returns what `open` returned beside the router.
/// Calls `ready` once requests are answered; until then the service reports that it is alive and not ready, and a signal ends the
/// process at once.
pub async fn serve<T>(
    entrance: &Entrance<'_>,
    open: impl AsyncFnOnce(Endpoint, Keys) -> anyhow::Result<(Router, T)>,
    ready: impl FnOnce(Endpoint, &T) -> anyhow::Result<()>,
) -> anyhow::Result<T> {
    let keys = Keys::open(entrance.key_file, entrance.key_variable)?;
    let certificate = entrance.tls.map(Certificate::open).transpose()?;
    let listener = entrance.bind("listen", entrance.listen).await?;
    let address = listener.local_addr().context("cannot read the socket's address")?;
    entrance.check(address, &keys)?;
    if let Some(listen) = entrance.metrics_listen {
        let listener = entrance.bind("metrics_listen", listen).await?;
        let router = Router::new().route("/metrics", get(metrics));
        tokio::spawn(run(listener, router, None, std::future::pending()));
    }
    let endpoint = Endpoint { address, scheme: if certificate.is_some() { "https" } else { "http" } };
    let ((sender, router), (stop, stopped)) = (watch::channel(None), oneshot::channel::<()>());
    let server = Server::new(router, certificate);
    let serving = tokio::spawn(async move { server.run(listener, async { drop(stopped.await) }).await });
    let (router, kept) = open(endpoint, keys).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_reach_needs_keys() {
        let entrance = Entrance {
            section: "search",
            listen: "",
            metrics_listen: None,
            tls: None,
            key_file: None,
            key_variable: "SOUK_SEARCH_KEYS",
            allow_no_keys: false,
        };
        let (open, local): (SocketAddr, SocketAddr) = ("0.0.0.0:80".parse().unwrap(), "[::1]:80".parse().unwrap());
        let (none, some) = (Keys::default(), Keys::parse("key").unwrap());
        let error = entrance.check(open, &none).unwrap_err().to_string();
        assert!(error.contains("give keys in SOUK_SEARCH_KEYS or search.key_file"), "{error}");
        assert!(entrance.check(local, &none).is_ok() && entrance.check(open, &some).is_ok());
        assert!(Entrance { allow_no_keys: true, ..entrance }.check(open, &none).is_ok());
    }
}
