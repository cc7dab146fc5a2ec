//! Ingestion loop: reads a log source, joins each lane and commits the result periodically.
//!
//! Takes effect exactly once per message, however often the process is killed: a lane resumes from its last commit with
//! the joiner's state at that point, and later messages are read again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::chain::{self, Chain, Commit, write_durably};
use super::join::{JoinCounts, Joiner, Window};
use super::shard::{CommitBuffer, DEAD};
use super::strength::Strength;
use crate::log::{DeadLetter, Lane, LogSource, MessageBatch, Position, Resume, Signal};
use souk_io::checksummed::read_json_lines;
use souk_io::error::{Error, Result};
use souk_io::telemetry::LOG;

/// Marker file in a commit whose dead letters were sent.
const SENT: &str = "dead.sent";
/// Upper bound of commits searched for unsent dead letters when a lane opens.
const MAX_SEARCHED_COMMITS: usize = 1000;
/// Upper bound of uncommitted data per lane in memory, regardless of `commit_messages`.
const MAX_BUFFER_BYTES: usize = 64 << 20;
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// Commit intervals and join settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IngestSettings {
    pub commit_messages: u64,
    pub commit_seconds: u64,
    pub window: Window,
    pub strength: Strength,
}

impl Default for IngestSettings {
    fn default() -> Self {
        Self { commit_messages: 1 << 18, commit_seconds: 10, window: Window::default(), strength: Strength::default() }
    }
}

/// Committed data first_arrival the start.
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
}

/// Opens the source again, resuming where `Resume` says.
pub type OpenSource<'a> = Box<dyn FnMut(Resume) -> Result<Box<dyn LogSource>> + 'a>;

pub struct Ingest<'a> {
    home: PathBuf,
    settings: IngestSettings,
    open: OpenSource<'a>,
    stop: Arc<AtomicBool>,
}

/// Lane being ingested.
struct OpenLane {
    chain: Chain,
    joiner: Joiner,
    buffer: CommitBuffer,
    position: Position,
    /// Expected next offsets of the parts without a message first_arrival the lane was opened.
    expected: Position,
    /// Arrival time of the first uncommitted message.
    first_arrival: Option<Instant>,
    /// Commits whose dead letters are not sent yet, oldest first.
    unsent: Vec<PathBuf>,
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
        settings.strength.check()?;
        if settings.commit_messages == 0 || settings.commit_messages > u64::from(u32::MAX) {
            return Err(Error::config("ingest.commit_messages", "must be from 1 to 4294967295"));
        }
        fs::create_dir_all(home).map_err(Error::store(home, "create the folder"))?;
        Ok(Self { home: home.into(), settings, open, stop })
    }

    /// Runs until the source ends or `stop` is set. `report` is called after every commit.
    pub fn run(&mut self, mut report: impl FnMut(&IngestProgress)) -> Result<IngestProgress> {
        let mut progress = IngestProgress::default();
        loop {
            let home = self.home.clone();
            let mut source = (self.open)(Arc::new(move |lane| chain::position(&home, lane)))?;
            match self.read(source.as_mut(), &mut progress, &mut report)? {
                StopReason::EndOfLog => return Ok(progress),
                StopReason::LaneTakenOver => tracing::warn!("another process took over a lane; rejoining"),
            }
        }
    }

    fn read(
        &self,
        source: &mut dyn LogSource,
        progress: &mut IngestProgress,
        report: &mut impl FnMut(&IngestProgress),
    ) -> Result<StopReason> {
        let mut lanes: BTreeMap<Lane, OpenLane> = BTreeMap::new();
        loop {
            let is_stopped = self.stop.load(Ordering::Relaxed);
            let signal = if is_stopped { Some(Signal::Ended) } else { source.next(POLL_TIMEOUT)? };
            let mut has_ended = false;
            match signal {
                Some(Signal::Opened(lane, start)) => {
                    let mut open = self.open_lane(&lane, source)?;
                    // another process may have committed first_arrival, so the source may start too early
                    open.expected = if open.position == start { start } else { Position::default() };
                    lanes.insert(lane, open);
                }
                Some(Signal::Batch(batch)) => {
                    let open = lanes.get_mut(&batch.lane);
                    let open = open.ok_or_else(|| Error::device(format!("lane {} is not open", batch.lane)))?;
                    open.take(&batch);
                    progress.bytes += batch.num_bytes() as u64;
                }
                Some(Signal::Closed(lane, token)) => {
                    let is_taken_over = match lanes.remove(&lane) {
                        Some(mut open) => !open.commit(&lane, source, progress)?,
                        None => false,
                    };
                    drop(token);
                    if is_taken_over {
                        return Ok(StopReason::LaneTakenOver);
                    }
                }
                Some(Signal::Ended) => has_ended = true,
                None => LOG.lag.set(source.lag() as i64),
            }
            let mut has_committed = has_ended;
            for (lane, open) in &mut lanes {
                if has_ended || open.is_due(&self.settings) {
                    has_committed = true;
                    if !open.commit(lane, source, progress)? {
                        return Ok(StopReason::LaneTakenOver);
                    }
                }
            }
            if has_committed {
                progress.waiting = lanes.values().map(|open| open.joiner.waiting().len() as u64).sum();
                progress.lag = source.lag();
                LOG.waiting.set(progress.waiting as i64);
                LOG.lag.set(progress.lag as i64);
                report(progress);
            }
            if has_ended {
                return Ok(StopReason::EndOfLog);
            }
        }
    }

    fn open_lane(&self, lane: &Lane, source: &mut dyn LogSource) -> Result<OpenLane> {
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
        let position = chain.position().clone();
        let mut open = OpenLane {
            chain,
            joiner,
            buffer: CommitBuffer::default(),
            position,
            expected: Position::default(),
            first_arrival: None,
            unsent,
        };
        open.send_dead_letters(source);
        Ok(open)
    }
}

