//! Accepts connections, plain or TLS, and serves each in its own task, so a slow client delays nobody. Limits the number of open
//! connections.

mod drain;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use souk_io::tls::Tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use self::drain::track;
use crate::deadlines::{ConnectionClock, Deadlines, TimedStream};
use crate::starting::{RouterReceiver, starting};
use crate::tls::Certificate;

/// Time for open requests to finish at shutdown.
const GRACE: Duration = Duration::from_secs(30);
/// Half of the usual limit on file descriptors. More connections wait in the backlog.
const MAX_CONNECTIONS: usize = 512;

/// Serves `listener` until `shutdown`, then finishes open requests within half a minute.
pub async fn run(
    listener: TcpListener,
    router: Router,
    tls: Option<&Tls>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let certificate = tls.map(Certificate::open).transpose().map_err(std::io::Error::other)?;
    let (_sender, router) = watch::channel(Some(router));
    Server::new(router, certificate).run(listener, shutdown).await;
    Ok(())
}

/// State shared by all connections.
pub(crate) struct Server {
    router: RouterReceiver,
    certificate: Option<Certificate>,
    deadlines: Deadlines,
    max_connections: usize,
    /// The limit of connections is reached.
    is_full: AtomicBool,
}

impl Server {
    pub(crate) fn new(router: RouterReceiver, certificate: Option<Certificate>) -> Self {
        let (deadlines, is_full) = (Deadlines::default(), AtomicBool::new(false));
        Self { router, certificate, deadlines, max_connections: MAX_CONNECTIONS, is_full }
    }

    pub(crate) async fn run(self, mut listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let (server, mut shutdown) = (Arc::new(self), pin!(shutdown));
        // dropped at shutdown
        let (sender, stopping) = watch::channel(());
        let mut connections = JoinSet::new();
        loop {
            server.is_full.store(connections.len() >= server.max_connections, Ordering::Relaxed);
            tokio::select! {
                () = &mut shutdown => break,
                // logs errors such as too many open files, and pauses before the next connection
                (stream, peer) = Listener::accept(&mut listener), if connections.len() < server.max_connections => {
                    connections.spawn(server.clone().open(stream, peer, stopping.clone()));
                }
                Some(_) = connections.join_next() => {}
            }
        }
        drop((listener, sender));
        let ended = timeout(GRACE, async { while connections.join_next().await.is_some() {} });
        if ended.await.is_err() {
            tracing::warn!(connections = connections.len(), "open requests were not finished in time");
        }
    }

