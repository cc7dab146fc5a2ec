//! Signs of life: a thread of each rank writes to the job's store that the rank lives and which operation it has come to.
//! When an operation fails, gives the rank at fault: one that has fallen silent, has left, or has not come this far. What
//! the first rank finds is the verdict of all. Takes no part in exchanging tensors.
//!
//! Ranks compare counts over a span of their own clock, never each other's clocks.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use souk_native::Store;

use souk_io::error::{Error, Result};

/// A rank that has given no sign for so many beats is lost.
const PATIENCE: u32 = 3;

/// What the ranks of a job know of each other: keys in the store, and who is who.
pub(super) struct Board {
    pub store: Store,
    /// Of all keys; another one for each start of the job.
    pub prefix: String,
    pub rank: usize,
    /// `rank 3 (HOST, pid 4711)`, by rank.
    pub names: Vec<String>,
    /// Who keeps the store, for when it is gone.
    pub keeper: String,
}

/// What a rank says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sign {
    beats: u64,
    /// Operations it has begun, and the last one's name.
    begun: u64,
    operation: String,
    left: bool,
}

/// This rank's sign, and the verdict as soon as this rank knows of one.
#[derive(Default)]
struct Known {
    sign: Sign,
    verdict: Option<String>,
}

/// Stops when dropped, and says so to the others.
pub(super) struct Pulse {
    known: Arc<Mutex<Known>>,
    questions: Option<Sender<SyncSender<Option<String>>>>,
    thread: Option<JoinHandle<()>>,
    beat: Duration,
    /// At fault where the store does not answer at all.
    keeper: String,
}

impl Board {
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

    /// Of several that claim, the first one's value holds for all.
    pub fn claim(&self, name: &str, value: &str) -> Result<String> {
        let holds = self.store.claim(&self.key(name), value.as_bytes())?;
        Ok(String::from_utf8_lossy(&holds).into_owned())
    }

    fn say(&self, sign: &Sign) -> Result<()> {
        let text =
            serde_json::to_vec(sign).map_err(|cause| Error::device("a sign cannot be written").because(cause))?;
        self.set(&format!("sign/{}", self.rank), &text)
    }

    /// By rank. A rank that has said nothing yet, or nothing that can be read, is at its beginning.
    fn signs(&self) -> Result<Vec<Sign>> {
        let sign = |rank| Ok(self.get(&format!("sign/{rank}"))?.and_then(|text| serde_json::from_str(&text).ok()));
        (0..self.names.len()).map(|rank| sign(rank).map(Option::unwrap_or_default)).collect()
    }
}

impl Pulse {
    pub fn start(board: Board, timeout: Duration) -> Result<Self> {
        let beat = (timeout / 20).clamp(Duration::from_millis(500), Duration::from_secs(2));
        let known = Arc::new(Mutex::new(Known::default()));
        let (questions, asked) = channel();
        let keeper = board.keeper.clone();
        let heart = Heart { board, known: known.clone(), beat };
        heart.board.say(&Sign::default())?;
        let thread = std::thread::Builder::new().name("collective pulse".into()).spawn(move || heart.run(&asked));
        let thread = thread.map_err(|cause| Error::device("no thread for the signs of life").because(cause))?;
        Ok(Self { known, questions: Some(questions), thread: Some(thread), beat, keeper })
    }

    /// How long it takes until all ranks have seen what one has written.
    pub fn patience(&self) -> Duration {
        self.beat * PATIENCE
    }

    /// To be called before each operation.
    pub fn begin(&self, operation: &str) {
        let mut known = lock(&self.known);
        known.sign.begun += 1;
        operation.clone_into(&mut known.sign.operation);
    }

    /// Which rank ended the job, as far as this one has heard.
    pub fn heard(&self) -> Option<String> {
        lock(&self.known).verdict.clone()
    }

