//! How long a connection may keep its place: the head of a request has to arrive, and an answer has to be taken. Between
//! requests it may be silent for longer than proxies let theirs be, so that it is they who hang up: who is hung up on may
//! have a request on its way.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a handshake, and for the head of a request.
    pub head: Duration,
    pub silence: Duration,
    /// For some of an answer to be taken.
    pub reader: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { head: Duration::from_secs(10), silence: Duration::from_secs(120), reader: Duration::from_secs(30) }
    }
}

impl Patience {
    /// How often a connection is looked at.
    pub fn look(&self) -> Duration {
        (self.head / 10).max(Duration::from_millis(1))
    }
}

/// What a connection waits for.
#[derive(Clone)]
pub struct Watch(Arc<Mutex<State>>);

struct State {
    awaited: Awaited,
    since: Instant,
    /// Since when nothing of an answer was taken.
    stuck: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq)]
enum Awaited {
    Head,
    Request,
    Answer,
}

impl Watch {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State { awaited: Awaited::Head, since: Instant::now(), stuck: None })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is worked on.
    pub fn asked(&self) {
        self.state().awaited = Awaited::Answer;
    }

    /// It was answered, and another may come.
    pub fn answered(&self) {
        let mut state = self.state();
        (state.awaited, state.since) = (Awaited::Request, Instant::now());
    }

    /// Where others wait for a place, silence is no reason to keep one.
    pub fn is_late(&self, patience: &Patience, crowded: bool) -> bool {
        let state = self.state();
        let most = match state.awaited {
            Awaited::Head => patience.head,
            Awaited::Request if crowded => patience.look(),
            Awaited::Request => patience.silence,
            Awaited::Answer => Duration::MAX,
        };
        state.since.elapsed() > most || state.stuck.is_some_and(|since| since.elapsed() > patience.reader)
    }
}

/// A stream that is watched.
pub struct Watched<S> {
    pub stream: S,
    pub watch: Watch,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let mut state = this.watch.state();
        if state.awaited == Awaited::Request {
            (state.awaited, state.since) = (Awaited::Head, Instant::now());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S> Watched<S> {
    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        let mut state = self.watch.state();
        state.stuck = if written.is_pending() { Some(state.stuck.unwrap_or_else(Instant::now)) } else { None };
        written
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
