//! Unread request bodies. A response may be ready before the body has arrived (wrong key, overload). Hyper would then close the
//! connection, and a client that reuses it loses its next request. So the rest of the body is read and discarded before the response
//! is sent, within limits; beyond them, the response announces that the connection closes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::Response;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, EXPECT, HeaderValue};
use hyper::{Error, Request};
use tokio::time::timeout;

/// Limits on waiting for and reading the rest of a body.
const MAX_WAIT: Duration = Duration::from_millis(500);
const MAX_BYTES: u64 = 1 << 20;

type Slot = Arc<Mutex<Option<Incoming>>>;

/// A body that returns to its slot when the handler drops it unread.
pub struct TrackedBody {
    body: Option<Incoming>,
    slot: Slot,
}

/// The slot of a request's unread body.
pub struct UnreadBody {
    slot: Slot,
    /// The client expects `100 Continue`; reading would request the body.
    awaits_continue: bool,
}

/// Replaces the body of a request by a tracked one.
pub fn track(request: Request<Incoming>) -> (Request<TrackedBody>, UnreadBody) {
    let unread = UnreadBody { slot: Slot::default(), awaits_continue: request.headers().contains_key(EXPECT) };
    let slot = unread.slot.clone();
    (request.map(|body| TrackedBody { body: Some(body), slot }), unread)
}

impl UnreadBody {
    /// Discards the rest of the body, or adds `Connection: close` to the response.
    pub async fn drain(self, mut response: Response) -> Response {
        let body = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(body) = body
            && (self.awaits_continue || !timeout(MAX_WAIT, discard(body)).await.unwrap_or(false))
        {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Reads a body to its end; false if it is too long or breaks off.
async fn discard(mut body: Incoming) -> bool {
    let mut left = MAX_BYTES;
    if body.size_hint().lower() > left {
        return false;
    }
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(frame) = frame else { return false };
        match left.checked_sub(frame.data_ref().map_or(0, |data| data.len() as u64)) {
            Some(less) => left = less,
            None => return false,
        }
    }
    true
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = body;
    }
}
