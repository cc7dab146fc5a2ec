//! One lane being ingested: joins its messages and commits the result.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::chain::Chain;
use super::join::{JoinCounts, Joiner};
use super::settings::IngestSettings;
use super::shard::CommitBuffer;
use crate::log::{Lane, MessageBatch, Position};
use souk_io::error::Result;

/// Upper bound of uncommitted data per lane in memory, regardless of `commit_messages`.
const MAX_BUFFER_BYTES: usize = 64 << 20;

pub struct OpenLane {
    lane: Lane,
    chain: Chain,
    joiner: Joiner,
    buffer: CommitBuffer,
    position: Position,
    /// Expected next offsets of the parts without a message since the lane was opened.
    expected: Position,
    /// Arrival time of the first uncommitted message.
    first_arrival: Option<Instant>,
    /// Log time at the end of the last commit.
    committed_until: Option<i64>,
}

/// A commit that is durable.
pub struct LaneCommit {
    pub lane: Lane,
    pub position: Position,
    pub counts: JoinCounts,
    /// Events that wait for their query.
    pub waiting: u64,
    /// The commit's folder, if it has dead letters.
    pub dead: Option<PathBuf>,
}

/// Outcome of trying to commit a lane.
pub enum Committed {
    /// No message came since the last commit.
    Nothing,
    Durable(LaneCommit),
    /// Another process took over the lane.
    TakenOver,
}

impl OpenLane {
    /// Continues the lane at the end of its chain; the source reads it from `start`.
    pub fn new(lane: Lane, chain: Chain, joiner: Joiner, start: Position) -> Self {
        let (position, committed_until) = (chain.position().clone(), joiner.log_time());
        // another process may have committed since, so the source may start too early
        let expected = if position == start { start } else { Position::default() };
        let (buffer, first_arrival) = (CommitBuffer::default(), None);
        Self { lane, chain, joiner, buffer, position, expected, first_arrival, committed_until }
    }

    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Events that wait for their query.
    pub fn num_waiting(&self) -> u64 {
        self.joiner.waiting().len() as u64
    }

    /// Takes messages, and calls `commit` wherever their log time ends a commit, until that returns false.
    pub fn take(
        &mut self,
        batch: &MessageBatch,
        settings: &IngestSettings,
        mut commit: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<bool> {
        let longest = settings.commit_log_millis();
        for message in batch.messages() {
            let expected = if self.expected.0.is_empty() { None } else { self.expected.0.remove(message.part) };
            if expected.is_some_and(|expected| message.offset < expected) {
                tracing::warn!(lane = %batch.lane, part = message.part, "the log restarts at an earlier offset");
                self.position.0.insert(message.part.into(), message.offset);
            }
            // a source may start a little early
            if self.position.pass(message.part, message.offset, message.next) {
                self.joiner.take(&message, &mut self.buffer);
                if batch.finishes_earlier_parts && self.position.0.len() > 1 {
                    self.position.retain_part(message.part);
                }
                let now = self.joiner.log_time();
                let is_long = now.zip(self.committed_until).is_some_and(|(now, from)| now.abs_diff(from) >= longest);
                if is_long && !commit(self)? {
                    return Ok(false);
                }
                self.committed_until = self.committed_until.or(now);
            }
        }
        self.first_arrival.get_or_insert_with(Instant::now);
        Ok(true)
    }

    pub fn is_due(&self, settings: &IngestSettings) -> bool {
        self.joiner.counts.messages >= settings.commit_messages
            || self.buffer.num_bytes >= MAX_BUFFER_BYTES
            || self.first_arrival.is_some_and(|first| first.elapsed().as_secs() >= settings.commit_seconds)
    }

    pub fn commit(&mut self) -> Result<Committed> {
        self.first_arrival = None;
        self.committed_until = self.joiner.log_time();
        if self.joiner.counts.messages == 0 {
            return Ok(Committed::Nothing);
        }
        let counts = self.joiner.counts.clone();
        let mut buffer = std::mem::take(&mut self.buffer);
        if !self.chain.commit(&mut buffer, &mut self.joiner, &self.position)? {
            return Ok(Committed::TakenOver);
        }
        let folder = self.chain.newest_first().next().filter(|_| !buffer.dead.is_empty());
        Ok(Committed::Durable(LaneCommit {
            lane: self.lane.clone(),
            position: self.position.clone(),
            counts,
            waiting: self.num_waiting(),
            dead: folder.map(Path::to_path_buf),
        }))
    }
}
