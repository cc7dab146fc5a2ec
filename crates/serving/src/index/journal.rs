//! Journal of catalogue changes, written to disk before a change is acknowledged. Changes are numbered; each call is
//! one frame, which is applied entirely or not at all. Frames are stored in segments, files named by the number of
//! their first change, so that old segments can be deleted.
//!
//! A frame is its length, its checksum, a checksum of both, and the payload. A crash can tear the last frame of the
//! last segment; it was never acknowledged, so it is cut off and saved to a file next to the folder. Any other broken
//! or missing frame is damage and an error.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use souk_io::atomic_dir::fsync;
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
const HEADER_BYTES: usize = 12;
/// Upper bound of a frame, above any allowed call.
const MAX_FRAME: usize = 1 << 30;
const SEGMENT_BYTES: u64 = 64 << 20;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const EXTENSION: &str = "log";

pub struct Journal {
    dir: PathBuf,
    /// Number of each segment's first change, ascending; the last segment is written to.
    segments: Vec<u64>,
    file: File,
    /// End of the last frame in the last segment.
    end: u64,
    /// Number of the last change.
    last: u64,
    /// Set when a failed write could not be rolled back.
    is_broken: bool,
}

impl Journal {
    /// Opens the journal in `dir`, or creates one that starts after change `applied`. Reads and checks every frame.
    pub fn open(dir: &Path, applied: u64) -> Result<Self> {
        fs::create_dir_all(dir).map_err(Error::store(dir, "create the folder"))?;
        let mut segments = Vec::new();
        for entry in fs::read_dir(dir).map_err(Error::store(dir, "read the folder"))? {
            let path = entry.map_err(Error::store(dir, "read the folder"))?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            match number
                .filter(|number| *number > 0 && path.extension().is_some_and(|extension| extension == EXTENSION))
            {
                Some(number) => segments.push(number),
                None => return Err(Error::data(&path, None, "is not a journal segment: move it out of the folder")),
            }
        }
        segments.sort_unstable();
        if segments.is_empty() {
            create_segment(dir, applied + 1)?;
            segments.push(applied + 1);
        }
        let (mut end, mut last) = (0, segments[0] - 1);
        for (at, first) in segments.iter().enumerate() {
            let path = segment(dir, *first);
            if *first != last + 1 {
                return Err(Error::data(&path, None, format!("the changes from {} to {first} are missing", last + 1)));
            }
            let bytes = fs::read(&path).map_err(Error::store(&path, "read the journal"))?;
            let mut frames = Frames { path: &path, bytes: &bytes, at: 0, next: *first };
            while frames.next()?.is_some() {}
            last = frames.next - 1;
            end = frames.at as u64;
            if end < bytes.len() as u64 && at + 1 < segments.len() {
                return Err(frames.damage_error());
            }
        }
        let path = segment(dir, segments[segments.len() - 1]);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(Error::store(&path, "open the journal"))?;
        let mut journal = Self { dir: dir.into(), segments, file, end, last, is_broken: false };
        if last < applied {
            let problem = format!(
                "ends at change {last}, but the index has applied {applied}: restore the missing segments, or move the \
                 folder away to continue from the index"
            );
            return Err(Error::data(dir, None, problem));
        }
        journal.cut_torn_frame()?;
        // later writes depend on what was read: it must survive a crash
        journal.file.sync_all().map_err(Error::store(&path, "write it to disk"))?;
        Ok(journal)
    }

