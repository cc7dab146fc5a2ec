//! The search log: UBI 1.3 records, from files or Kafka, in lanes that are each read in order.
//!
//! A source gives raw messages with the place each came from. It keeps no record of what was done with them: whoever
//! consumes a lane says at its opening where to go on (`Resume`), and afterwards what is durably done (`commit`).

pub mod file;
pub mod kafka;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};

/// One ordered stream within a source: a file with its rotations, or one partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(Arc<str>);

impl Lane {
    /// A lane's name is also the name of a folder, so other characters become `_`.
    pub fn new(name: &str) -> Self {
        let safe = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        let name: String = name.chars().map(|letter| if safe(letter) { letter } else { '_' }).collect();
        // `.` and `..` name other folders, and hidden ones are for files that are being written
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

/// How far a lane is done: for each of its parts (a topic, a file) the offset of the first message that is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub BTreeMap<String, u64>);

impl Position {
    /// Takes note that everything before `next` is done.
    pub fn advance(&mut self, part: &str, next: u64) {
        match self.0.get_mut(part) {
            Some(at) => *at = next.max(*at),
            None => drop(self.0.insert(part.into(), next)),
        }
    }

    /// Takes note that all parts but this are finished.
    pub fn move_on(&mut self, part: &str) {
        self.0.retain(|other, _| other == part);
    }

    /// Whether the message at `offset` is done already.
    pub fn covers(&self, part: &str, offset: u64) -> bool {
        self.0.get(part).is_some_and(|next| offset < *next)
    }
}

/// Where a lane goes on; `None` for one that is new.
pub type Resume = Arc<dyn Fn(&Lane) -> Result<Option<Position>> + Send + Sync>;

/// What a source has to say.
pub enum Signal {
    /// Messages of this lane follow, from where `Resume` said.
    Opened(Lane, Position),
    Batch(Batch),
    /// The lane goes to another reader, who waits until the token is dropped: finish what was read of it first.
    Closed(Lane, Token),
    /// Everything has been read; only a source that does not follow its log says so.
    Ended,
}

/// Held while a lane is being handed over.
pub struct Token(#[expect(dead_code, reason = "dropping it is its message")] SyncSender<()>);

/// Messages of one lane, in order.
pub struct Batch {
    pub lane: Lane,
    /// What came before belongs to parts that are finished: a file that was rotated away.
    pub moves_on: bool,
    parts: Arc<[String]>,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    start: usize,
    end: usize,
    part: usize,
    offset: u64,
    next: u64,
}

/// One message as it lies in the log.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub payload: &'a [u8],
    pub part: &'a str,
    pub offset: u64,
    /// The offset after it.
    pub next: u64,
}

impl Batch {
    fn new(lane: Lane, parts: Arc<[String]>) -> Self {
        Self { lane, moves_on: false, parts, bytes: Vec::new(), entries: Vec::new() }
    }

    fn push(&mut self, payload: &[u8], (part, offset, next): (usize, u64, u64)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        self.entries.push(Entry { start, end: self.bytes.len(), part, offset, next });
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
        })
    }
}

/// A message that could not be used, with where it came from and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub lane: String,
    /// The topic or file.
    pub part: String,
    pub offset: u64,
    pub reason: String,
    /// As it came; bytes that are no text are replaced.
    pub payload: String,
}

/// A search log. Reading is in one thread; the source may have others of its own.
pub trait LogSource: Send {
    /// What comes next, or `None` when nothing has come for as long as `wait`.
    fn next(&mut self, wait: Duration) -> Result<Option<Signal>>;

    /// Takes note that a lane is durably done up to `position`, its low-water mark. Only to show others: the source itself
    /// goes on where `Resume` says.
    fn commit(&mut self, lane: &Lane, position: &Position) -> Result<()>;

    /// Hands dead letters to where people look for them, if the source has such a place. They are durable before.
    fn bury(&mut self, letters: &[DeadLetter]) -> Result<()>;

    /// What lies unread: bytes of files, messages of topics, as far as is known.
    fn lag(&self) -> u64;
}

/// What to do when messages that were not read yet are gone: deleted by a topic's retention, or with a rotated file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnGap {
    /// Stop and say so.
    #[default]
    Stop,
    /// Log a warning and go on with what is left.
    Skip,
}

impl OnGap {
    fn judge(self, service: &str, problem: String) -> Result<()> {
        match self {
            Self::Stop => {
                let problem = format!("{problem}; to go on with what is left: --set log.on_gap=skip");
                Err(Error::Upstream { service: service.into(), problem, retryable: false, source: None })
            }
            Self::Skip => {
                tracing::warn!(service, problem, "part of the log is gone; going on with what is left");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lanes_name_is_a_safe_folder() {
        for (name, folder) in [("ubi-0003", "ubi-0003"), ("a/b c", "a_b_c"), ("..", "_.."), ("", "_"), ("é", "_")] {
            assert_eq!(Lane::new(name).name(), folder);
        }
    }

    #[test]
    fn a_position_never_goes_back() {
        let mut position = Position::default();
        assert!(!position.covers("topic", 0));
        position.advance("topic", 5);
        position.advance("topic", 3);
        assert!(position.covers("topic", 4) && !position.covers("topic", 5) && !position.covers("other", 0));
    }
}
