//! Encoder on its own thread, together with the tokenizer for its callers.

use std::sync::Arc;
use std::time::Duration;

use tch::Device;

use super::{Encoder, Reader, Text};
use crate::worker::{self, Limits, Model, QueuePermit, Urgency};
use souk_io::error::{Error, Result};
use souk_io::telemetry::{ENCODER, WorkerMetrics};

/// Interval of retries while the queue is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

pub struct EncoderWorker {
    reader: Arc<Reader>,
    worker: worker::Worker<Encoder>,
}

/// Receiver of one request's vectors: await it or call `blocking_recv`. Dropping it cancels the request.
pub type EncoderReply = worker::Reply<Encoder>;

impl EncoderWorker {
    pub fn start(encoder: Encoder, limits: Limits) -> Result<Self> {
        Ok(Self { reader: encoder.reader(), worker: worker::Worker::start(encoder, limits)? })
    }

    /// Tokenizer of this model; callers tokenize on their own thread.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Maximum number of texts queued or running.
    pub fn queue_texts(&self) -> usize {
        self.worker.queue_texts()
    }

    /// Token budget of one batch.
    pub fn batch_tokens(&self) -> usize {
        self.worker.batch_tokens()
    }

    /// Reserves capacity for `texts` texts, all or none. Never waits: `Busy` if the queue is full.
    pub fn reserve(&self, texts: usize) -> Result<QueuePermit> {
        self.worker.reserve(texts)
    }

    /// Time since the last batch ended without an error.
    pub fn since_success(&self) -> Option<Duration> {
        self.worker.since_success()
    }

    /// Queues texts into capacity reserved before.
    pub fn submit_into(&self, permit: QueuePermit, texts: Vec<Text>, urgency: Urgency) -> Result<EncoderReply> {
        self.worker.submit_into(permit, texts, urgency)
    }

    /// Queues texts; blocks while the queue is full.
    pub fn submit_blocking(&self, texts: Vec<Text>) -> Result<EncoderReply> {
        loop {
            match self.reserve(texts.len()) {
                Ok(permit) => return self.submit_into(permit, texts, Urgency::Urgent),
                Err(Error::Busy { .. }) => std::thread::sleep(RETRY_INTERVAL),
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues texts, all or none. Never waits: `Busy` if the queue is full.
    pub fn submit(&self, texts: Vec<Text>) -> Result<EncoderReply> {
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

    fn device(&self) -> Device {
        Self::device(self)
    }
}
