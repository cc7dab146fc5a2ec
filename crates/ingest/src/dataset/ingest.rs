//! From a log to commits: reads a source, joins each lane, and makes what came of it durable now and then.
//!
//! Every message has its effect once, however often the process is killed: a lane goes on from its last commit, with the
//! joiner as it was there. What was read since is read again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::chain::{self, Chain, Commit, write_durably};
use super::join::{Counts, Joiner, Window};
use super::shard::{DEAD, Stretch};
use super::strength::Strength;
use crate::log::{Batch, DeadLetter, Lane, LogSource, Position, Resume, Signal};
use souk_io::checksummed::read_json_lines;
use souk_io::error::{Error, Result};
use souk_io::telemetry::LOG;

/// Says that a commit's dead letters have reached the place where people look for them.
const SENT: &str = "dead.sent";
/// Commits looked through, at a lane's opening, for letters that were not sent.
const LOOK_BACK: usize = 1000;
/// What of a lane is held in memory before it is made durable, whatever `commit_messages` says.
const MAX_STRETCH_BYTES: usize = 64 << 20;
const WAIT: Duration = Duration::from_millis(100);

/// How often what was read is made durable, and how it is joined.
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

/// What has become durable since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    #[serde(flatten)]
    pub counts: Counts,
    pub bytes: u64,
    pub commits: u64,
    /// Events that wait for their query now.
    pub waiting: u64,
    /// What lies unread, as far as the source knows.
    pub lag: u64,
}

/// Opens the source anew, to go on where it is told.
pub type OpenSource<'a> = Box<dyn FnMut(Resume) -> Result<Box<dyn LogSource>> + 'a>;

pub struct Ingest<'a> {
    home: PathBuf,
    settings: IngestSettings,
    open: OpenSource<'a>,
    stop: Arc<AtomicBool>,
}

struct Open {
    chain: Chain,
    joiner: Joiner,
    stretch: Stretch,
    position: Position,
    /// The parts of which no message has come since the lane was opened, and where they should go on.
    untouched: Position,
    /// When the first message since the last commit came.
    since: Option<Instant>,
    unsent: Vec<PathBuf>,
}

/// Why reading stopped.
#[derive(PartialEq)]
enum Outcome {
    Ended,
    /// Another process writes one of our lanes.
    Overtaken,
}

impl<'a> Ingest<'a> {
    /// Commits go to `home`, one folder for each lane. Set `stop` to end soon, with everything durable.
    pub fn new(home: &Path, settings: IngestSettings, open: OpenSource<'a>, stop: Arc<AtomicBool>) -> Result<Self> {
        settings.strength.check()?;
        if settings.commit_messages == 0 || settings.commit_messages > u64::from(u32::MAX) {
            return Err(Error::config("ingest.commit_messages", "must be from 1 to 4294967295"));
        }
        fs::create_dir_all(home).map_err(Error::store(home, "make the folder"))?;
        Ok(Self { home: home.into(), settings, open, stop })
    }

    /// Until the source ends or `stop` is set. `report` hears every commit.
    pub fn run(&mut self, mut report: impl FnMut(&Progress)) -> Result<Progress> {
        let mut progress = Progress::default();
        loop {
            let home = self.home.clone();
            let mut source = (self.open)(Arc::new(move |lane| chain::position(&home, lane)))?;
            match self.read(source.as_mut(), &mut progress, &mut report)? {
                Outcome::Ended => return Ok(progress),
                Outcome::Overtaken => tracing::warn!("another process has taken a lane over; joining again"),
            }
        }
    }

