//! Sends a stage's settings, numbers and outcome to experiment trackers, on a thread for each. An outage delays numbers and never training:
//! they wait in memory up to a limit, and a server that refuses them is left alone after one warning. A resumed stage continues its run.

mod mlflow;
mod wandb;

pub use mlflow::MlflowSettings;
pub use wandb::WandbSettings;

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use self::mlflow::Mlflow;
use self::wandb::Wandb;
use souk_io::backoff::Backoff;
use souk_io::error::{Error, Result};
use souk_reward::{Failure, FailureKind};

/// Time in which numbers are collected for one request.
const INTERVAL: Duration = Duration::from_secs(1);
/// Numbers that are sent before that time.
const BATCH: usize = 1000;
/// Numbers that wait during an outage; older ones are dropped.
const MAX_WAITING: usize = 200_000;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time that the end of a stage waits for the last numbers.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    Finished,
    /// Asked to stop; it can be resumed.
    Stopped,
    Failed,
}

/// A stage's run at a tracker. Dropped before its end, the run has failed.
pub struct TrackedRun {
    sender: Option<Sender<StepValues>>,
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
}

/// Numbers of a step.
struct StepValues {
    step: u64,
    /// Milliseconds since 1970.
    time: u64,
    values: Vec<(String, f64)>,
}

/// Client of a tracker's server.
trait Tracker: Send + 'static {
    const NAME: &'static str;

    fn url(&self) -> &str;
    /// Leaves out what the server has: a resumed stage sends all again.
    fn add(&mut self, values: StepValues);
    /// Numbers that were not sent yet, oldest first.
    fn waiting(&mut self) -> &mut Vec<Value>;
    /// Sends all that waits, and the outcome if the stage has ended. What was sent is not sent again.
    fn push(&mut self, outcome: Option<RunStatus>, end: &End) -> std::result::Result<(), Failure>;
}

/// The end of the stage, once it is known.
#[derive(Default)]
struct End(Mutex<Option<(RunStatus, Instant)>>);

impl End {
    fn status(&self) -> Option<RunStatus> {
        self.get().map(|(status, _)| status)
    }

    /// Time until the stage no longer waits; none before its end.
    fn time_left(&self) -> Option<Duration> {
        self.get().map(|(_, deadline)| deadline.saturating_duration_since(Instant::now()))
    }

    /// Timeout of a request.
    fn patience(&self) -> Duration {
        self.time_left().unwrap_or(TIMEOUT).clamp(Duration::from_millis(100), TIMEOUT)
    }

    fn get(&self) -> Option<(RunStatus, Instant)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, status: RunStatus) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((status, Instant::now() + GRACE));
    }
}

impl TrackedRun {
    /// A run on an MLflow server. `parameters` are shown with a run that begins.
    pub fn mlflow(settings: &MlflowSettings, out: &Path, parameters: &[(String, Value)]) -> Result<Self> {
        Self::start(Mlflow::open(settings, out, parameters)?)
    }

    /// A run at Weights & Biases, likewise.
    pub fn wandb(settings: &WandbSettings, out: &Path, parameters: &[(String, Value)]) -> Result<Self> {
        Self::start(Wandb::open(settings, out, parameters)?)
    }

    /// Starts the thread, which connects later.
    fn start<T: Tracker>(tracker: T) -> Result<Self> {
        let (sender, receiver) = channel();
        let end = Arc::new(End::default());
        let pusher = Pusher { tracker, num_dropped: 0, end: Arc::clone(&end) };
        let thread = std::thread::Builder::new().name(T::NAME.to_lowercase()).spawn(move || pusher.run(&receiver));
        let thread = Some(thread.map_err(|e| Error::device(format!("no thread for {}", T::NAME)).because(e))?);
        Ok(Self { sender: Some(sender), end, thread })
    }

    /// Sends the values of a step, sooner or later.
    pub fn send(&self, step: u64, values: Vec<(String, f64)>) {
        // the thread ends early if the server refuses numbers
        drop(self.sender.as_ref().map(|sender| sender.send(StepValues { step, time: now(), values })));
    }

