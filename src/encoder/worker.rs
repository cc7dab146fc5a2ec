//! The model on a thread of its own behind a bounded queue. Callers hand in tokenized texts and await their vectors;
//! the worker sorts what waits by length and runs it in batches of bounded tokens. A full queue says so at once, and
//! what nobody waits for any more is dropped unencoded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Encoder, Reader, Text};
use crate::error::{Error, Result, without_frames};
use crate::telemetry::ENCODER;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Tokens of one batch; a longer text is a batch of its own.
    pub batch_tokens: usize,
    /// Texts that may wait or be in work.
    pub queue_texts: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { batch_tokens: 1024, queue_texts: 4096 }
    }
}

/// More of either would not fit into any memory.
const LARGEST: usize = 1 << 24;

/// Batches the worker sorts at once: more wastes no tokens, but makes the first caller wait for the last.
const ROUND: usize = 4;

pub struct Worker {
    reader: Arc<Reader>,
    limits: Limits,
    room: Arc<Semaphore>,
    /// `None` only while dropping, so that the thread sees the end of the queue.
    queue: Option<UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// The vectors of one request, to be awaited (or `blocking_recv`ed); dropping it cancels the request.
pub type Reply = oneshot::Receiver<Result<Vec<Vec<f32>>>>;

struct Job {
    texts: Vec<Text>,
    reply: oneshot::Sender<Result<Vec<Vec<f32>>>>,
    /// Its places in the queue, given back when the job is dropped.
    _room: Places,
}

struct Places {
    _permit: OwnedSemaphorePermit,
    texts: i64,
}

impl Drop for Places {
    fn drop(&mut self) {
        ENCODER.queued.sub(self.texts);
    }
}

impl Worker {
    pub fn start(encoder: Encoder, limits: Limits) -> Result<Self> {
        for (name, value) in [("batch_tokens", limits.batch_tokens), ("queue_texts", limits.queue_texts)] {
            if !(1..=LARGEST).contains(&value) {
                return Err(Error::config("worker", format!("`{name}` is {value}: say 1 to {LARGEST}")));
            }
        }
        let reader = encoder.reader();
        let (queue, jobs) = unbounded_channel();
        let thread = std::thread::Builder::new()
            .name("souk-encoder".into())
            .spawn(move || run(&encoder, jobs, limits.batch_tokens))
            .map_err(|e| Error::device("cannot start the encoder's thread").because(e))?;
        let room = Arc::new(Semaphore::new(limits.queue_texts));
        Ok(Self { reader, limits, room, queue: Some(queue), thread: Some(thread) })
    }

    /// Tokenizes for this model; done by the caller, beside the model's work.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Queues texts, all or none. Never waits: `Busy` when there is no room.
    pub fn submit(&self, texts: Vec<Text>) -> Result<Reply> {
        let (asked, most) = (texts.len(), self.limits.queue_texts);
        if asked > most {
            return Err(Error::input(format!("{asked} texts at once, but the queue holds {most}: send fewer")));
        }
        let places = u32::try_from(asked).map_err(|e| Error::input("too many texts").because(e))?;
        let Ok(permit) = self.room.clone().try_acquire_many_owned(places) else {
            ENCODER.refused.inc();
            return Err(Error::Busy { problem: format!("the encoder's queue of {most} texts is full: try again") });
        };
        ENCODER.queued.add(asked as i64);
        let (reply, receiver) = oneshot::channel();
        let job = Job { texts, reply, _room: Places { _permit: permit, texts: asked as i64 } };
        let gone = || Error::device("the encoder's thread has ended");
        self.queue.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        Ok(receiver)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // a panic was already answered where it happened
            drop(thread.join());
        }
    }
}

/// A job in work: its vectors so far.
struct Open {
    job: Job,
    vectors: Vec<Vec<f32>>,
    missing: usize,
}

