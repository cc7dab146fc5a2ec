//! The socket: takes connections, plain or over TLS, and answers on each in a task of its own, so that one that dawdles
//! keeps nobody waiting. Takes no more at a time than it can hold.

mod rest;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use souk::search::Tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use self::rest::lend;
use crate::opening::{Given, opening};
use crate::patience::{Patience, Watch, Watched};
use crate::tls::Certificate;

/// How long requests in work may take to end once the service was asked to.
const GRACE: Duration = Duration::from_secs(30);
/// Half of the descriptors that a process usually may have. More connections wait until they are taken.
const MAX_CONNECTIONS: usize = 512;

/// Answers on `listener` until `shutdown`; then what was begun is finished, within half a minute.
pub async fn run(
    listener: TcpListener,
    (router, tls): (Router, Option<&Tls>),
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let certificate = tls.map(Certificate::open).transpose().map_err(std::io::Error::other)?;
    let (_give, given) = watch::channel(Some(router));
    Door::new(given, certificate).keep(listener, shutdown).await;
    Ok(())
}

/// What a router answers.
pub(crate) async fn ask(router: Router, request: Request) -> Response {
    TowerToHyperService::new(router).call(request).await.into_response()
}

/// What every connection needs.
pub(crate) struct Door {
    given: Given,
    certificate: Option<Certificate>,
    patience: Patience,
    most: usize,
    /// All places are taken.
    crowded: AtomicBool,
}

impl Door {
    pub(crate) fn new(given: Given, certificate: Option<Certificate>) -> Self {
        let (patience, crowded) = (Patience::default(), AtomicBool::new(false));
        Self { given, certificate, patience, most: MAX_CONNECTIONS, crowded }
    }

    pub(crate) async fn keep(self, mut listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let (door, mut shutdown) = (Arc::new(self), pin!(shutdown));
        // dropped when the end has come
        let (tell, told) = watch::channel(());
        let mut connections = JoinSet::new();
        loop {
            door.crowded.store(connections.len() >= door.most, Ordering::Relaxed);
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
        let Some(certificate) = &self.certificate else { return self.answer(stream, peer, told).await };
        let handshake = timeout(self.patience.head, certificate.acceptor().accept(stream));
        let stream = tokio::select! {
            stream = handshake => stream,
            _ = told.changed() => return,
        };
        match stream {
            Ok(Ok(stream)) => self.answer(stream, peer, told).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "no handshake"),
            Err(_) => tracing::debug!(%peer, "no handshake in time"),
        }
    }

    fn router(&self) -> Router {
        self.given.borrow().clone().unwrap_or_else(|| opening(self.given.clone()))
    }