    async fn open(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, mut stopping: watch::Receiver<()>) {
        let Some(certificate) = &self.certificate else { return self.serve(stream, peer, stopping).await };
        let handshake = timeout(self.deadlines.head, certificate.acceptor().accept(stream));
        let stream = tokio::select! {
            stream = handshake => stream,
            _ = stopping.changed() => return,
        };
        match stream {
            Ok(Ok(stream)) => self.serve(stream, peer, stopping).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "the handshake failed"),
            Err(_) => tracing::debug!(%peer, "the handshake timed out"),
        }
    }

    fn router(&self) -> Router {
        self.router.borrow().clone().unwrap_or_else(|| starting(self.router.clone()))
    }

    /// Serves requests one after another; at shutdown, finishes the current one.
    async fn serve<S>(&self, stream: S, peer: SocketAddr, mut stopping: watch::Receiver<()>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (service, clock) = (TowerToHyperService::new(self.router()), ConnectionClock::new());
        let stream = TimedStream { stream, clock: clock.clone() };
        let service = service_fn(|request| {
            clock.begin_response();
            let (request, unread) = track(request);
            let (response, clock) = (service.call(request), clock.clone());
            async move {
                let response = unread.drain(response.await?).await;
                clock.end_response();
                Ok::<Response, Infallible>(response)
            }
        });
        let mut http = http1::Builder::new();
        let mut connection = pin!(http.header_read_timeout(None).serve_connection(TokioIo::new(stream), service));
        let (mut check, mut ends) = (interval(self.deadlines.check_interval()), false);
        let ended = loop {
            tokio::select! {
                ended = &mut connection => break ended,
                _ = stopping.changed(), if !ends => {
                    ends = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = check.tick() => if clock.is_late(&self.deadlines, self.is_full.load(Ordering::Relaxed)) {
                    tracing::debug!(%peer, "closed a slow connection");
                    return;
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, %peer, "connection failed");
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

    /// More than the socket buffers hold.
    const LARGE: usize = 64 << 20;
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    async fn opened(change: impl FnOnce(&mut Server)) -> SocketAddr {
        let large = vec![b'a'; LARGE];
        let router = Router::new().route("/", get(async || "here")).route("/large", get(async || large));
        let mut server = Server::new(watch::channel(Some(router)).1, None);
        change(&mut server);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(server.run(listener, pending()));
        address
    }

    async fn read_all(stream: &mut TcpStream) -> String {
        let mut answer = String::new();
        timeout(Duration::from_secs(5), stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer
    }

    #[tokio::test]
    async fn slow_request_heads_are_cut_off() {
        let address = opened(|server| server.deadlines.head = Duration::from_millis(100)).await;
        for begun in [&b""[..], &REQUEST[..REQUEST.len() - 2]] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(begun).await.unwrap();
            assert_eq!(read_all(&mut stream).await, "");
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        assert!(read_all(&mut stream).await.ends_with("here"));
    }

    /// The first response does not wait for its body, and the next request uses the same connection.
    #[tokio::test]
    async fn late_bodies_do_not_break_the_connection() {
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
        // missing or long bodies are not awaited: the response closes the connection
        let waits = head(5).replace("Host", "Expect: 100-continue\r\nHost");
        for head in [head(5), head(1 << 30), waits] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let answer = read_all(&mut stream).await.to_lowercase();
            assert!(answer.starts_with("http/1.1 404") && answer.contains("connection: close"), "{answer}");
        }
    }

    /// An idle connection has more time than a request head, until the next head begins.
    #[tokio::test]
    async fn idle_connections_have_more_time() {
        let address = opened(|server| {
            (server.deadlines.head, server.deadlines.idle) = (Duration::from_millis(100), Duration::from_millis(1500));
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
        assert_eq!(read_all(&mut stream).await, "");
        assert!(began.elapsed() < Duration::from_millis(1500), "a second head has no more time than the first");
    }

    #[tokio::test]
    async fn idle_connections_make_room_for_waiting_ones() {
        let address =
            opened(|server| (server.max_connections, server.deadlines.head) = (1, Duration::from_millis(500))).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = [0; 256];
        assert!(first.read(&mut answer).await.unwrap() > 0);
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(REQUEST).await.unwrap();
        assert!(read_all(&mut second).await.ends_with("here"));
    }

    #[tokio::test]
    async fn clients_that_do_not_read_are_cut_off() {
        let address = opened(|server| {
            server.deadlines.write = Duration::from_millis(200);
            server.deadlines.head = Duration::from_millis(200);
            server.max_connections = 1;
        });
        let address = address.await;
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        // the only slot is free again although the first client reads nothing
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(REQUEST).await.unwrap();
        assert!(read_all(&mut second).await.ends_with("here"));
    }

    #[tokio::test]
    async fn a_starting_service_is_alive_and_not_ready() {
        let (sender, router) = watch::channel(None);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(Server::new(router, None).run(listener, pending()));
        let ask = async |path: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            read_all(&mut stream).await
        };
        assert!(ask("/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(ask("/readyz").await.starts_with("HTTP/1.1 503"));
        let start = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            sender.send_replace(Some(Router::new().route("/", get(async || "here"))));
        };
        let (held, ()) = tokio::join!(ask("/"), start);
        assert!(held.ends_with("here"), "requests wait during the start: {held}");
        assert!(ask("/readyz").await.starts_with("HTTP/1.1 404"), "the service itself answers");
    }

    #[tokio::test]
    async fn connections_above_the_limit_wait() {
        let address = opened(|server| server.max_connections = 1).await;
        let first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(REQUEST).await.unwrap();
        assert!(timeout(Duration::from_millis(100), second.readable()).await.is_err());
        drop(first);
        assert!(read_all(&mut second).await.ends_with("here"));
    }
}