fn run(encoder: &Encoder, mut jobs: UnboundedReceiver<Job>, batch_tokens: usize) {
    while let Some(first) = jobs.blocking_recv() {
        let mut waiting = 0;
        let mut round: Vec<Option<Open>> = Vec::new();
        let mut next = Some(first);
        while let Some(job) = next {
            waiting += job.texts.iter().map(|text| text.ids.len()).sum::<usize>();
            let (vectors, missing) = (vec![Vec::new(); job.texts.len()], job.texts.len());
            round.push(Some(Open { job, vectors, missing }));
            next = if waiting < ROUND * batch_tokens { jobs.try_recv().ok() } else { None };
        }
        for batch in batches(&round, batch_tokens) {
            run_batch(encoder, &mut round, &batch);
        }
        // requests without a text
        for open in round.into_iter().flatten() {
            finish(open);
        }
    }
}

/// Places of texts, (job, text), in the order of their lengths, cut where a batch is full.
fn batches(round: &[Option<Open>], batch_tokens: usize) -> Vec<Vec<(usize, usize)>> {
    let length =
        |&(job, text): &(usize, usize)| round[job].as_ref().map_or(0, |open: &Open| open.job.texts[text].ids.len());
    let mut places: Vec<(usize, usize)> = round
        .iter()
        .enumerate()
        .flat_map(|(job, open)| (0..open.as_ref().map_or(0, |open| open.missing)).map(move |text| (job, text)))
        .collect();
    places.sort_by_key(length);
    let (mut cut, mut filled) = (Vec::new(), 0);
    for place in places {
        let tokens = length(&place);
        if cut.is_empty() || filled + tokens > batch_tokens {
            cut.push(Vec::new());
            filled = 0;
        }
        filled += tokens;
        if let Some(batch) = cut.last_mut() {
            batch.push(place);
        }
    }
    cut
}

fn run_batch(encoder: &Encoder, round: &mut [Option<Open>], batch: &[(usize, usize)]) {
    let wanted: Vec<(usize, usize)> = batch
        .iter()
        .copied()
        .filter(|&(job, _)| round[job].as_ref().is_some_and(|open| !open.job.reply.is_closed()))
        .collect();
    ENCODER.cancelled.inc_by((batch.len() - wanted.len()) as u64);
    if wanted.is_empty() {
        return;
    }
    let texts: Vec<&Text> =
        wanted.iter().filter_map(|&(job, text)| round[job].as_ref().map(|open| &open.job.texts[text])).collect();
    let started = Instant::now();
    // a panic in libtorch (memory, a lost device) must not end the thread that everybody waits for
    let outcome = catch_unwind(AssertUnwindSafe(|| encoder.vectors(&texts)))
        .unwrap_or_else(|panic| Err(Error::device(panic_text(panic.as_ref()))));
    ENCODER.seconds.observe(started.elapsed().as_secs_f64());
    ENCODER.batches.inc();
    ENCODER.texts.inc_by(texts.len() as u64);
    ENCODER.tokens.inc_by(texts.iter().map(|text| text.ids.len() as u64).sum());
    match outcome {
        Ok(vectors) => {
            for ((job, text), vector) in wanted.into_iter().zip(vectors) {
                deliver(&mut round[job], text, vector);
            }
        }
        Err(error) => {
            let error = Arc::new(error);
            tracing::error!(?error, texts = wanted.len(), "a batch failed");
            for (job, _) in wanted {
                if let Some(Open { job: Job { reply, _room, .. }, .. }) = round[job].take() {
                    // room first: who has the answer may ask again at once. The receiver may be gone
                    drop(_room);
                    drop(reply.send(Err(Error::device("a batch failed").because(error.clone()))));
                }
            }
        }
    }
}

fn deliver(slot: &mut Option<Open>, text: usize, vector: Vec<f32>) {
    let Some(open) = slot else { return };
    open.vectors[text] = vector;
    open.missing -= 1;
    if open.missing == 0 {
        slot.take().into_iter().for_each(finish);
    }
}

fn finish(open: Open) {
    let Open { job, vectors, missing } = open;
    if missing == 0 {
        let Job { reply, _room, .. } = job;
        // room first: who has the answer may ask again at once
        drop(_room);
        drop(reply.send(Ok(vectors)));
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    without_frames(text.unwrap_or("a panic without words"))
}
