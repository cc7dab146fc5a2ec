//! A model on a thread of its own behind a bounded queue. Callers hand in tokenized texts and await what the model makes of
//! each; the worker sorts what waits by length and runs it in batches of bounded tokens. A full queue says so at once, and
//! what nobody waits for any more is dropped unrun. Never looks into a text.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use souk_io::error::{Error, Result, without_frames};
use souk_io::telemetry::WorkerMetrics;

/// What a worker runs: a model that makes one output of each input, whatever else is in the batch.
pub trait Model: Send + 'static {
    type Input: Send + 'static;
    type Output: Send + 'static;
    /// Of the thread, and for errors.
    const NAME: &'static str;

    fn num_tokens(input: &Self::Input) -> usize;

    /// One output for each input, in their order.
    fn run(&self, inputs: &[&Self::Input]) -> Result<Vec<Self::Output>>;

    fn metrics() -> &'static WorkerMetrics;
}

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

/// Where requests come faster than they are answered, the worker waits so small a share of its last round for more.
const PATIENCE_SHARE: u32 = 8;
const PAUSE: Duration = Duration::from_micros(50);

pub struct Worker<M: Model> {
    limits: Limits,
    room: Arc<Semaphore>,
    /// `None` only while dropping, so that the thread sees the end of the queue.
    queue: Option<UnboundedSender<Job<M>>>,
    thread: Option<JoinHandle<()>>,
}

type Answer<M> = Result<Vec<<M as Model>::Output>>;

/// The outputs of one request, to be awaited (or `blocking_recv`ed); dropping it cancels the request.
pub type Reply<M> = oneshot::Receiver<Answer<M>>;

struct Job<M: Model> {
    texts: Vec<M::Input>,
    reply: oneshot::Sender<Answer<M>>,
    /// Its places in the queue, given back when the job is dropped.
    _room: Places,
}

/// Places in a queue, held from before texts are tokenized until they are answered.
pub struct Places {
    _permit: OwnedSemaphorePermit,
    texts: usize,
    metrics: &'static WorkerMetrics,
}

impl Drop for Places {
    fn drop(&mut self) {
        self.metrics.queued.sub(self.texts as i64);
    }
}

impl<M: Model> Worker<M> {
    pub fn start(model: M, limits: Limits) -> Result<Self> {
        for (name, value) in [("batch_tokens", limits.batch_tokens), ("queue_texts", limits.queue_texts)] {
            if !(1..=LARGEST).contains(&value) {
                return Err(Error::config("worker", format!("`{name}` is {value}: say 1 to {LARGEST}")));
            }
        }
        let (queue, jobs) = unbounded_channel();
        let thread = std::thread::Builder::new()
            .name(format!("souk-{}", M::NAME))
            .spawn(move || run(&model, jobs, limits.batch_tokens))
            .map_err(|e| Error::device(format!("cannot start the {}'s thread", M::NAME)).because(e))?;
        let room = Arc::new(Semaphore::new(limits.queue_texts));
        Ok(Self { limits, room, queue: Some(queue), thread: Some(thread) })
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Takes room for so many texts, all or none. Never waits: `Busy` when there is none.
    pub fn reserve(&self, texts: usize) -> Result<Places> {
        let most = self.limits.queue_texts;
        if texts > most {
            return Err(Error::input(format!("{texts} texts at once, but the queue holds {most}: send fewer")));
        }
        let places = u32::try_from(texts).map_err(|e| Error::input("too many texts").because(e))?;
        let metrics = M::metrics();
        let Ok(permit) = self.room.clone().try_acquire_many_owned(places) else {
            metrics.refused.inc();
            let problem = format!("the {}'s queue of {most} texts is full: try again", M::NAME);
            return Err(Error::Busy { problem });
        };
        metrics.queued.add(texts as i64);
        Ok(Places { _permit: permit, texts, metrics })
    }

    /// Queues texts, all or none. Never waits: `Busy` when there is no room.
    pub fn submit(&self, texts: Vec<M::Input>) -> Result<Reply<M>> {
        let places = self.reserve(texts.len())?;
        self.submit_into(places, texts)
    }

    /// Queues texts into places that were taken for them before.
    pub fn submit_into(&self, places: Places, texts: Vec<M::Input>) -> Result<Reply<M>> {
        if texts.len() != places.texts {
            let problem = format!("{} texts for {} places in the queue", texts.len(), places.texts);
            return Err(Error::input(problem));
        }
        let (reply, receiver) = oneshot::channel();
        let job = Job { texts, reply, _room: places };
        let gone = || Error::device(format!("the {}'s thread has ended", M::NAME));
        self.queue.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        Ok(receiver)
    }
}

impl<M: Model> Drop for Worker<M> {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // a panic was already answered where it happened
            drop(thread.join());
        }
    }
}

