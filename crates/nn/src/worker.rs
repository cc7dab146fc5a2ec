//! Runs a model on its own thread behind a bounded queue. Callers submit tokenized texts and await one output for each; the
//! worker sorts queued texts by length and runs them in batches with a token budget. Urgent requests overtake the others. A
//! full queue is an immediate error, and cancelled requests are dropped without running. Never looks into a text.

mod job_queue;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::Device;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::job_queue::JobQueue;
use souk_io::error::{Error, Result, without_frames};
use souk_io::telemetry::WorkerMetrics;

/// Model that a worker can run: one output per input, independent of the rest of the batch.
pub trait Model: Send + 'static {
    type Input: Send + 'static;
    type Output: Send + 'static;
    /// Name in the thread's name and in errors.
    const NAME: &'static str;

    fn num_tokens(input: &Self::Input) -> usize;

    /// Returns one output for each input, in order.
    fn run(&self, inputs: &[&Self::Input]) -> Result<Vec<Self::Output>>;

    fn metrics() -> &'static WorkerMetrics;

    /// Device that it runs on.
    fn device(&self) -> Device;
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Token budget of one batch; a longer text is a batch of its own. Default: 1,024 on a CPU, 16,384 on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_tokens: Option<usize>,
    /// Maximum number of texts queued or running.
    pub queue_texts: usize,
}

impl Limits {
    fn batch_tokens_on(&self, device: Device) -> usize {
        self.batch_tokens.unwrap_or(if device == Device::Cpu { 1 << 10 } else { 1 << 14 })
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { batch_tokens: None, queue_texts: 4096 }
    }
}

/// Upper bound of both limits: more would not fit into memory.
const MAX_LIMIT: usize = 1 << 24;

/// Batches sorted together in one round: more wastes no tokens, but makes the first caller wait for the last.
const BATCHES_PER_ROUND: usize = 4;

/// Fraction (1/4) of a batch's tokens in a round of patient requests: an urgent one that arrives meanwhile waits for it.
const PATIENT_DIVISOR: usize = 4;

/// Under load, the worker waits this fraction (1/8) of the last round's time for more requests.
const WAIT_DIVISOR: u32 = 8;
const POLL_INTERVAL: Duration = Duration::from_micros(50);

pub struct Worker<M: Model> {
    queue_texts: usize,
    batch_tokens: usize,
    capacity: Arc<Semaphore>,
    /// `None` only while dropping, so that the thread sees the end of the queue.
    queue: Option<UnboundedSender<Job<M>>>,
    thread: Option<JoinHandle<()>>,
    /// When the last batch ended without an error.
    last_success: Arc<Mutex<Option<Instant>>>,
}

/// Order of a request among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody waits for a search.
    Urgent,
    /// Bulk work, such as items that are written: done in small rounds between urgent requests, and never left undone.
    Patient,
}

type Outputs<M> = Result<Vec<<M as Model>::Output>>;

/// Receiver of one request's outputs: await it or call `blocking_recv`. Dropping it cancels the request.
pub type Reply<M> = oneshot::Receiver<Outputs<M>>;

struct Job<M: Model> {
    texts: Vec<M::Input>,
    urgency: Urgency,
    reply: oneshot::Sender<Outputs<M>>,
    /// Capacity in the queue, released when the job is dropped.
    permit: QueuePermit,
}

/// Reserved capacity in the queue, held from before texts are tokenized until they are answered.
pub struct QueuePermit {
    _permit: OwnedSemaphorePermit,
    texts: usize,
    metrics: &'static WorkerMetrics,
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.metrics.queued.sub(self.texts as i64);
    }
}

impl<M: Model> Worker<M> {
    pub fn start(model: M, limits: Limits) -> Result<Self> {
        let (batch_tokens, queue_texts) = (limits.batch_tokens_on(model.device()), limits.queue_texts);
        for (name, value) in [("batch_tokens", batch_tokens), ("queue_texts", queue_texts)] {
            if !(1..=MAX_LIMIT).contains(&value) {
                return Err(Error::config("worker", format!("`{name}` is {value}: set it to 1 to {MAX_LIMIT}")));
            }
        }
        let (queue, jobs) = unbounded_channel();
        let last_success = Arc::<Mutex<Option<Instant>>>::default();
        let thread = std::thread::Builder::new()
            .name(format!("souk-{}", M::NAME))
            .spawn({
                let last_success = last_success.clone();
                move || run(&model, JobQueue::new(jobs), batch_tokens, &last_success)
            })
            .map_err(|e| Error::device(format!("cannot start the {}'s thread", M::NAME)).because(e))?;
        let capacity = Arc::new(Semaphore::new(queue_texts));
        Ok(Self { queue_texts, batch_tokens, capacity, queue: Some(queue), thread: Some(thread), last_success })
    }

