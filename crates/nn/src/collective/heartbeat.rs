//! Heartbeats: a thread of each rank writes to the job's store that the rank is alive and which operation it has reached.
//! When an operation fails, it determines the rank at fault: one that is silent, has left, or lags behind. The first rank
//! to find it publishes the verdict for all. Never exchanges tensors.
//!
//! Ranks compare counters over a span of their own clock, never each other's clocks.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use souk_native::Store;

use souk_io::error::{Error, Result};

/// Beats without a new status after which a rank counts as lost.
const MAX_MISSED_BEATS: u32 = 3;

/// Status of all ranks of a job, as keys in the store.
pub(super) struct StatusBoard {
    pub store: Store,
    /// Prefix of all keys; differs for each start of the job.
    pub prefix: String,
    pub rank: usize,
    /// `rank 3 (HOST, pid 4711)`, by rank.
    pub names: Vec<String>,
    /// Error text for a lost store: names the process that keeps it.
    pub keeper: String,
}

/// Status that a rank publishes about itself; stored as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct RankStatus {
    beats: u64,
    /// Number of operations begun; `operation` is the name of the last one.
    begun: u64,
    operation: String,
    left: bool,
}

/// This rank's status, and the verdict once this rank knows one.
#[derive(Default)]
struct HeartbeatState {
    status: RankStatus,
    verdict: Option<String>,
}

/// Handle to the heartbeat thread. Dropping it stops the thread and marks the rank as having left.
pub(super) struct Heartbeat {
    state: Arc<Mutex<HeartbeatState>>,
    requests: Option<Sender<SyncSender<Option<String>>>>,
    thread: Option<JoinHandle<()>>,
    beat: Duration,
    /// Verdict if the store does not answer at all.
    keeper: String,
}

impl StatusBoard {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    pub fn set(&self, name: &str, value: &[u8]) -> Result<()> {
        Ok(self.store.set(&self.key(name), value)?)
    }

    pub fn get(&self, name: &str) -> Result<Option<String>> {
        let value = self.store.get(&self.key(name))?;
        Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Sets the key unless another rank already has; returns the stored value, which is the same on all ranks.
    pub fn set_if_absent(&self, name: &str, value: &str) -> Result<String> {
        let stored = self.store.set_if_absent(&self.key(name), value.as_bytes())?;
        Ok(String::from_utf8_lossy(&stored).into_owned())
    }

    fn publish(&self, status: &RankStatus) -> Result<()> {
        let text = serde_json::to_vec(status)
            .map_err(|cause| Error::device("cannot serialize the heartbeat status").because(cause))?;
        self.set(&format!("sign/{}", self.rank), &text)
    }

    /// Statuses by rank. A rank without a readable status gets the default one.
    fn statuses(&self) -> Result<Vec<RankStatus>> {
        let status = |rank| Ok(self.get(&format!("sign/{rank}"))?.and_then(|text| serde_json::from_str(&text).ok()));
        (0..self.names.len()).map(|rank| status(rank).map(Option::unwrap_or_default)).collect()
    }
}

impl Heartbeat {
    pub fn start(board: StatusBoard, timeout: Duration) -> Result<Self> {
        let beat = (timeout / 20).clamp(Duration::from_millis(500), Duration::from_secs(2));
        let state = Arc::new(Mutex::new(HeartbeatState::default()));
        let (requests, receiver) = channel();
        let keeper = board.keeper.clone();
        let worker = HeartbeatThread { board, state: state.clone(), beat };
        worker.board.publish(&RankStatus::default())?;
        let thread =
            std::thread::Builder::new().name("collective heartbeat".into()).spawn(move || worker.run(&receiver));
        let thread = thread.map_err(|cause| Error::device("cannot start the heartbeat thread").because(cause))?;
        Ok(Self { state, requests: Some(requests), thread: Some(thread), beat, keeper })
    }

    /// Time after which all ranks have seen a value that one rank has written.
    pub fn grace_period(&self) -> Duration {
        self.beat * MAX_MISSED_BEATS
    }

    /// Counts an operation; call it before each one.
    pub fn begin(&self, operation: &str) {
        let mut state = lock(&self.state);
        state.status.begun += 1;
        operation.clone_into(&mut state.status.operation);
    }

    /// Last verdict seen by the heartbeat thread; asks nobody.
    pub fn known_verdict(&self) -> Option<String> {
        lock(&self.state).verdict.clone()
    }

