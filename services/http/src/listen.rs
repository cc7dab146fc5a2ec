//! The process around a service: binds the socket, and ends on SIGTERM or Ctrl-C when what was begun is answered.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use souk::search::Tls;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::tls::{TlsListener, acceptor};

/// How long requests in work may take to end once the service was asked to.
const GRACE: Duration = Duration::from_secs(30);

/// Answers on `listener` until `shutdown`; then what was begun is finished, within half a minute.
pub async fn run(
    listener: TcpListener,
    (router, tls): (Router, Option<&Tls>),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (tell, mut told) = watch::channel(false);
    let asked = async move {
        // an error says that nobody is left to tell
        drop(told.wait_for(|stop| *stop).await);
    };
    let served = async {
        match tls {
            None => axum::serve(listener, router).with_graceful_shutdown(asked).await,
            Some(tls) => {
                let acceptor = acceptor(tls).map_err(std::io::Error::other)?;
                let listener = TlsListener::start(listener, acceptor)?;
                axum::serve(listener, router).with_graceful_shutdown(asked).await
            }
        }
    };
    tokio::select! {
        ended = served => ended,
        () = async move {
            shutdown.await;
            tell.send_replace(true);
            tokio::time::sleep(GRACE).await;
        } => Ok(()),
    }
}

/// Binds `listen`, which the configuration calls `place`, and serves what `open` gives until a signal. `ready` hears of the
/// address once requests are taken.
pub async fn serve(
    (listen, place): (&str, &str),
    tls: Option<&Tls>,
    open: impl AsyncFnOnce(SocketAddr) -> anyhow::Result<Router>,
    ready: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    if let Some(tls) = tls {
        acceptor(tls)?;
    }
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|e| souk::Error::config(place, format!("cannot listen on {listen}")).because(e))?;
    let address = listener.local_addr().context("cannot tell the address")?;
    let router = open(address).await?;
    ready(address)?;
    let shutdown = async move {
        let [terminate, interrupt] = &mut signals;
        tokio::select! { () = heard(terminate) => {}, () = heard(interrupt) => {} }
    };
    run(listener, (router, tls), shutdown).await.context("the listener failed")
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
