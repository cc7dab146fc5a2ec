//! The socket: takes connections, plain or over TLS, and answers on each in a task of its own, so that one that dawdles
//! keeps nobody waiting. Takes no more at a time than it can hold, and none for longer than it says something.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use souk::search::Tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::tls::Certificate;

/// How long requests in work may take to end once the service was asked to.
const GRACE: Duration = Duration::from_secs(30);
/// For a handshake, and for the head of a request to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Half of the descriptors that a process usually may have. More connections wait until they are taken.
const MOST_CONNECTIONS: usize = 512;

/// Answers on `listener` until `shutdown`; then what was begun is finished, within half a minute.
pub async fn run(
    listener: TcpListener,
    (router, tls): (Router, Option<&Tls>),
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let certificate = tls.map(Certificate::open).transpose().map_err(std::io::Error::other)?;
    Door::new(router, certificate).keep(listener, shutdown).await;
    Ok(())
}

/// What every connection needs.
pub(crate) struct Door {
    router: Router,
    certificate: Option<Certificate>,
    patience: Duration,
    most: usize,
}

impl Door {
    pub(crate) fn new(router: Router, certificate: Option<Certificate>) -> Self {
        Self { router, certificate, patience: PATIENCE, most: MOST_CONNECTIONS }
    }

    pub(crate) async fn keep(self, mut listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let (door, mut shutdown) = (Arc::new(self), pin!(shutdown));
        // dropped when the end has come
        let (tell, told) = watch::channel(());
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                // an error, such as too many open files, is logged, and the next connection is waited for after a moment
                (stream, peer) = Listener::accept(&mut listener), if connections.len() < door.most => {
                    connections.spawn(door.clone().open(stream, peer, told.clone()));
                }
                Some(_) = connections.join_next() => {}
            }
        }
        drop((listener, tell));
        let ended = timeout(GRACE, async { while connections.join_next().await.is_some() {} });
        if ended.await.is_err() {
            tracing::warn!(connections = connections.len(), "what was begun was not finished in time");
        }
    }

    async fn open(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, mut told: watch::Receiver<()>) {
        let Some(certificate) = &self.certificate else { return self.answer(stream, told).await };
        let handshake = timeout(self.patience, certificate.acceptor().accept(stream));
        let stream = tokio::select! {
            stream = handshake => stream,
            _ = told.changed() => return,
        };
        match stream {
            Ok(Ok(stream)) => self.answer(stream, told).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "no handshake"),
            Err(_) => tracing::debug!(%peer, "no handshake in time"),
        }
    }

    /// One request after the other, and the one in work to its end where no more are to come.
    async fn answer(&self, stream: impl AsyncRead + AsyncWrite + Unpin, mut told: watch::Receiver<()>) {
        let service = TowerToHyperService::new(self.router.clone());
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.patience);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = &mut connection => ended,
            _ = told.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke off");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    async fn opened(change: impl FnOnce(&mut Door)) -> SocketAddr {
        let mut door = Door::new(Router::new().route("/", get(async || "here")), None);
        change(&mut door);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(door.keep(listener, pending()));
        address
    }

    async fn said(stream: &mut TcpStream) -> String {
        let mut answer = String::new();
        timeout(Duration::from_secs(5), stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer
    }

    #[tokio::test]
    async fn a_head_that_dawdles_is_cut_off() {
        let address = opened(|door| door.patience = Duration::from_millis(100)).await;
        for begun in [&b""[..], &REQUEST[..REQUEST.len() - 2]] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(begun).await.unwrap();
            assert_eq!(said(&mut stream).await, "");
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        assert!(said(&mut stream).await.ends_with("here"));
    }

    #[tokio::test]
    async fn more_connections_than_there_is_room_for_wait_until_one_ends() {
        let address = opened(|door| door.most = 1).await;
        let first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(REQUEST).await.unwrap();
        assert!(timeout(Duration::from_millis(100), second.readable()).await.is_err());
        drop(first);
        assert!(said(&mut second).await.ends_with("here"));
    }
}
