//! Time limits of connections: for a request's head to arrive, for a response to be read, and between requests. The idle limit is
//! longer than that of usual proxies, so that the proxy closes first: if the server did, it could lose a request in flight.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For a TLS handshake, and for the head of a request.
    pub head: Duration,
    /// Between requests.
    pub idle: Duration,
    /// For the client to read some of a response.
    pub write: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { head: Duration::from_secs(10), idle: Duration::from_secs(120), write: Duration::from_secs(30) }
    }
}

impl Deadlines {
    /// How often a connection is checked.
    pub fn check_interval(&self) -> Duration {
        (self.head / 10).max(Duration::from_millis(1))
    }
}

/// Tracks what a connection waits for, and since when.
#[derive(Clone)]
pub struct ConnectionClock(Arc<Mutex<State>>);

struct State {
    phase: Phase,
    since: Instant,
    /// Time since which the client has read nothing of a response.
    stuck: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Head,
    Idle,
    Response,
}

impl ConnectionClock {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State { phase: Phase::Head, since: Instant::now(), stuck: None })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin_response(&self) {
        self.state().phase = Phase::Response;
    }

    pub fn end_response(&self) {
        let mut state = self.state();
        (state.phase, state.since) = (Phase::Idle, Instant::now());
    }

    /// Whether a limit has passed. While the server is full, idle connections are closed at once.
    pub fn is_late(&self, deadlines: &Deadlines, is_full: bool) -> bool {
        let state = self.state();
        let limit = match state.phase {
            Phase::Head => deadlines.head,
            Phase::Idle if is_full => deadlines.check_interval(),
            Phase::Idle => deadlines.idle,
            Phase::Response => Duration::MAX,
        };
        state.since.elapsed() > limit || state.stuck.is_some_and(|since| since.elapsed() > deadlines.write)
    }
}

/// Stream whose reads and writes update the clock.
pub struct TimedStream<S> {
    pub stream: S,
    pub clock: ConnectionClock,
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let mut state = this.clock.state();
        if state.phase == Phase::Idle {
            (state.phase, state.since) = (Phase::Head, Instant::now());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S> TimedStream<S> {
    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        let mut state = self.clock.state();
        state.stuck = if written.is_pending() { Some(state.stuck.unwrap_or_else(Instant::now)) } else { None };
        written
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.wrote(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.wrote(shut)
    }
}