    /// Ends the run.
    pub fn finish(&mut self, status: RunStatus) {
        self.end.set(status);
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Drop for TrackedRun {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.finish(RunStatus::Failed);
        }
    }
}

/// The thread's side.
struct Pusher<T> {
    tracker: T,
    num_dropped: usize,
    end: Arc<End>,
}

impl<T: Tracker> Pusher<T> {
    fn run(mut self, receiver: &Receiver<StepValues>) {
        let mut backoff = Backoff::new(INTERVAL, Duration::from_secs(60));
        // connects first: what the server has need not wait
        let (mut next, mut is_away) = (Instant::now(), false);
        loop {
            let is_end = self.receive(receiver, next, is_away);
            // the status is set before the last numbers are received
            let outcome = if is_end { self.end.status() } else { None };
            match self.tracker.push(outcome, &self.end) {
                Ok(()) if !is_end => {
                    (backoff, is_away) = (Backoff::new(INTERVAL, Duration::from_secs(60)), false);
                    next = Instant::now() + INTERVAL;
                }
                Ok(()) => break,
                Err(failure) if failure.kind == FailureKind::Passing => {
                    if !std::mem::replace(&mut is_away, true) {
                        self.warn(&format!("{}: numbers wait, training goes on", failure.problem));
                    }
                    next = Instant::now() + failure.retry_after.unwrap_or_else(|| backoff.next_pause());
                    if is_end && self.end.time_left().is_none_or(|left| left < INTERVAL) {
                        let num = self.tracker.waiting().len();
                        return self.warn(&format!("{num} numbers and the outcome were not sent"));
                    }
                    if is_end {
                        std::thread::sleep(INTERVAL);
                    }
                }
                Err(failure) => {
                    return self.warn(&format!("{}: no more numbers are sent", failure.problem));
                }
            }
        }
        if self.num_dropped > 0 {
            self.warn(&format!("{} numbers were dropped during an outage", self.num_dropped));
        }
    }

    /// Receives until a time, or until there is enough to send. True if the stage has ended.
    fn receive(&mut self, receiver: &Receiver<StepValues>, end: Instant, is_away: bool) -> bool {
        loop {
            match receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(values) => self.add(values),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
            let is_full = !is_away && self.tracker.waiting().len() > BATCH;
            if is_full || Instant::now() >= end {
                return false;
            }
        }
    }

    fn add(&mut self, values: StepValues) {
        self.tracker.add(values);
        let waiting = self.tracker.waiting();
        let excess = waiting.len().saturating_sub(MAX_WAITING);
        waiting.drain(..excess);
        self.num_dropped += excess;
    }

    fn warn(&self, problem: &str) {
        tracing::warn!("{}: {}: {problem}", T::NAME, self.tracker.url());
    }
}

/// Name of the run: that of the stage's folder.
fn run_name(out: &Path) -> String {
    out.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sent_before_too_many_wait_unless_the_server_is_away() {
        let home = tempfile::tempdir().unwrap();
        let settings = serde_json::from_value(serde_json::json!({"url": "http://127.0.0.1:1"})).unwrap();
        let tracker = Mlflow::open(&settings, home.path(), &[]).unwrap();
        let mut pusher = Pusher { tracker, num_dropped: 0, end: Arc::default() };
        let (sender, receiver) = channel();
        for step in 0..3 * BATCH as u64 {
            sender.send(StepValues { step, time: 0, values: vec![("train/loss".into(), 0.5)] }).unwrap();
        }
        let later = Instant::now() + Duration::from_secs(600);
        assert!(!pusher.receive(&receiver, later, false));
        assert_eq!(pusher.tracker.waiting().len(), BATCH + 1);
        drop(sender);
        assert!(pusher.receive(&receiver, later, true), "the end is known once all is received");
        assert_eq!((pusher.tracker.waiting().len(), pusher.num_dropped), (3 * BATCH, 0));
    }
}
