//! Ingestion loop: reads a log source, joins each lane and commits the result periodically.
//!
//! Takes effect exactly once per message, however often the process is killed: a lane resumes from its last commit with
//! the joiner's state at that point, and later messages are read again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::chain::{self, Chain, Commit, write_durably};
use super::join::JoinCounts;
use super::lane::{LaneCommit, OpenLane};
use super::lane_threads::{LaneReport, LaneTask, LaneThreads};
use super::settings::IngestSettings;
use super::shard::DEAD;
use crate::log::{DeadLetter, Lane, LogSource, Position, Resume, Signal};
use souk_io::atomic_dir::create_folder;
use souk_io::checksummed::read_json_lines;
use souk_io::error::{Error, Result};
use souk_io::telemetry::LOG;

/// Marker file in a commit whose dead letters were sent.
const SENT: &str = "dead.sent";
/// Upper bound of commits searched for unsent dead letters when a lane opens.
const MAX_SEARCHED_COMMITS: usize = 1000;
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// Time without a message after which a log counts as read to its end.
const QUIET: Duration = Duration::from_millis(500);
/// Time after which a log counts as read to its end although messages keep coming.
const LONGEST_BACKLOG: Duration = Duration::from_secs(15 * 60);

/// Committed data since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IngestProgress {
    #[serde(flatten)]
    pub counts: JoinCounts,
    pub bytes: u64,
    pub commits: u64,
    /// Events currently waiting for their query.
    pub waiting: u64,
    /// Unread data, as far as the source knows.
    pub lag: u64,
    /// Whether everything that was in the log at the start has been read and committed.
    pub is_caught_up: bool,
}

/// Opens the source again, resuming where `Resume` says.
pub type OpenSource<'a> = Box<dyn FnMut(Resume) -> Result<Box<dyn LogSource>> + 'a>;

pub struct Ingest<'a> {
    home: PathBuf,
    settings: IngestSettings,
    open: OpenSource<'a>,
    stop: Arc<AtomicBool>,
}

/// A lane's share of the progress.
struct LaneProgress {
    /// Events that wait for their query.
    waiting: u64,
    /// Commits whose dead letters are not sent yet, oldest first.
    unsent: Vec<PathBuf>,
}

/// How far the log is read that was there at the start.
struct Backlog {
    began: Instant,
    /// When the last lane was opened or the last message came.
    changed: Option<Instant>,
    /// Messages given to the lanes, and those committed before.
    sent: u64,
    committed_before: u64,
    /// When the end was reached.
    ended: Option<Instant>,
}

/// Reason that reading stopped.
#[derive(PartialEq)]
enum StopReason {
    EndOfLog,
    /// Another process took over one of our lanes.
    LaneTakenOver,
}

impl<'a> Ingest<'a> {
    /// Creates an ingestion that commits to `home`, one folder per lane. Setting `stop` ends it soon, after a last
    /// commit.
    pub fn new(home: &Path, settings: IngestSettings, open: OpenSource<'a>, stop: Arc<AtomicBool>) -> Result<Self> {
        settings.check()?;
        create_folder(home)?;
        Ok(Self { home: home.into(), settings, open, stop })
    }

    /// Runs until the source ends or `stop` is set. `report` is called after every commit.
    pub fn run(&mut self, mut report: impl FnMut(&IngestProgress)) -> Result<IngestProgress> {
        let mut progress = IngestProgress::default();
        loop {
            let home = self.home.clone();
            let mut source = (self.open)(Arc::new(move |lane| chain::position(&home, lane)))?;
            let reason = thread::scope(|scope| {
                let threads = LaneThreads::start(scope, &self.settings)?;
                self.read(source.as_mut(), threads, &mut progress, &mut report)
            });
            match reason? {
                StopReason::EndOfLog => return Ok(progress),
                StopReason::LaneTakenOver => tracing::warn!("another process took over a lane; rejoining"),
            }
        }
    }

    fn read(
        &self,
        source: &mut dyn LogSource,
        mut threads: LaneThreads,
        progress: &mut IngestProgress,
        report: &mut impl FnMut(&IngestProgress),
    ) -> Result<StopReason> {
        let mut lanes = BTreeMap::new();
        let committed_before = progress.counts.messages;
        let mut backlog = Backlog { began: Instant::now(), changed: None, sent: 0, committed_before, ended: None };
        loop {
            let is_stopped = self.stop.load(Ordering::Relaxed);
            let signal = if is_stopped { Some(Signal::Ended) } else { source.next(POLL_TIMEOUT)? };
            let has_ended = matches!(signal, Some(Signal::Ended));
            let mut goes_on = !has_ended;
            match signal {
                Some(Signal::Opened(lane, start)) => {
                    backlog.changed = Some(Instant::now());
                    let open = self.open_lane(&lane, start, &mut lanes, source)?;
                    goes_on = threads.send(&lane, LaneTask::Open(Box::new(open)));
                }
                Some(Signal::Batch(batch)) => {
                    progress.bytes += batch.num_bytes() as u64;
                    (backlog.changed, backlog.sent) = (Some(Instant::now()), backlog.sent + batch.len() as u64);
                    goes_on = threads.send(&batch.lane.clone(), LaneTask::Batch(batch));
                }
                Some(Signal::Closed(lane, token)) => {
                    goes_on = threads.send(&lane.clone(), LaneTask::Close(lane, token));
                }
                Some(Signal::Ended) => threads.end(),
                None => LOG.lag.set(source.lag() as i64),
            }
            let mut is_taken_over = false;
            while let Some(received) = if goes_on { threads.report() } else { threads.last_report() } {
                match received? {
                    LaneReport::Committed(commit) => {
                        publish(commit, &mut lanes, source, progress)?;
                        report(progress);
                    }
                    LaneReport::Closed(lane, token) => {
                        lanes.remove(&lane);
                        drop(token);
                    }
                    LaneReport::TakenOver => (is_taken_over, goes_on) = (true, false),
                }
            }
            if !progress.is_caught_up && backlog.is_read(&self.settings, progress, source.lag()) {
                progress.is_caught_up = true;
                report(progress);
            }
            if is_taken_over {
                return Ok(StopReason::LaneTakenOver);
            } else if has_ended {
                progress.refresh(&lanes, source);
                report(progress);
                return Ok(StopReason::EndOfLog);
            } else if !goes_on {
                return Err(Error::device("a thread that joins lanes has ended"));
            }
        }
    }

