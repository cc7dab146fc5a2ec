//! The encoder on a thread of its own: what a worker runs, and the tokenizer that callers need beside it.

use std::sync::Arc;
use std::time::Duration;

use super::{Encoder, Reader, Text};
use crate::worker::{self, Limits, Model, Places};
use souk_io::error::{Error, Result};
use souk_io::telemetry::{ENCODER, WorkerMetrics};

/// Between looks whether a full queue has room.
const PAUSE: Duration = Duration::from_millis(10);

pub struct Worker {
    reader: Arc<Reader>,
    worker: worker::Worker<Encoder>,
}

/// The vectors of one request, to be awaited (or `blocking_recv`ed); dropping it cancels the request.
pub type Reply = worker::Reply<Encoder>;

impl Worker {
    pub fn start(encoder: Encoder, limits: Limits) -> Result<Self> {
        Ok(Self { reader: encoder.reader(), worker: worker::Worker::start(encoder, limits)? })
    }

    /// Tokenizes for this model; done by the caller, beside the model's work.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    pub fn limits(&self) -> Limits {
        self.worker.limits()
    }

    /// Takes room for so many texts, all or none. Never waits: `Busy` when there is none.
    pub fn reserve(&self, texts: usize) -> Result<Places> {
        self.worker.reserve(texts)
    }

    /// Queues texts into places that were taken for them before.
    pub fn submit_into(&self, places: Places, texts: Vec<Text>) -> Result<Reply> {
        self.worker.submit_into(places, texts)
    }

    /// Queues texts as soon as others leave room for them; blocks until then.
    pub fn submit_in_turn(&self, texts: Vec<Text>) -> Result<Reply> {
        loop {
            match self.reserve(texts.len()) {
                Ok(places) => return self.submit_into(places, texts),
                Err(Error::Busy { .. }) => std::thread::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues texts, all or none. Never waits: `Busy` when there is no room.
    pub fn submit(&self, texts: Vec<Text>) -> Result<Reply> {
        self.worker.submit(texts)
    }
}

impl Model for Encoder {
    type Input = Text;
    type Output = Vec<f32>;
    const NAME: &'static str = "encoder";

    fn num_tokens(text: &Text) -> usize {
        text.ids.len()
    }

    fn run(&self, texts: &[&Text]) -> Result<Vec<Vec<f32>>> {
        self.vectors(texts)
    }

    fn metrics() -> &'static WorkerMetrics {
        &ENCODER
    }
}