    /// Cuts off a torn frame and saves a copy of it.
    fn cut_torn_frame(&mut self) -> Result<()> {
        let path = self.path();
        let mut torn = Vec::new();
        let read = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.read_to_end(&mut torn));
        read.map_err(Error::store(&path, "read the journal"))?;
        if torn.is_empty() {
            return Ok(());
        }
        let copy = self.dir.with_extension("torn");
        fs::write(&copy, &torn).map_err(Error::store(&copy, "save the torn bytes"))?;
        let bytes = torn.len();
        let copy = copy.display();
        tracing::warn!(path = %path.display(), bytes, %copy, "cut off a torn frame that was never acknowledged");
        self.cut()
    }

    /// Number of the last change that was trimmed.
    pub fn trimmed_until(&self) -> u64 {
        self.segments[0] - 1
    }

    /// Number of the last change, 0 if there is none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Writes the changes of one call, with vectors of `model`; returns the last change's number once they are on disk.
    pub fn append(&mut self, model: &str, changes: &[ItemChange]) -> Result<u64> {
        if changes.is_empty() {
            return Ok(self.last);
        }
        if self.is_broken {
            let problem =
                std::io::Error::other("an earlier failed write could not be rolled back: restart the service");
            return Err(Error::store(&self.path(), "write to the journal")(problem));
        }
        let frame = frame(self.last + 1, model, changes)?;
        if self.end > 0 && self.end + frame.len() as u64 > SEGMENT_BYTES {
            self.roll()?;
        }
        let written = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.write_all(&frame));
        match written.and_then(|()| self.file.sync_data()) {
            Ok(()) => {
                self.end += frame.len() as u64;
                self.last += changes.len() as u64;
                Ok(self.last)
            }
            Err(error) => {
                // an unacknowledged change must not reappear
                self.is_broken = self.cut().is_err();
                Err(Error::store(&self.path(), "write to the journal")(error))
            }
        }
    }

    /// Reader of the changes written so far; writing may continue meanwhile.
    pub fn reader(&self) -> JournalReader {
        JournalReader { dir: self.dir.clone(), segments: self.segments.clone(), end: self.end, last: self.last }
    }

    /// Deletes segments that hold only changes up to `until`.
    pub fn trim(&mut self, until: u64) -> Result<()> {
        if self.last <= until && self.end > 0 {
            self.roll()?;
        }
        while self.segments.len() > 1 && self.segments[1] <= until + 1 {
            let path = segment(&self.dir, self.segments[0]);
            fs::remove_file(&path).map_err(Error::store(&path, "remove an old segment"))?;
            self.segments.remove(0);
        }
        Ok(())
    }

    fn roll(&mut self) -> Result<()> {
        let first = self.last + 1;
        self.file = create_segment(&self.dir, first)?;
        self.segments.push(first);
        self.end = 0;
        Ok(())
    }

    fn path(&self) -> PathBuf {
        segment(&self.dir, self.segments[self.segments.len() - 1])
    }

    fn cut(&mut self) -> Result<()> {
        let cut = self.file.set_len(self.end).and_then(|()| self.file.sync_all());
        cut.map_err(Error::store(&self.path(), "cut the journal"))
    }
}

/// Snapshot of a journal for reading.
pub struct JournalReader {
    dir: PathBuf,
    segments: Vec<u64>,
    end: u64,
    last: u64,
}

impl JournalReader {
    /// Number of the last change to read.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Calls `visit` with the model and changes of each call, starting after change `after`.
    pub fn replay(&self, after: u64, visit: &mut dyn FnMut(&str, Vec<ItemChange>) -> Result<()>) -> Result<()> {
        if after + 1 < self.segments[0] {
            let problem =
                format!("the changes from {} to {} are gone, but this index needs them", after + 1, self.segments[0]);
            return Err(Error::data(&self.dir, None, problem));
        }
        for (at, first) in self.segments.iter().enumerate() {
            let next = self.segments.get(at + 1);
            if next.is_some_and(|next| *next <= after + 1) {
                continue;
            }
            let path = segment(&self.dir, *first);
            let mut bytes = Vec::new();
            let file = File::open(&path).map_err(Error::store(&path, "open the journal"))?;
            let max_bytes = if next.is_none() { self.end } else { u64::MAX };
            file.take(max_bytes).read_to_end(&mut bytes).map_err(Error::store(&path, "read the journal"))?;
            let mut frames = Frames { path: &path, bytes: &bytes, at: 0, next: *first };
            while let Some((model, mut changes)) = frames.next()? {
                let applied = (after + 1 + changes.len() as u64).saturating_sub(frames.next);
                changes.drain(..changes.len().min(applied as usize));
                if !changes.is_empty() {
                    visit(&model, changes)?;
                }
            }
            if frames.at < bytes.len() {
                return Err(frames.damage_error());
            }
        }
        Ok(())
    }
}

