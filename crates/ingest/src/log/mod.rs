//! Search logs: UBI 1.3 records from files or Kafka, split into lanes that are each read in order.
//!
//! A source gives raw messages with their origin. It never stores progress: the consumer supplies the resume position
//! when a lane opens (`Resume`) and reports what is durable afterwards (`commit`).

pub mod file;
pub mod kafka;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};
use souk_io::time;

/// One ordered stream within a source: a file with its rotations, or one partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(Arc<str>);

impl Lane {
    /// Creates a lane. Its name is also a folder name, so unsafe characters become `_`.
    pub fn new(name: &str) -> Self {
        let safe = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        let name: String = name.chars().map(|letter| if safe(letter) { letter } else { '_' }).collect();
        // `.` and `..` are other folders, and hidden names are reserved for files being written
        Self(if name.is_empty() || name.starts_with('.') { format!("_{name}") } else { name }.into())
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Progress of a lane: for each of its parts (a topic or a file), the offset of the first unprocessed message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub BTreeMap<String, u64>);

impl Position {
    /// Marks every message before `next` as processed. Returns false if the one at `offset` already was.
    pub fn pass(&mut self, part: &str, offset: u64, next: u64) -> bool {
        match self.0.get_mut(part) {
            Some(at) if offset < *at => false,
            Some(at) => {
                *at = next.max(*at);
                true
            }
            None => self.0.insert(part.into(), next).is_none(),
        }
    }

    /// Drops all parts but this one, because they are finished.
    pub fn retain_part(&mut self, part: &str) {
        self.0.retain(|other, _| other == part);
    }
}

/// Returns the position at which a lane resumes; `None` for a new lane.
pub type Resume = Arc<dyn Fn(&Lane) -> Result<Option<Position>> + Send + Sync>;

/// Event from a log source.
pub enum Signal {
    /// Messages of this lane follow, starting at the position that `Resume` returned.
    Opened(Lane, Position),
    Batch(MessageBatch),
    /// The lane moves to another reader, which waits until the token is dropped: commit what was read first.
    Closed(Lane, HandoverToken),
    /// End of the log; never sent by a source that follows its log.
    Ended,
}

/// Token held during a lane handover; dropping it releases the lane.
pub struct HandoverToken(#[expect(dead_code, reason = "dropping it is its message")] SyncSender<()>);

/// Messages of one lane, in order.
pub struct MessageBatch {
    pub lane: Lane,
    /// Whether earlier parts of the lane are finished, as after a file rotation.
    pub finishes_earlier_parts: bool,
    parts: Arc<[String]>,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// When this process began to fill it, in milliseconds since 1970.
    read_at: i64,
}

struct Entry {
    start: usize,
    end: usize,
    part: usize,
    offset: u64,
    next: u64,
    /// When the broker appended it, if known.
    appended_at: Option<i64>,
}

/// Raw message from the log.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub payload: &'a [u8],
    pub part: &'a str,
    pub offset: u64,
    /// Offset of the message after this one.
    pub next: u64,
    /// When the broker appended it, or else when it was read: nothing in it happened later, unless a clock is wrong.
    pub logged_at: i64,
}

impl MessageBatch {
    fn new(lane: Lane, parts: Arc<[String]>) -> Self {
        let read_at = time::now();
        Self { lane, finishes_earlier_parts: false, parts, bytes: Vec::new(), entries: Vec::new(), read_at }
    }

    /// Makes room for messages of so many bytes together.
    fn with_capacity(lane: Lane, parts: &Arc<[String]>, num_bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(num_bytes), ..Self::new(lane, parts.clone()) }
    }

    fn push(&mut self, payload: &[u8], part: usize, offset: u64, appended_at: Option<i64>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        self.entries.push(Entry { start, end: self.bytes.len(), part, offset, next: offset + 1, appended_at });
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        self.entries.iter().map(|entry| Message {
            payload: &self.bytes[entry.start..entry.end],
            part: &self.parts[entry.part],
            offset: entry.offset,
            next: entry.next,
            logged_at: entry.appended_at.unwrap_or(self.read_at),
        })
    }
}

/// Unusable message, with its origin and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub lane: String,
    /// Topic or file.
    pub part: String,
    pub offset: u64,
    pub reason: String,
    /// Original payload; invalid UTF-8 is replaced.
    pub payload: String,
}

/// Search log, read from one thread; the source may run threads of its own.
pub trait LogSource: Send {
    /// Returns the next signal, or `None` after `wait` without one.
    fn next(&mut self, wait: Duration) -> Result<Option<Signal>>;

    /// Reports that a lane is durable up to `position`, its low-water mark. Informational: the source itself resumes
    /// where `Resume` says.
    fn commit(&mut self, lane: &Lane, position: &Position) -> Result<()>;

    /// Sends dead letters to the dead-letter topic, if the source has one. They are already durable.
    fn send_dead_letters(&mut self, letters: &[DeadLetter]) -> Result<()>;

    /// Unread data, as far as known: bytes for files, messages for topics.
    fn lag(&self) -> u64;
}

/// Policy for unread messages that no longer exist: deleted by a topic's retention, or with a rotated file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnGap {
    /// Stop with an error.
    #[default]
    Stop,
    /// Log a warning and continue with the remaining messages.
    Skip,
}

impl OnGap {
    fn handle(self, service: &str, problem: String) -> Result<()> {
        match self {
            Self::Stop => {
                let problem = format!("{problem}; to continue with the remaining messages, pass --set log.on_gap=skip");
                Err(Error::Upstream { service: service.into(), problem, retryable: false, source: None })
            }
            Self::Skip => {
                tracing::warn!(service, problem, "part of the log is gone; continuing with the remaining messages");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_name_is_a_safe_folder_name() {
        for (name, folder) in [("ubi-0003", "ubi-0003"), ("a/b c", "a_b_c"), ("..", "_.."), ("", "_"), ("é", "_")] {
            assert_eq!(Lane::new(name).name(), folder);
        }
    }

    #[test]
    fn position_never_moves_backwards() {
        let mut position = Position::default();
        assert!(position.pass("topic", 0, 5));
        assert!(!position.pass("topic", 4, 9));
        assert!(position.pass("topic", 7, 3), "a gap, and an end before it");
        assert_eq!(position.0, BTreeMap::from([("topic".into(), 5)]));
        assert!(position.pass("topic", 5, 6) && position.pass("other", 0, 1));
    }
}
