//! Threads that join and commit lanes. A lane stays on one thread, so its messages and commits keep their order.
//!
//! Takes tasks, gives reports. If the tasks end without `End`, nothing more is committed, as if the process was killed.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, Scope};
use std::time::Duration;

use super::lane::{Committed, LaneCommit, OpenLane};
use super::settings::IngestSettings;
use crate::log::{HandoverToken, Lane, MessageBatch};
use souk_io::error::{Error, Result};

/// More threads than one source keeps busy.
const MAX_THREADS: usize = 4;
/// Upper bound of the tasks waiting for a thread; most are batches of about a megabyte.
const MAX_QUEUED: usize = 16;
/// Interval at which a thread without tasks checks whether a commit is due.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub enum LaneTask {
    Open(Box<OpenLane>),
    Batch(MessageBatch),
    /// Commits the lane and forgets it.
    Close(Lane, HandoverToken),
    /// Commits all lanes.
    End,
}

pub enum LaneReport {
    Committed(LaneCommit),
    /// The lane is committed; dropping the token releases it.
    Closed(Lane, HandoverToken),
    /// Another process took over a lane; the thread has stopped.
    TakenOver,
}

pub struct LaneThreads {
    tasks: Vec<SyncSender<LaneTask>>,
    reports: Receiver<Result<LaneReport>>,
    threads: BTreeMap<Lane, usize>,
}

impl LaneThreads {
    pub fn start<'scope>(scope: &'scope Scope<'scope, '_>, settings: &'scope IngestSettings) -> Result<Self> {
        let (send, reports) = channel();
        let num = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
        let start = |_| {
            let (tasks, received) = sync_channel(MAX_QUEUED);
            let reports = send.clone();
            let serve = move || {
                if let Err(error) = serve(settings, &received, &reports) {
                    drop(reports.send(Err(error)));
                }
            };
            let thread = thread::Builder::new().name("souk-lane".into()).spawn_scoped(scope, serve);
            thread.map_err(|e| Error::device("cannot start a thread that joins lanes").because(e))?;
            Ok(tasks)
        };
        let tasks = (0..num).map(start).collect::<Result<_>>()?;
        Ok(Self { tasks, reports, threads: BTreeMap::new() })
    }

    /// Waits while the lane's thread is busy. Returns false if that thread has stopped; its report tells why.
    pub fn send(&mut self, lane: &Lane, task: LaneTask) -> bool {
        let next = self.threads.len() % self.tasks.len().max(1);
        let thread = self.threads.entry(lane.clone()).or_insert(next);
        self.tasks.get(*thread).is_some_and(|tasks| tasks.send(task).is_ok())
    }

    /// Lets the threads commit all lanes and stop.
    pub fn end(&mut self) {
        for tasks in self.tasks.drain(..) {
            // a thread that has stopped has reported why
            drop(tasks.send(LaneTask::End));
        }
    }

    /// Returns the next report, or `None` if there is none yet.
    pub fn report(&self) -> Option<Result<LaneReport>> {
        self.reports.try_recv().ok()
    }

    /// Waits for the next report; `None` once all threads have stopped. They get no more tasks.
    pub fn last_report(&mut self) -> Option<Result<LaneReport>> {
        self.tasks.clear();
        self.reports.recv().ok()
    }
}

/// Runs tasks until there are no more, or another process takes over a lane.
fn serve(settings: &IngestSettings, tasks: &Receiver<LaneTask>, reports: &Sender<Result<LaneReport>>) -> Result<()> {
    let mut lanes: BTreeMap<Lane, OpenLane> = BTreeMap::new();
    // returns false if the thread must stop
    let commit = |open: &mut OpenLane| {
        let (report, goes_on) = match open.commit()? {
            Committed::Nothing => return Ok(true),
            Committed::Durable(commit) => (LaneReport::Committed(commit), true),
            Committed::TakenOver => (LaneReport::TakenOver, false),
        };
        Ok::<_, Error>(reports.send(Ok(report)).is_ok() && goes_on)
    };
    loop {
        let mut has_ended = false;
        match tasks.recv_timeout(CHECK_INTERVAL) {
            Ok(LaneTask::Open(open)) => drop(lanes.insert(open.lane().clone(), *open)),
            Ok(LaneTask::Batch(batch)) => {
                let open = lanes.get_mut(&batch.lane);
                let open = open.ok_or_else(|| Error::device(format!("lane {} is not open", batch.lane)))?;
                if !open.take(&batch, settings, commit)? {
                    return Ok(());
                }
            }
            Ok(LaneTask::Close(lane, token)) => {
                let is_ours = lanes.remove(&lane).map_or(Ok(true), |mut open| commit(&mut open))?;
                if !is_ours || reports.send(Ok(LaneReport::Closed(lane, token))).is_err() {
                    return Ok(());
                }
            }
            Ok(LaneTask::End) => has_ended = true,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        for open in lanes.values_mut() {
            if (has_ended || open.is_due(settings)) && !commit(open)? {
                return Ok(());
            }
        }
    }
}