    /// One request after the other, and the one in work to its end where no more are to come.
    async fn answer<S>(&self, stream: S, peer: SocketAddr, mut told: watch::Receiver<()>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (service, watch) = (TowerToHyperService::new(self.router()), Watch::new());
        let watched = Watched { stream, watch: watch.clone() };
        let service = service_fn(|request| {
            watch.asked();
            let (request, rest) = lend(request);
            let (answer, watch) = (service.call(request), watch.clone());
            async move {
                let answer = rest.settle(answer.await?).await;
                watch.answered();
                Ok::<Response, Infallible>(answer)
            }
        });
        let mut http = http1::Builder::new();
        let mut connection = pin!(http.header_read_timeout(None).serve_connection(TokioIo::new(watched), service));
        let (mut look, mut ends) = (interval(self.patience.look()), false);
        let ended = loop {
            tokio::select! {
                ended = &mut connection => break ended,
                _ = told.changed(), if !ends => {
                    ends = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = look.tick() => if watch.is_late(&self.patience, self.crowded.load(Ordering::Relaxed)) {
                    tracing::debug!(%peer, "a connection dawdled");
                    return;
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, %peer, "a connection broke off");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Instant;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// More than what the sockets between hold.
    const LARGE: usize = 64 << 20;
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    async fn opened(change: impl FnOnce(&mut Door)) -> SocketAddr {
        let large = vec![b'a'; LARGE];
        let router = Router::new().route("/", get(async || "here")).route("/large", get(async || large));
        let mut door = Door::new(watch::channel(Some(router)).1, None);
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
        let address = opened(|door| door.patience.head = Duration::from_millis(100)).await;
        for begun in [&b""[..], &REQUEST[..REQUEST.len() - 2]] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(begun).await.unwrap();
            assert_eq!(said(&mut stream).await, "");
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        assert!(said(&mut stream).await.ends_with("here"));
    }

    /// The first answer does not wait for its body, and the next request comes on the same connection.
    #[tokio::test]
    async fn a_body_that_comes_after_its_answer_costs_no_request() {
        let address = opened(|_| ()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head =
            |length: usize| format!("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        for _ in 0..20 {
            stream.write_all(head(5).as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            stream.write_all(b"words").await.unwrap();
            let mut answer = vec![0; 4096];
            let num = timeout(Duration::from_secs(5), stream.read(&mut answer)).await.unwrap().unwrap();
            let answer = String::from_utf8_lossy(&answer[..num]).to_lowercase();
            assert!(answer.starts_with("http/1.1 404") && !answer.contains("connection: close"), "{answer}");
        }
        // one that does not come, or is too long, is not waited for, and the connection ends with a word
        let waits = head(5).replace("Host", "Expect: 100-continue\r\nHost");
        for head in [head(5), head(1 << 30), waits] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let answer = said(&mut stream).await.to_lowercase();
            assert!(answer.starts_with("http/1.1 404") && answer.contains("connection: close"), "{answer}");
        }
    }

    /// Between requests there is more time than for a head; and one that began is a head again.
    #[tokio::test]
    async fn silence_between_requests_is_no_dawdling() {
        let address = opened(|door| {
            (door.patience.head, door.patience.silence) = (Duration::from_millis(100), Duration::from_millis(1500));
        });
        let mut stream = TcpStream::connect(address.await).await.unwrap();
        let (mut answer, began) = ([0; 256], Instant::now());
        for pause in [0, 500] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            let read = stream.read(&mut answer).await.unwrap();
            assert!(answer[..read].ends_with(b"here"));
        }
        stream.write_all(b"GET / HT").await.unwrap();
        assert_eq!(said(&mut stream).await, "");
        assert!(began.elapsed() < Duration::from_millis(1500), "a head that began has no more time than any");
    }

    #[tokio::test]
    async fn who_is_silent_makes_room_for_who_waits() {
        let address = opened(|door| (door.most, door.patience.head) = (1, Duration::from_millis(500))).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = [0; 256];
        assert!(first.read(&mut answer).await.unwrap() > 0);
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(REQUEST).await.unwrap();
        assert!(said(&mut second).await.ends_with("here"));
    }

    #[tokio::test]
    async fn who_takes_no_answer_is_cut_off() {
        let address = opened(|door| {
            door.patience.reader = Duration::from_millis(200);
            door.patience.head = Duration::from_millis(200);
            door.most = 1;
        });
        let address = address.await;
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        // the only place is free again although the first reads nothing
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(REQUEST).await.unwrap();
        assert!(said(&mut second).await.ends_with("here"));
    }

    #[tokio::test]
    async fn while_the_service_opens_it_lives_and_is_not_ready() {
        let (give, given) = watch::channel(None);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(Door::new(given, None).keep(listener, pending()));
        let ask = async |path: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            said(&mut stream).await
        };
        assert!(ask("/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(ask("/readyz").await.starts_with("HTTP/1.1 503"));
        let give = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            give.send_replace(Some(Router::new().route("/", get(async || "here"))));
        };
        let (held, ()) = tokio::join!(ask("/"), give);
        assert!(held.ends_with("here"), "what is asked meanwhile waits: {held}");
        assert!(ask("/readyz").await.starts_with("HTTP/1.1 404"), "now the service itself answers");
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