    /// Which rank ended the job, after an operation has failed; `None` where all are well and at the same operation.
    pub fn verdict(&self) -> Option<String> {
        let known = || lock(&self.known).verdict.clone();
        let Some(questions) = &self.questions else { return known() };
        let (reply, answer) = sync_channel(1);
        if questions.send(reply).is_err() {
            return known();
        }
        match answer.recv_timeout(self.patience() * 4) {
            Ok(verdict) => verdict,
            Err(_) => known().or_else(|| Some(self.keeper.clone())),
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.questions = None;
        let Some(thread) = self.thread.take() else { return };
        // A store on a machine that has lost its power answers nobody; then the thread is left to itself.
        let end = Instant::now() + Duration::from_secs(2);
        while !thread.is_finished() && Instant::now() < end {
            sleep(Duration::from_millis(2));
        }
        if thread.is_finished() {
            drop(thread.join());
        }
    }
}

/// The thread's half.
struct Heart {
    board: Board,
    known: Arc<Mutex<Known>>,
    beat: Duration,
}

impl Heart {
    fn run(&self, questions: &Receiver<SyncSender<Option<String>>>) {
        loop {
            let question = questions.recv_timeout(self.beat);
            self.alive();
            match question {
                Ok(reply) => drop(reply.send(self.verdict())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let mut sign = {
            let known = lock(&self.known);
            if known.verdict.is_some() {
                return;
            }
            known.sign.clone()
        };
        sign.left = true;
        // nobody is left to tell where this fails
        drop(self.board.say(&sign));
    }

    /// One beat, as long as there is no verdict. A store that does not answer is one, for its keeper is gone.
    fn alive(&self) {
        let sign = {
            let mut known = lock(&self.known);
            if known.verdict.is_some() {
                return;
            }
            known.sign.beats += 1;
            known.sign.clone()
        };
        let heard = self.board.say(&sign).and_then(|()| self.board.get("verdict"));
        lock(&self.known).verdict = heard.unwrap_or_else(|_| Some(self.board.keeper.clone()));
    }

    fn verdict(&self) -> Option<String> {
        let found = || lock(&self.known).verdict.clone();
        if let Some(verdict) = found() {
            return Some(verdict);
        }
        let Ok(before) = self.board.signs() else { return Some(self.board.keeper.clone()) };
        for _ in 0..PATIENCE {
            sleep(self.beat);
            self.alive();
            if let Some(verdict) = found() {
                return Some(verdict);
            }
        }
        let Ok(after) = self.board.signs() else { return Some(self.board.keeper.clone()) };
        let own = judge(self.board.rank, &before, &after, &self.board.names, self.beat * PATIENCE)?;
        Some(self.board.claim("verdict", &own).unwrap_or(own))
    }
}

/// Which ranks are at fault, by all signs before and after a span of time; silence weighs more than leaving, leaving more
/// than being late.
fn judge(me: usize, before: &[Sign], after: &[Sign], names: &[String], span: Duration) -> Option<String> {
    let others = |at_fault: &dyn Fn(usize) -> bool| {
        let ranks: Vec<usize> = (0..after.len()).filter(|rank| *rank != me && at_fault(*rank)).collect();
        (!ranks.is_empty()).then_some(ranks)
    };
    let list = |ranks: &[usize]| ranks.iter().map(|rank| names[*rank].as_str()).collect::<Vec<_>>().join(", ");
    let Sign { begun, operation, .. } = &after[me];
    if let Some(ranks) = others(&|rank| after[rank].beats == before[rank].beats && !after[rank].left) {
        let (lost, seconds) = (list(&ranks), span.as_secs_f64());
        return Some(format!(
            "no sign of life from {lost} for {seconds:.1} s: see its machine and its own log, then start all ranks again"
        ));
    }
    if let Some(ranks) = others(&|rank| after[rank].left) {
        return Some(format!("{} left before the others were done; see what it said itself", list(&ranks)));
    }
    let ranks = others(&|rank| after[rank].begun < *begun)?;
    let (late, at) = (list(&ranks), after[ranks[0]].begun);
    Some(format!("{late} lives, but has not come to operation {begun} ({operation}): it is at {at}"))
}

fn lock(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    // plain values: whatever a panicking thread left is whole
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs(states: [(u64, u64, bool); 3]) -> Vec<Sign> {
        let sign = |(beats, begun, left)| Sign { beats, begun, operation: "all_reduce".into(), left };
        states.map(sign).to_vec()
    }

    fn judged(after: [(u64, u64, bool); 3]) -> Option<String> {
        let names: Vec<String> = (0..3).map(|rank| format!("rank {rank}")).collect();
        let before = signs([(10, 4, false), (20, 4, false), (30, 4, false)]);
        judge(1, &before, &signs(after), &names, Duration::from_millis(1500))
    }

    #[test]
    fn the_silent_come_before_those_who_left_and_those_before_the_late() {
        let silent = judged([(10, 4, false), (23, 5, false), (33, 4, true)]).unwrap();
        assert!(silent.starts_with("no sign of life from rank 0 for 1.5 s"), "{silent}");
        let both = judged([(10, 4, false), (23, 5, false), (30, 4, false)]).unwrap();
        assert!(both.contains("rank 0, rank 2"), "{both}");
        let left = judged([(13, 4, false), (23, 5, false), (30, 4, true)]).unwrap();
        assert!(left.starts_with("rank 2 left"), "{left}");
        let late = judged([(13, 4, false), (23, 5, false), (33, 5, false)]).unwrap();
        assert_eq!(late, "rank 0 lives, but has not come to operation 5 (all_reduce): it is at 4");
    }

    #[test]
    fn nobody_is_named_when_all_are_well_and_together() {
        assert_eq!(judged([(13, 5, false), (23, 5, false), (33, 5, false)]), None);
        // this rank itself may have been too busy to beat
        assert_eq!(judged([(13, 5, false), (20, 5, false), (33, 6, false)]), None);
    }
}