    /// Maximum number of texts queued or running.
    pub fn queue_texts(&self) -> usize {
        self.queue_texts
    }

    /// Token budget of one batch.
    pub fn batch_tokens(&self) -> usize {
        self.batch_tokens
    }

    /// Time since the last batch ended without an error.
    pub fn since_success(&self) -> Option<Duration> {
        let last = self.last_success.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|last| last.elapsed())
    }

    /// Reserves capacity for `texts` texts, all or none. Never waits: `Busy` if the queue is full.
    pub fn reserve(&self, texts: usize) -> Result<QueuePermit> {
        let max_texts = self.queue_texts;
        if texts > max_texts {
            return Err(Error::input(format!("{texts} texts at once, but the queue holds {max_texts}: send fewer")));
        }
        let num_permits = u32::try_from(texts).map_err(|e| Error::input("too many texts").because(e))?;
        let metrics = M::metrics();
        let Ok(permit) = self.capacity.clone().try_acquire_many_owned(num_permits) else {
            metrics.refused.inc();
            let problem = format!("the {}'s queue of {max_texts} texts is full: try again", M::NAME);
            return Err(Error::Busy { problem });
        };
        metrics.queued.add(texts as i64);
        Ok(QueuePermit { _permit: permit, texts, metrics })
    }

    /// Queues texts, all or none. Never waits: `Busy` if the queue is full.
    pub fn submit(&self, texts: Vec<M::Input>) -> Result<Reply<M>> {
        let permit = self.reserve(texts.len())?;
        self.submit_into(permit, texts, Urgency::Urgent)
    }

    /// Queues texts into capacity reserved before.
    pub fn submit_into(&self, permit: QueuePermit, texts: Vec<M::Input>, urgency: Urgency) -> Result<Reply<M>> {
        if texts.len() != permit.texts {
            let problem = format!("{} texts submitted, but {} reserved in the queue", texts.len(), permit.texts);
            return Err(Error::input(problem));
        }
        let (reply, receiver) = oneshot::channel();
        let job = Job { texts, urgency, reply, permit };
        let gone = || Error::device(format!("the {}'s thread has ended", M::NAME));
        self.queue.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        Ok(receiver)
    }
}

impl<M: Model> Drop for Worker<M> {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // panics are already reported to the caller in `run_batch`
            drop(thread.join());
        }
    }
}

/// Job in progress with its outputs so far.
struct PendingJob<M: Model> {
    job: Job<M>,
    outputs: Vec<Option<M::Output>>,
    missing: usize,
}

fn run<M: Model>(model: &M, mut jobs: JobQueue<M>, batch_tokens: usize, last_success: &Mutex<Option<Instant>>) {
    let mut last_round = Duration::ZERO;
    while let Some((first, waited)) = jobs.next() {
        let urgency = first.urgency;
        let max_tokens = match urgency {
            Urgency::Urgent => BATCHES_PER_ROUND * batch_tokens,
            Urgency::Patient => batch_tokens / PATIENT_DIVISOR,
        };
        let mut waiting = 0;
        let mut round: Vec<Option<PendingJob<M>>> = Vec::new();
        let began = Instant::now();
        // a caller that was just answered may send again soon: one batch costs hardly more than each request alone
        let waits = waited && urgency == Urgency::Urgent;
        let max_wait = if waits { last_round / WAIT_DIVISOR } else { Duration::ZERO };
        let mut next = Some(first);
        while let Some(job) = next {
            waiting += job.texts.iter().map(M::num_tokens).sum::<usize>();
            let missing = job.texts.len();
            let outputs = (0..missing).map(|_| None).collect();
            round.push(Some(PendingJob { job, outputs, missing }));
            next = if waiting < max_tokens { jobs.try_next(urgency) } else { None };
            while next.is_none() && waiting < batch_tokens && began.elapsed() < max_wait {
                std::thread::sleep(POLL_INTERVAL);
                next = jobs.try_next(urgency);
            }
        }
        let began = Instant::now();
        for batch in batches(&round, batch_tokens) {
            if run_batch(model, &mut round, &batch) {
                *last_success.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            }
        }
        last_round = began.elapsed();
        // jobs left over are requests without texts
        for pending in round.into_iter().flatten() {
            finish(pending);
        }
    }
}