    fn open_lane(
        &self,
        lane: &Lane,
        start: Position,
        lanes: &mut BTreeMap<Lane, LaneProgress>,
        source: &mut dyn LogSource,
    ) -> Result<OpenLane> {
        let (chain, joiner) = Chain::open(&self.home, lane, &self.settings.window, &self.settings.strength)?;
        let mut unsent = Vec::new();
        for folder in chain.newest_first().take(MAX_SEARCHED_COMMITS) {
            if folder.join(SENT).exists() {
                break;
            }
            if folder.join(DEAD).exists() {
                unsent.push(folder.to_path_buf());
            }
        }
        unsent.reverse();
        let mut opened = LaneProgress { waiting: joiner.waiting().len() as u64, unsent };
        opened.send_dead_letters(source);
        lanes.insert(lane.clone(), opened);
        Ok(OpenLane::new(lane.clone(), chain, joiner, start))
    }
}

/// Reports a durable commit to the source and adds it to the progress.
fn publish(
    commit: LaneCommit,
    lanes: &mut BTreeMap<Lane, LaneProgress>,
    source: &mut dyn LogSource,
    progress: &mut IngestProgress,
) -> Result<()> {
    let counts = &commit.counts;
    for (state, count) in [
        ("query", counts.queries),
        ("impression", counts.impressions),
        ("example", counts.examples),
        ("repeated", counts.repeated),
        ("passed_over", counts.passed_over),
        ("dead", counts.dead),
    ] {
        LOG.events.with_label_values(&[state]).inc_by(count);
    }
    progress.counts.add(counts);
    progress.commits += 1;
    if let Some(lane) = lanes.get_mut(&commit.lane) {
        lane.waiting = commit.waiting;
        lane.unsent.extend(commit.dead);
        lane.send_dead_letters(source);
    }
    source.commit(&commit.lane, &commit.position)?;
    progress.refresh(lanes, source);
    Ok(())
}

impl Backlog {
    fn is_read(&mut self, settings: &IngestSettings, progress: &IngestProgress, lag: u64) -> bool {
        let Some(quiet) = self.changed.map(|changed| changed.elapsed()) else { return false };
        let open = self.began.elapsed();
        // a busy topic has always some messages that are not read yet
        let a_second = self.sent as f64 / open.as_secs_f64();
        if quiet > QUIET || (open > 4 * QUIET && lag as f64 <= a_second) {
            self.ended.get_or_insert_with(Instant::now);
        }
        let is_durable = progress.counts.messages - self.committed_before >= self.sent;
        // of a lane that starts a little early, fewer messages are committed than were sent
        let is_overdue = |ended: Instant| ended.elapsed() > Duration::from_secs(settings.commit_seconds) + QUIET;
        self.ended.is_some_and(|ended| is_durable || is_overdue(ended)) || open > LONGEST_BACKLOG
    }
}

impl IngestProgress {
    fn refresh(&mut self, lanes: &BTreeMap<Lane, LaneProgress>, source: &dyn LogSource) {
        self.waiting = lanes.values().map(|lane| lane.waiting).sum();
        self.lag = source.lag();
        LOG.waiting.set(self.waiting as i64);
        LOG.lag.set(self.lag as i64);
    }
}

impl LaneProgress {
    /// Sends dead letters. They are stored in their commits anyway; a failed send is retried after a later commit.
    fn send_dead_letters(&mut self, source: &mut dyn LogSource) {
        while let Some(folder) = self.unsent.first() {
            let sent = Commit::load(folder).and_then(|commit| {
                let letters: Vec<DeadLetter> = read_json_lines(&folder.join(DEAD), commit.sum(folder, DEAD)?)?;
                source.send_dead_letters(&letters)?;
                write_durably(&folder.join(SENT), b"")
            });
            if let Err(error) = sent {
                tracing::warn!(commit = %folder.display(), "cannot send dead letters, will retry: {error}");
                return;
            }
            self.unsent.remove(0);
        }
    }
}