    /// Determines the rank at fault after a failed operation; `None` if all ranks are alive and at the same operation.
    pub fn verdict(&self) -> Option<String> {
        let Some(requests) = &self.requests else { return self.known_verdict() };
        let (reply, answer) = sync_channel(1);
        if requests.send(reply).is_err() {
            return self.known_verdict();
        }
        match answer.recv_timeout(self.grace_period() * 4) {
            Ok(verdict) => verdict,
            Err(_) => self.known_verdict().or_else(|| Some(self.keeper.clone())),
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.requests = None;
        let Some(thread) = self.thread.take() else { return };
        // A store on a machine without power never answers: detach the thread then.
        let end = Instant::now() + Duration::from_secs(2);
        while !thread.is_finished() && Instant::now() < end {
            sleep(Duration::from_millis(2));
        }
        if thread.is_finished() {
            drop(thread.join());
        }
    }
}

/// State owned by the heartbeat thread.
struct HeartbeatThread {
    board: StatusBoard,
    state: Arc<Mutex<HeartbeatState>>,
    beat: Duration,
}

impl HeartbeatThread {
    fn run(&self, requests: &Receiver<SyncSender<Option<String>>>) {
        loop {
            let request = requests.recv_timeout(self.beat);
            self.beat_once();
            match request {
                Ok(reply) => drop(reply.send(self.verdict())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let mut status = {
            let state = lock(&self.state);
            if state.verdict.is_some() {
                return;
            }
            state.status.clone()
        };
        status.left = true;
        // best effort: the job is ending, nothing handles an error here
        drop(self.board.publish(&status));
    }

    /// Publishes one beat unless there is a verdict. A store that does not answer is a verdict: its keeper is gone.
    fn beat_once(&self) {
        let status = {
            let mut state = lock(&self.state);
            if state.verdict.is_some() {
                return;
            }
            state.status.beats += 1;
            state.status.clone()
        };
        let verdict = self.board.publish(&status).and_then(|()| self.board.get("verdict"));
        lock(&self.state).verdict = verdict.unwrap_or_else(|_| Some(self.board.keeper.clone()));
    }

    fn verdict(&self) -> Option<String> {
        let found = || lock(&self.state).verdict.clone();
        if let Some(verdict) = found() {
            return Some(verdict);
        }
        let Ok(before) = self.board.statuses() else { return Some(self.board.keeper.clone()) };
        for _ in 0..MAX_MISSED_BEATS {
            sleep(self.beat);
            self.beat_once();
            if let Some(verdict) = found() {
                return Some(verdict);
            }
        }
        let Ok(after) = self.board.statuses() else { return Some(self.board.keeper.clone()) };
        let own = find_fault(self.board.rank, &before, &after, &self.board.names, self.beat * MAX_MISSED_BEATS)?;
        Some(self.board.set_if_absent("verdict", &own).unwrap_or(own))
    }
}

/// Determines the ranks at fault from all statuses before and after a span of time. Silence takes precedence over leaving,
/// leaving over lagging.
fn find_fault(
    me: usize,
    before: &[RankStatus],
    after: &[RankStatus],
    names: &[String],
    span: Duration,
) -> Option<String> {
    let others = |at_fault: &dyn Fn(usize) -> bool| {
        let ranks: Vec<usize> = (0..after.len()).filter(|rank| *rank != me && at_fault(*rank)).collect();
        (!ranks.is_empty()).then_some(ranks)
    };
    let list = |ranks: &[usize]| ranks.iter().map(|rank| names[*rank].as_str()).collect::<Vec<_>>().join(", ");
    let RankStatus { begun, operation, .. } = &after[me];
    if let Some(ranks) = others(&|rank| after[rank].beats == before[rank].beats && !after[rank].left) {
        let (lost, seconds) = (list(&ranks), span.as_secs_f64());
        return Some(format!(
            "no heartbeat from {lost} for {seconds:.1} s: check its machine and its log, then restart all ranks"
        ));
    }
    if let Some(ranks) = others(&|rank| after[rank].left) {
        return Some(format!("{} left before the others were done: check its log", list(&ranks)));
    }
    let ranks = others(&|rank| after[rank].begun < *begun)?;
    let (late, at) = (list(&ranks), after[ranks[0]].begun);
    Some(format!("{late} is alive, but has not reached operation {begun} ({operation}): it is at {at}"))
}

fn lock(state: &Mutex<HeartbeatState>) -> std::sync::MutexGuard<'_, HeartbeatState> {
    // plain values stay consistent even if a thread panicked while holding the lock
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statuses(states: [(u64, u64, bool); 3]) -> Vec<RankStatus> {
        let status = |(beats, begun, left)| RankStatus { beats, begun, operation: "all_reduce".into(), left };
        states.map(status).to_vec()
    }

    fn fault(after: [(u64, u64, bool); 3]) -> Option<String> {
        let names: Vec<String> = (0..3).map(|rank| format!("rank {rank}")).collect();
        let before = statuses([(10, 4, false), (20, 4, false), (30, 4, false)]);
        find_fault(1, &before, &statuses(after), &names, Duration::from_millis(1500))
    }

    #[test]
    fn silent_ranks_take_precedence_over_left_and_late_ones() {
        let silent = fault([(10, 4, false), (23, 5, false), (33, 4, true)]).unwrap();
        assert!(silent.starts_with("no heartbeat from rank 0 for 1.5 s"), "{silent}");
        let both = fault([(10, 4, false), (23, 5, false), (30, 4, false)]).unwrap();
        assert!(both.contains("rank 0, rank 2"), "{both}");
        let left = fault([(13, 4, false), (23, 5, false), (30, 4, true)]).unwrap();
        assert!(left.starts_with("rank 2 left"), "{left}");
        let late = fault([(13, 4, false), (23, 5, false), (33, 5, false)]).unwrap();
        assert_eq!(late, "rank 0 is alive, but has not reached operation 5 (all_reduce): it is at 4");
    }

    #[test]
    fn no_verdict_when_all_ranks_are_alive_and_at_the_same_operation() {
        assert_eq!(fault([(13, 5, false), (23, 5, false), (33, 5, false)]), None);
        // this rank's own missing beats do not count
        assert_eq!(fault([(13, 5, false), (20, 5, false), (33, 6, false)]), None);
    }
}