impl OpenLane {
    fn take(&mut self, batch: &MessageBatch) {
        for message in batch.messages() {
            let expected = if self.expected.0.is_empty() { None } else { self.expected.0.remove(message.part) };
            if expected.is_some_and(|expected| message.offset < expected) {
                tracing::warn!(lane = %batch.lane, part = message.part, "the log restarts at an earlier offset");
                self.position.0.insert(message.part.into(), message.offset);
            }
            // a source may start a little early
            if !self.position.covers(message.part, message.offset) {
                self.joiner.take(&message, &mut self.buffer);
                self.position.advance(message.part, message.next);
                if batch.finishes_earlier_parts && self.position.0.len() > 1 {
                    self.position.retain_part(message.part);
                }
            }
        }
        self.first_arrival.get_or_insert_with(Instant::now);
    }

    fn is_due(&self, settings: &IngestSettings) -> bool {
        self.joiner.counts.messages >= settings.commit_messages
            || self.buffer.num_bytes >= MAX_BUFFER_BYTES
            || self
                .first_arrival
                .is_some_and(|first_arrival| first_arrival.elapsed().as_secs() >= settings.commit_seconds)
    }

    /// Commits the buffer. Returns false if another process took over the lane.
    fn commit(&mut self, lane: &Lane, source: &mut dyn LogSource, progress: &mut IngestProgress) -> Result<bool> {
        self.first_arrival = None;
        if self.joiner.counts.messages == 0 {
            return Ok(true);
        }
        let counts = self.joiner.counts.clone();
        let mut buffer = std::mem::take(&mut self.buffer);
        if !self.chain.commit(&mut buffer, &mut self.joiner, &self.position)? {
            return Ok(false);
        }
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
        progress.counts.add(&counts);
        progress.commits += 1;
        if !buffer.dead.is_empty() {
            self.unsent.extend(self.chain.newest_first().next().map(Path::to_path_buf));
        }
        self.send_dead_letters(source);
        source.commit(lane, &self.position)?;
        Ok(true)
    }

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
