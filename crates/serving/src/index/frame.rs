//! Frame of the journal: the changes up to a position of the catalogue stream, with vectors. Its length, its checksum, a
//! checksum of both, and the payload.

use std::path::Path;

use souk_native::bytes_of;

use souk_io::domain::Item;
use souk_io::error::{Error, Result};

#[derive(Clone, Debug, PartialEq)]
pub enum ItemChange {
    /// Replaces the item with the same id. The vector is from the model named in the frame.
    Put(Item, Vec<f32>),
    Delete(String),
}

impl ItemChange {
    /// Item of a put.
    pub fn item(&self) -> Option<&Item> {
        match self {
            Self::Put(item, _) => Some(item),
            Self::Delete(_) => None,
        }
    }

    pub fn id(&self) -> &str {
        match self {
            Self::Put(item, _) => &item.id,
            Self::Delete(id) => id,
        }
    }
}

/// Bytes of a frame's length, its checksum, and the checksum of both.
pub(super) const HEADER_BYTES: usize = 12;
/// Upper bound of a frame, above any allowed call.
const MAX_FRAME: usize = 1 << 30;
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// Changes up to a position, with vectors of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub model: String,
    pub changes: Vec<ItemChange>,
    pub last: u64,
}

/// Reader of the frames of one segment.
pub(super) struct Frames<'a> {
    pub path: &'a Path,
    pub bytes: &'a [u8],
    pub at: usize,
    /// Position that was reached, plus one.
    pub next: u64,
}

impl Frames<'_> {
    /// Next frame, or None at the end or at a torn frame.
    pub fn next(&mut self) -> Result<Option<Frame>> {
        let rest = &self.bytes[self.at..];
        let Some((head, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        if *head == [0; HEADER_BYTES] {
            // after a crash, a file system can extend the file before it has written the bytes; zeros before other bytes are damage
            return if rest.iter().all(|byte| *byte == 0) { Ok(None) } else { Err(self.damage_error()) };
        }
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (length, sum) = (number(0) as usize, number(4));
        if crc32fast::hash(&head[..8]) != number(8) {
            return Err(self.damage_error());
        }
        let Some((payload, after)) = rest.split_at_checked(length) else { return Ok(None) };
        if crc32fast::hash(payload) != sum {
            return if after.is_empty() { Ok(None) } else { Err(self.damage_error()) };
        }
        let (start, frame) = read_frame(payload).ok_or_else(|| self.damage_error())?;
        if start + 1 != self.next || frame.last <= start {
            return Err(self.damage_error());
        }
        self.at += HEADER_BYTES + length;
        self.next = frame.last + 1;
        Ok(Some(frame))
    }

    pub fn damage_error(&self) -> Error {
        let problem = format!(
            "is damaged at byte {}: restore the file, or move the folder away to continue from the index",
            self.at
        );
        Error::data(self.path, None, problem)
    }
}

/// Bytes of a frame with the changes after position `start` up to `last`.
pub(super) fn frame(start: u64, last: u64, model: &str, changes: &[ItemChange]) -> Result<Vec<u8>> {
    let mut frame = vec![0; HEADER_BYTES];
    frame.extend(start.to_le_bytes());
    frame.extend(last.to_le_bytes());
    write_bytes(model.as_bytes(), &mut frame);
    for change in changes {
        let (kind, text, vector): (u8, Vec<u8>, &[f32]) = match change {
            ItemChange::Put(item, vector) => (PUT, serde_json::to_vec(item).expect("an item has a JSON form"), vector),
            ItemChange::Delete(id) => (DELETE, id.as_bytes().to_vec(), &[]),
        };
        frame.push(kind);
        write_bytes(&text, &mut frame);
        write_bytes(bytes_of(vector), &mut frame);
    }
    let length = frame.len() - HEADER_BYTES;
    if length > MAX_FRAME {
        return Err(Error::input(format!("{length} bytes of items in one call exceed the limit: send fewer")));
    }
    let sum = crc32fast::hash(&frame[HEADER_BYTES..]);
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    frame[4..8].copy_from_slice(&sum.to_le_bytes());
    let sum = crc32fast::hash(&frame[..8]);
    frame[8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    Ok(frame)
}

fn write_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    to.extend((bytes.len() as u32).to_le_bytes());
    to.extend(bytes);
}

/// A frame, and the position after which it starts; None if malformed.
fn read_frame(payload: &[u8]) -> Option<(u64, Frame)> {
    let (start, rest) = payload.split_first_chunk()?;
    let (last, rest) = rest.split_first_chunk()?;
    let (model, mut rest) = read_bytes(rest)?;
    let mut changes = Vec::new();
    while let Some((kind, after)) = rest.split_first() {
        let (text, after) = read_bytes(after)?;
        let (vector, after) = read_bytes(after)?;
        changes.push(match *kind {
            PUT => {
                let vector = vector.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
                ItemChange::Put(serde_json::from_slice(text).ok()?, vector)
            }
            DELETE => ItemChange::Delete(String::from_utf8(text.to_vec()).ok()?),
            _ => return None,
        });
        rest = after;
    }
    let (model, last) = (String::from_utf8(model.to_vec()).ok()?, u64::from_le_bytes(*last));
    Some((u64::from_le_bytes(*start), Frame { model, changes, last }))
}

fn read_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}