/// A job in work: its outputs so far.
struct Open<M: Model> {
    job: Job<M>,
    outputs: Vec<Option<M::Output>>,
    missing: usize,
}

fn run<M: Model>(model: &M, mut jobs: UnboundedReceiver<Job<M>>, batch_tokens: usize) {
    let mut last_round = Duration::ZERO;
    while let Some((first, waited)) =
        jobs.try_recv().ok().map(|job| (job, true)).or_else(|| Some((jobs.blocking_recv()?, false)))
    {
        let mut waiting = 0;
        let mut round: Vec<Option<Open<M>>> = Vec::new();
        let began = Instant::now();
        // who was just answered may ask again: then both are one batch, which costs hardly more than each alone
        let patience = if waited { last_round / PATIENCE_SHARE } else { Duration::ZERO };
        let mut next = Some(first);
        while let Some(job) = next {
            waiting += job.texts.iter().map(M::num_tokens).sum::<usize>();
            let missing = job.texts.len();
            let outputs = (0..missing).map(|_| None).collect();
            round.push(Some(Open { job, outputs, missing }));
            next = if waiting < ROUND * batch_tokens { jobs.try_recv().ok() } else { None };
            while next.is_none() && waiting < batch_tokens && began.elapsed() < patience {
                std::thread::sleep(PAUSE);
                next = jobs.try_recv().ok();
            }
        }
        let began = Instant::now();
        for batch in batches(&round, batch_tokens) {
            run_batch(model, &mut round, &batch);
        }
        last_round = began.elapsed();
        // requests without a text
        for open in round.into_iter().flatten() {
            finish(open);
        }
    }
}

/// Places of texts, (job, text), in the order of their lengths, cut where a batch is full.
fn batches<M: Model>(round: &[Option<Open<M>>], batch_tokens: usize) -> Vec<Vec<(usize, usize)>> {
    let length = |&(job, text): &(usize, usize)| {
        round[job].as_ref().map_or(0, |open: &Open<M>| M::num_tokens(&open.job.texts[text]))
    };
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

fn run_batch<M: Model>(model: &M, round: &mut [Option<Open<M>>], batch: &[(usize, usize)]) {
    let wanted: Vec<(usize, usize)> = batch
        .iter()
        .copied()
        .filter(|&(job, _)| round[job].as_ref().is_some_and(|open| !open.job.reply.is_closed()))
        .collect();
    let metrics = M::metrics();
    metrics.cancelled.inc_by((batch.len() - wanted.len()) as u64);
    if wanted.is_empty() {
        return;
    }
    let texts: Vec<&M::Input> =
        wanted.iter().filter_map(|&(job, text)| round[job].as_ref().map(|open| &open.job.texts[text])).collect();
    let started = Instant::now();
    // a panic in libtorch (memory, a lost device) must not end the thread that everybody waits for
    let outcome = catch_unwind(AssertUnwindSafe(|| model.run(&texts)))
        .unwrap_or_else(|panic| Err(Error::device(panic_text(panic.as_ref()))));
    metrics.seconds.observe(started.elapsed().as_secs_f64());
    metrics.batches.inc();
    metrics.texts.inc_by(texts.len() as u64);
    metrics.tokens.inc_by(texts.iter().map(|text| M::num_tokens(text) as u64).sum());
    match outcome {
        Ok(outputs) => {
            for ((job, text), output) in wanted.into_iter().zip(outputs) {
                deliver(&mut round[job], text, output);
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

fn deliver<M: Model>(slot: &mut Option<Open<M>>, text: usize, output: M::Output) {
    let Some(open) = slot else { return };
    open.outputs[text] = Some(output);
    open.missing -= 1;
    if open.missing == 0 {
        slot.take().into_iter().for_each(finish);
    }
}

fn finish<M: Model>(open: Open<M>) {
    let Open { job, outputs, missing } = open;
    if missing == 0 {
        let Job { reply, _room, .. } = job;
        // room first: who has the answer may ask again at once
        drop(_room);
        drop(reply.send(Ok(outputs.into_iter().flatten().collect())));
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    without_frames(text.unwrap_or("a panic without words"))
}