    fn read(
        &self,
        source: &mut dyn LogSource,
        progress: &mut Progress,
        report: &mut impl FnMut(&Progress),
    ) -> Result<Outcome> {
        let mut lanes: BTreeMap<Lane, Open> = BTreeMap::new();
        loop {
            let stopped = self.stop.load(Ordering::Relaxed);
            let signal = if stopped { Some(Signal::Ended) } else { source.next(WAIT)? };
            let mut ended = false;
            match signal {
                Some(Signal::Opened(lane, start)) => {
                    let mut open = self.open_lane(&lane, source)?;
                    // another may have committed since the source asked; then it begins too early
                    open.untouched = if open.position == start { start } else { Position::default() };
                    lanes.insert(lane, open);
                }
                Some(Signal::Batch(batch)) => {
                    let open = lanes.get_mut(&batch.lane);
                    let open = open.ok_or_else(|| Error::device(format!("{} was not opened", batch.lane)))?;
                    open.take(&batch);
                    progress.bytes += batch.num_bytes() as u64;
                }
                Some(Signal::Closed(lane, token)) => {
                    let overtaken = match lanes.remove(&lane) {
                        Some(mut open) => !open.commit(&lane, source, progress)?,
                        None => false,
                    };
                    drop(token);
                    if overtaken {
                        return Ok(Outcome::Overtaken);
                    }
                }
                Some(Signal::Ended) => ended = true,
                None => LOG.lag.set(source.lag() as i64),
            }
            let mut committed = ended;
            for (lane, open) in &mut lanes {
                if ended || open.is_due(&self.settings) {
                    committed = true;
                    if !open.commit(lane, source, progress)? {
                        return Ok(Outcome::Overtaken);
                    }
                }
            }
            if committed {
                progress.waiting = lanes.values().map(|open| open.joiner.waiting().len() as u64).sum();
                progress.lag = source.lag();
                LOG.waiting.set(progress.waiting as i64);
                LOG.lag.set(progress.lag as i64);
                report(progress);
            }
            if ended {
                return Ok(Outcome::Ended);
            }
        }
    }

    fn open_lane(&self, lane: &Lane, source: &mut dyn LogSource) -> Result<Open> {
        let (chain, joiner) = Chain::open(&self.home, lane, &self.settings.window, &self.settings.strength)?;
        let mut unsent = Vec::new();
        for folder in chain.newest_first().take(LOOK_BACK) {
            if folder.join(SENT).exists() {
                break;
            }
            if folder.join(DEAD).exists() {
                unsent.push(folder.to_path_buf());
            }
        }
        unsent.reverse();
        let position = chain.position().clone();
        let untouched = Position::default();
        let mut open = Open { chain, joiner, stretch: Stretch::default(), position, untouched, since: None, unsent };
        open.send_dead(source);
        Ok(open)
    }
}

impl Open {
    fn take(&mut self, batch: &Batch) {
        for message in batch.messages() {
            let expected = if self.untouched.0.is_empty() { None } else { self.untouched.0.remove(message.part) };
            if expected.is_some_and(|expected| message.offset < expected) {
                tracing::warn!(lane = %batch.lane, part = message.part, "the log begins anew: it was made anew, or cut short");
                self.position.0.insert(message.part.into(), message.offset);
            }
            // a source may begin a little early
            if !self.position.covers(message.part, message.offset) {
                self.joiner.take(&message, &mut self.stretch);
                self.position.advance(message.part, message.next);
                if batch.moves_on && self.position.0.len() > 1 {
                    self.position.move_on(message.part);
                }
            }
        }
        self.since.get_or_insert_with(Instant::now);
    }

    fn is_due(&self, settings: &IngestSettings) -> bool {
        self.joiner.counts.messages >= settings.commit_messages
            || self.stretch.num_bytes >= MAX_STRETCH_BYTES
            || self.since.is_some_and(|since| since.elapsed().as_secs() >= settings.commit_seconds)
    }

    /// False when another process has taken the lane over.
    fn commit(&mut self, lane: &Lane, source: &mut dyn LogSource, progress: &mut Progress) -> Result<bool> {
        self.since = None;
        if self.joiner.counts.messages == 0 {
            return Ok(true);
        }
        let counts = self.joiner.counts.clone();
        let mut stretch = std::mem::take(&mut self.stretch);
        if !self.chain.commit(&mut stretch, &mut self.joiner, &self.position)? {
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
        if !stretch.dead.is_empty() {
            self.unsent.extend(self.chain.newest_first().next().map(Path::to_path_buf));
        }
        self.send_dead(source);
        source.commit(lane, &self.position)?;
        Ok(true)
    }

    /// Letters lie in their commits whatever happens here; what cannot be sent now is sent after a later commit.
    fn send_dead(&mut self, source: &mut dyn LogSource) {
        while let Some(folder) = self.unsent.first() {
            let sent = Commit::load(folder).and_then(|commit| {
                let letters: Vec<DeadLetter> = read_json_lines(&folder.join(DEAD), commit.sum(folder, DEAD)?)?;
                source.bury(&letters)?;
                write_durably(&folder.join(SENT), b"")
            });
            if let Err(error) = sent {
                tracing::warn!(commit = %folder.display(), "dead letters are kept, but could not be sent: {error}");
                return;
            }
            self.unsent.remove(0);
        }
    }
}