/// Batches of (job, text) indices in order of length, each within the token budget.
fn batches<M: Model>(round: &[Option<PendingJob<M>>], batch_tokens: usize) -> Vec<Vec<(usize, usize)>> {
    let length = |&(job, text): &(usize, usize)| {
        round[job].as_ref().map_or(0, |pending: &PendingJob<M>| M::num_tokens(&pending.job.texts[text]))
    };
    let mut indices: Vec<(usize, usize)> = round
        .iter()
        .enumerate()
        .flat_map(|(job, pending)| {
            (0..pending.as_ref().map_or(0, |pending| pending.missing)).map(move |text| (job, text))
        })
        .collect();
    indices.sort_by_key(length);
    let (mut batches, mut filled) = (Vec::new(), 0);
    for index in indices {
        let tokens = length(&index);
        if batches.is_empty() || filled + tokens > batch_tokens {
            batches.push(Vec::new());
            filled = 0;
        }
        filled += tokens;
        if let Some(batch) = batches.last_mut() {
            batch.push(index);
        }
    }
    batches
}

/// Returns whether texts were run without an error.
fn run_batch<M: Model>(model: &M, round: &mut [Option<PendingJob<M>>], batch: &[(usize, usize)]) -> bool {
    let active: Vec<(usize, usize)> = batch
        .iter()
        .copied()
        .filter(|&(job, _)| round[job].as_ref().is_some_and(|pending| !pending.job.reply.is_closed()))
        .collect();
    let metrics = M::metrics();
    metrics.cancelled.inc_by((batch.len() - active.len()) as u64);
    if active.is_empty() {
        return false;
    }
    let texts: Vec<&M::Input> =
        active.iter().filter_map(|&(job, text)| round[job].as_ref().map(|pending| &pending.job.texts[text])).collect();
    let started = Instant::now();
    // a panic in libtorch (out of memory, a lost device) must not end the worker's thread
    let outcome = catch_unwind(AssertUnwindSafe(|| model.run(&texts)))
        .unwrap_or_else(|panic| Err(Error::device(panic_text(panic.as_ref()))));
    metrics.seconds.observe(started.elapsed().as_secs_f64());
    metrics.batches.inc();
    metrics.texts.inc_by(texts.len() as u64);
    metrics.tokens.inc_by(texts.iter().map(|text| M::num_tokens(text) as u64).sum());
    let is_success = outcome.is_ok();
    match outcome {
        Ok(outputs) => {
            for ((job, text), output) in active.into_iter().zip(outputs) {
                deliver(&mut round[job], text, output);
            }
        }
        Err(error) => {
            let error = Arc::new(error);
            tracing::error!(?error, texts = active.len(), "a batch failed");
            for (job, _) in active {
                if let Some(PendingJob { job: Job { reply, permit, .. }, .. }) = round[job].take() {
                    // releases the capacity first: the caller may send again at once. The receiver may be gone
                    drop(permit);
                    drop(reply.send(Err(Error::device("a batch failed").because(error.clone()))));
                }
            }
        }
    }
    is_success
}

fn deliver<M: Model>(slot: &mut Option<PendingJob<M>>, text: usize, output: M::Output) {
    let Some(pending) = slot else { return };
    pending.outputs[text] = Some(output);
    pending.missing -= 1;
    if pending.missing == 0 {
        slot.take().into_iter().for_each(finish);
    }
}

fn finish<M: Model>(pending: PendingJob<M>) {
    let PendingJob { job, outputs, missing } = pending;
    if missing == 0 {
        let Job { reply, permit, .. } = job;
        // releases the capacity first: the caller may send again at once
        drop(permit);
        drop(reply.send(Ok(outputs.into_iter().flatten().collect())));
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    without_frames(text.unwrap_or("a panic without a message"))
}
