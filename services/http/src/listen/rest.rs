//! What is left of a request's body once the request is answered. An answer may come before the body has (a wrong key, a full
//! house); hyper then closes the connection after it, and a client that sends its next request on it loses that. So what is on its
//! way is read and thrown away before the answer goes out, within bounds; where that is not enough the answer says that the
//! connection ends.

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

/// What is waited for, and what is read.
const PATIENCE: Duration = Duration::from_millis(500);
const MAX_BYTES: u64 = 1 << 20;

type Slot = Arc<Mutex<Option<Incoming>>>;

/// A body that comes back when whoever had it drops it half read.
pub struct Lent {
    body: Option<Incoming>,
    back: Slot,
}

/// Where it comes back.
pub struct Rest {
    back: Slot,
    /// The client waits to be told to send its body, and reading would tell it to.
    held: bool,
}

/// The request with its body lent.
pub fn lend(request: Request<Incoming>) -> (Request<Lent>, Rest) {
    let rest = Rest { back: Slot::default(), held: request.headers().contains_key(EXPECT) };
    let back = rest.back.clone();
    (request.map(|body| Lent { body: Some(body), back }), rest)
}

impl Rest {
    /// Makes an answer one after which the connection can go on, or one that says it does not.
    pub async fn settle(self, mut answer: Response) -> Response {
        let body = self.back.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(body) = body
            && (self.held || !timeout(PATIENCE, ended(body)).await.unwrap_or(false))
        {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

/// Reads a body to its end; false where it is too long, or breaks off.
async fn ended(mut body: Incoming) -> bool {
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

impl Body for Lent {
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

impl Drop for Lent {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        *self.back.lock().unwrap_or_else(PoisonError::into_inner) = body;
    }
}