fn segment(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.{EXTENSION}"))
}

fn create_segment(dir: &Path, first: u64) -> Result<File> {
    let path = segment(dir, first);
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(Error::store(&path, "create a journal segment"))?;
    fsync(dir)?;
    Ok(file)
}

/// Reader of the frames of one segment.
struct Frames<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    /// Number of the next change.
    next: u64,
}

impl Frames<'_> {
    /// Next frame, or None at the end or at a torn frame.
    fn next(&mut self) -> Result<Option<(String, Vec<ItemChange>)>> {
        let rest = &self.bytes[self.at..];
        let Some((head, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        if *head == [0; HEADER_BYTES] {
            // after a crash, a file system can extend the file before it has written the bytes
            return Ok(None);
        }
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (length, sum) = (number(0) as usize, number(4));
        if crc32fast::hash(&head[..8]) != number(8) {
            return Err(self.damage_error());
        }
        let Some((frame, after)) = rest.split_at_checked(length) else { return Ok(None) };
        if crc32fast::hash(frame) != sum {
            return if after.is_empty() { Ok(None) } else { Err(self.damage_error()) };
        }
        let (first, model, changes) = read_frame(frame).ok_or_else(|| self.damage_error())?;
        if first != self.next {
            return Err(self.damage_error());
        }
        self.at += HEADER_BYTES + length;
        self.next += changes.len() as u64;
        Ok(Some((model, changes)))
    }

    fn damage_error(&self) -> Error {
        let problem = format!(
            "is damaged at byte {}: restore the file, or move the folder away to continue from the index",
            self.at
        );
        Error::data(self.path, None, problem)
    }
}

fn frame(first: u64, model: &str, changes: &[ItemChange]) -> Result<Vec<u8>> {
    let mut frame = vec![0; HEADER_BYTES];
    frame.extend(first.to_le_bytes());
    write_bytes(model.as_bytes(), &mut frame);
    for change in changes {
        let (kind, text, vector): (u8, Vec<u8>, &[f32]) = match change {
            ItemChange::Put(item, vector) => (PUT, serde_json::to_vec(item).expect("an item has a JSON form"), vector),
            ItemChange::Delete(id) => (DELETE, id.as_bytes().to_vec(), &[]),
        };
        frame.push(kind);
        write_bytes(&text, &mut frame);
        let vector: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        write_bytes(&vector, &mut frame);
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

/// First number, model and changes of a frame; None if malformed.
fn read_frame(frame: &[u8]) -> Option<(u64, String, Vec<ItemChange>)> {
    let (first, rest) = frame.split_first_chunk()?;
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
    Some((u64::from_le_bytes(*first), String::from_utf8(model.to_vec()).ok()?, changes))
}

fn read_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(id: &str) -> ItemChange {
        let item = Item {
            id: id.into(),
            title: format!("title of {id}"),
            text: String::new(),
            fields: serde_json::Map::new(),
        };
        ItemChange::Put(item, vec![0.5, -1.0])
    }

    fn all(journal: &Journal, after: u64) -> Vec<(String, ItemChange)> {
        let mut all = Vec::new();
        let mut visit = |model: &str, changes: Vec<ItemChange>| {
            all.extend(changes.into_iter().map(|change| (model.to_owned(), change)));
            Ok(())
        };
        journal.reader().replay(after, &mut visit).unwrap();
        all
    }

    #[test]
    fn replays_acknowledged_frames_and_drops_a_torn_one() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        assert_eq!(journal.append("m1", &[put("a"), put("b")]).unwrap(), 2);
        assert_eq!(journal.append("m2", &[ItemChange::Delete("a".into())]).unwrap(), 3);
        assert_eq!(journal.append("m2", &[]).unwrap(), 3);
        let expected = [("m1", put("a")), ("m1", put("b")), ("m2", ItemChange::Delete("a".into()))]
            .map(|(m, c)| (m.to_owned(), c));
        for after in 0..=3 {
            assert_eq!(all(&journal, after), expected[after as usize..]);
        }
        let path = journal.path();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        let before_last = {
            let length = u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
            HEADER_BYTES + length
        };
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
            let left = if end < before_last { 0 } else { 2 };
            assert_eq!(all(&journal, 0), expected[..left], "cut at {end}");
            let torn = end - if left == 0 { 0 } else { before_last };
            let copy = home.path().join("journal.torn");
            assert_eq!(fs::read(&copy).map_or(0, |copy| copy.len()), torn, "the torn bytes are saved");
            drop(fs::remove_file(copy));
            assert_eq!(journal.append("m1", &[put("c")]).unwrap(), left as u64 + 1);
            assert_eq!(all(&Journal::open(&home.path().join("journal"), 0).unwrap(), 0).len(), left + 1);
        }
    }

    #[test]
    fn reports_the_position_of_damage() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        journal.append("m1", &[put("a")]).unwrap();
        let second = journal.end;
        journal.append("m1", &[put("b")]).unwrap();
        let path = journal.path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[HEADER_BYTES + 3] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = Journal::open(&home.path().join("journal"), 0).err().unwrap().to_string();
        assert!(error.contains("damaged at byte 0"), "{error}");
        bytes[HEADER_BYTES + 3] ^= 1;
        // a length that points past the end is damage, not a torn frame
        bytes[2] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(Journal::open(&home.path().join("journal"), 0).is_err());
        bytes[2] ^= 1;
        // a duplicated frame
        let again = bytes[..second as usize].to_vec();
        bytes.extend(again);
        fs::write(&path, &bytes).unwrap();
        assert!(Journal::open(&home.path().join("journal"), 0).err().unwrap().to_string().contains("damaged"));
    }

    #[test]
    fn trims_old_segments_and_detects_missing_ones() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("journal");
        let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        for id in ["a", "b", "c"] {
            journal.append("m1", &[put(id)]).unwrap();
            journal.roll().unwrap();
        }
        assert_eq!(journal.segments, [1, 2, 3, 4]);
        journal.trim(1).unwrap();
        assert_eq!(journal.segments, [2, 3, 4]);
        assert_eq!(all(&journal, 1).len(), 2);
        let error = journal.reader().replay(0, &mut |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("the changes from 1 to 2 are gone"), "{error}");
        journal.append("m1", &[put("d")]).unwrap();
        journal.trim(4).unwrap();
        assert_eq!((journal.segments.as_slice(), journal.last()), ([5].as_slice(), 4));
        let journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        assert_eq!((journal.last(), journal.trimmed_until()), (4, 4));
        drop(journal);
        // an index that is ahead of the journal would miss the next writes
        let behind = Journal::open(&dir, 9).err().unwrap().to_string();
        assert!(behind.contains("ends at change 4, but the index has applied 9"), "{behind}");
        let mut after = Journal::open(&home.path().join("other"), 9).unwrap();
        assert_eq!(after.append("m1", &[put("a")]).unwrap(), 10);
        fs::rename(segment(&dir, 5), segment(&dir, 7)).unwrap();
        fs::write(segment(&dir, 5), []).unwrap();
        assert!(
            Journal::open(&home.path().join("journal"), 0)
                .err()
                .unwrap()
                .to_string()
                .contains("from 5 to 7 are missing")
        );
    }
}
