//! Request bodies: received within limits of size and time before a request takes a place, and parsed as JSON after that.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::fault::Fault;

/// Parses the body.
pub async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Fault> {
    parse(&read_bytes(request).await?)
}

/// Like `read`; an empty body or null gives the default.
pub async fn read_optional<T: DeserializeOwned + Default>(request: Request) -> Result<T, Fault> {
    let body = read_bytes(request).await?;
    if body.is_empty() { Ok(T::default()) } else { Ok(parse::<Option<T>>(&body)?.unwrap_or_default()) }
}

/// Raw body of an admitted request, which has been received already.
pub async fn read_bytes(request: Request) -> Result<Bytes, Fault> {
    to_bytes(request.into_body(), usize::MAX).await.map_err(|error| Fault::malformed(None, error.to_string()))
}

/// Receives bodies, within limits.
pub(crate) struct BodyReceiver {
    max_bytes: usize,
    time: Duration,
    /// A permit per byte of bodies on their way.
    memory: Semaphore,
}

impl BodyReceiver {
    /// Bodies on their way take no more memory together than `num` of the largest.
    pub fn new(max_bytes: usize, time: Duration, num: usize) -> Self {
        let memory = Semaphore::new(num.saturating_mul(max_bytes).min(Semaphore::MAX_PERMITS));
        Self { max_bytes, time, memory }
    }

    /// Waits until the body is here.
    pub async fn receive(&self, request: Request) -> Result<Request, Fault> {
        let (parts, body) = request.into_parts();
        // reject by Content-Length without reading
        if body.size_hint().lower() > self.max_bytes as u64 {
            return Err(Fault::too_large(self.max_bytes));
        }
        if body.is_end_stream() {
            return Ok(Request::from_parts(parts, body));
        }
        let bytes = timeout(self.time, self.collect(body)).await.map_err(|_| Fault::too_slow())??;
        Ok(Request::from_parts(parts, Body::from(bytes)))
    }

    async fn collect(&self, mut body: Body) -> Result<Vec<u8>, Fault> {
        let (mut bytes, mut memory) = (Vec::new(), None);
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|error| Fault::malformed(None, error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > self.max_bytes {
                return Err(Fault::too_large(self.max_bytes));
            }
            let num = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let full = |_| Fault::busy("too many large requests are on their way: try again");
            let more = self.memory.try_acquire_many(num).map_err(full)?;
            match &mut memory {
                None => memory = Some(more),
                Some(memory) => SemaphorePermit::merge(memory, more),
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        // the path of an error outside any field
        let named = path != "." && !path.contains('?');
        Fault::malformed(named.then_some(path), error.inner().to_string())
    })?;
    json.end().map_err(|error| Fault::malformed(None, error.to_string()))?;
    Ok(parsed)
}
