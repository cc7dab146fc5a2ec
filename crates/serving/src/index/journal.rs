//! What became of a catalogue, on disk before it is answered for. Each change has a number; a call is a frame that counts
//! whole or not at all. Frames lie in segments, files named by the number of their first change, so that old ones can go.
//!
//! A frame is its length, its checksum, the checksum of both, and what it says. The last of the last segment may be torn where
//! the machine stopped while it was written: nobody was told that it is there, and it is cut off, into a file beside the
//! folder. Any other that is broken or missing is damage, and an error.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use souk_io::atomic_dir::sync_one;
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The item takes the place of what has its id. The vector is of the model that the frame names.
    Put(Item, Vec<f32>),
    Delete(String),
}

impl Change {
    /// What is put in.
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

/// Length and checksum before each frame, and the checksum of these.
const HEAD: usize = 12;
/// More than any call may have.
const MAX_FRAME: usize = 1 << 30;
const SEGMENT_BYTES: u64 = 64 << 20;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const ENDING: &str = "log";

pub struct Journal {
    dir: PathBuf,
    /// The numbers of their first changes, in order; the last is written to.
    segments: Vec<u64>,
    file: File,
    /// Where the next frame begins in the last segment.
    end: u64,
    /// The number of the last change.
    last: u64,
    /// An earlier write could not be taken back.
    broken: bool,
}

impl Journal {
    /// Opens the journal in `dir`, or begins one after the change `known`; all of it is read and checked.
    pub fn open(dir: &Path, known: u64) -> Result<Self> {
        fs::create_dir_all(dir).map_err(Error::store(dir, "make the folder"))?;
        let mut segments = Vec::new();
        for entry in fs::read_dir(dir).map_err(Error::store(dir, "read the folder"))? {
            let path = entry.map_err(Error::store(dir, "read the folder"))?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            match number.filter(|number| *number > 0 && path.extension().is_some_and(|ending| ending == ENDING)) {
                Some(number) => segments.push(number),
                None => return Err(Error::data(&path, None, "is no part of a journal: put it elsewhere")),
            }
        }
        segments.sort_unstable();
        if segments.is_empty() {
            begin(dir, known + 1)?;
            segments.push(known + 1);
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
                return Err(frames.damaged());
            }
        }
        let path = segment(dir, segments[segments.len() - 1]);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(Error::store(&path, "open the journal"))?;
        let mut journal = Self { dir: dir.into(), segments, file, end, last, broken: false };
        if last < known {
            let problem = format!(
                "ends at change {last}, and the index knows {known}: restore what is missing, or move the folder away \
                 to go on with what the index knows"
            );
            return Err(Error::data(dir, None, problem));
        }
        journal.cut_what_is_torn()?;
        // what was read is built upon: it must not go where the machine stops
        journal.file.sync_all().map_err(Error::store(&path, "write it to disk"))?;
        Ok(journal)
    }

    /// Keeps a copy, should it be more than was torn.
    fn cut_what_is_torn(&mut self) -> Result<()> {
        let path = self.path();
        let mut torn = Vec::new();
        let read = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.read_to_end(&mut torn));
        read.map_err(Error::store(&path, "read the journal"))?;
        if torn.is_empty() {
            return Ok(());
        }
        let copy = self.dir.with_extension("torn");
        fs::write(&copy, &torn).map_err(Error::store(&copy, "keep what is cut off"))?;
        let bytes = torn.len();
        tracing::warn!(path = %path.display(), bytes, copy = %copy.display(), "was never acknowledged: cut off");
        self.cut()
    }

    /// The number of the change before the first that is kept.
    pub fn forgotten(&self) -> u64 {
        self.segments[0] - 1
    }

    /// The number of the last change; 0 where there was none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Writes the changes of one call, whose vectors `model` made, and gives the number of the last when they are on disk.
    pub fn append(&mut self, model: &str, changes: &[Change]) -> Result<u64> {
        if changes.is_empty() {
            return Ok(self.last);
        }
        if self.broken {
            let problem = std::io::Error::other("an earlier write could not be taken back");
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
                // what was not acknowledged must not come back
                self.broken = self.cut().is_err();
                Err(Error::store(&self.path(), "write to the journal")(error))
            }
        }
    }

    /// What there is to read from now on; writing may go on meanwhile.
    pub fn reader(&self) -> JournalReader {
        JournalReader { dir: self.dir.clone(), segments: self.segments.clone(), end: self.end, last: self.last }
    }

    /// Lets go of segments whose changes are all known to who keeps `until` and what follows.
    pub fn forget(&mut self, until: u64) -> Result<()> {
        if self.last <= until && self.end > 0 {
            self.roll()?;
        }
        while self.segments.len() > 1 && self.segments[1] <= until + 1 {
            let path = segment(&self.dir, self.segments[0]);
            fs::remove_file(&path).map_err(Error::store(&path, "remove what is old"))?;
            self.segments.remove(0);
        }
        Ok(())
    }

    fn roll(&mut self) -> Result<()> {
        let first = self.last + 1;
        self.file = begin(&self.dir, first)?;
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

/// Reads what a journal held when it was asked.
pub struct JournalReader {
    dir: PathBuf,
    segments: Vec<u64>,
    end: u64,
    last: u64,
}

impl JournalReader {
    /// The number of the last change that is read.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Gives the calls that have a change after `after`, from that change on, with the model that made their vectors.
    pub fn replay(&self, after: u64, give: &mut dyn FnMut(&str, Vec<Change>) -> Result<()>) -> Result<()> {
        if after + 1 < self.segments[0] {
            let problem =
                format!("the changes from {} to {} are gone, and this index misses them", after + 1, self.segments[0]);
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
            let most = if next.is_none() { self.end } else { u64::MAX };
            file.take(most).read_to_end(&mut bytes).map_err(Error::store(&path, "read the journal"))?;
            let mut frames = Frames { path: &path, bytes: &bytes, at: 0, next: *first };
            while let Some((model, mut changes)) = frames.next()? {
                let known = (after + 1 + changes.len() as u64).saturating_sub(frames.next);
                changes.drain(..changes.len().min(known as usize));
                if !changes.is_empty() {
                    give(&model, changes)?;
                }
            }
            if frames.at < bytes.len() {
                return Err(frames.damaged());
            }
        }
        Ok(())
    }
}

fn segment(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.{ENDING}"))
}

fn begin(dir: &Path, first: u64) -> Result<File> {
    let path = segment(dir, first);
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(Error::store(&path, "begin a journal"))?;
    sync_one(dir)?;
    Ok(file)
}

/// The frames of one segment.
struct Frames<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    /// The number that the next change has.
    next: u64,
}

impl Frames<'_> {
    /// Nothing where the last was torn, or there is no more.
    fn next(&mut self) -> Result<Option<(String, Vec<Change>)>> {
        let rest = &self.bytes[self.at..];
        let Some((head, rest)) = rest.split_first_chunk::<HEAD>() else { return Ok(None) };
        if *head == [0; HEAD] {
            // what a file system gives where it knew the length of the file and not yet these bytes
            return Ok(None);
        }
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (length, sum) = (number(0) as usize, number(4));
        if crc32fast::hash(&head[..8]) != number(8) {
            return Err(self.damaged());
        }
        let Some((frame, after)) = rest.split_at_checked(length) else { return Ok(None) };
        if crc32fast::hash(frame) != sum {
            return if after.is_empty() { Ok(None) } else { Err(self.damaged()) };
        }
        let (first, model, changes) = read_frame(frame).ok_or_else(|| self.damaged())?;
        if first != self.next {
            return Err(self.damaged());
        }
        self.at += HEAD + length;
        self.next += changes.len() as u64;
        Ok(Some((model, changes)))
    }

    fn damaged(&self) -> Error {
        let problem = format!(
            "is damaged at byte {}: restore the file, or move the folder away to go on with what the index knows",
            self.at
        );
        Error::data(self.path, None, problem)
    }
}

fn frame(first: u64, model: &str, changes: &[Change]) -> Result<Vec<u8>> {
    let mut frame = vec![0; HEAD];
    frame.extend(first.to_le_bytes());
    write_bytes(model.as_bytes(), &mut frame);
    for change in changes {
        let (kind, text, vector): (u8, Vec<u8>, &[f32]) = match change {
            Change::Put(item, vector) => (PUT, serde_json::to_vec(item).expect("an item has a JSON form"), vector),
            Change::Delete(id) => (DELETE, id.as_bytes().to_vec(), &[]),
        };
        frame.push(kind);
        write_bytes(&text, &mut frame);
        let vector: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        write_bytes(&vector, &mut frame);
    }
    let length = frame.len() - HEAD;
    if length > MAX_FRAME {
        return Err(Error::input(format!("{length} bytes of items at once: send fewer")));
    }
    let sum = crc32fast::hash(&frame[HEAD..]);
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    frame[4..8].copy_from_slice(&sum.to_le_bytes());
    let sum = crc32fast::hash(&frame[..8]);
    frame[8..HEAD].copy_from_slice(&sum.to_le_bytes());
    Ok(frame)
}

fn write_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    to.extend((bytes.len() as u32).to_le_bytes());
    to.extend(bytes);
}

/// The number of the first change, the model and the changes; nothing where this is no frame.
fn read_frame(frame: &[u8]) -> Option<(u64, String, Vec<Change>)> {
    let (first, rest) = frame.split_first_chunk()?;
    let (model, mut rest) = read_bytes(rest)?;
    let mut changes = Vec::new();
    while let Some((kind, after)) = rest.split_first() {
        let (text, after) = read_bytes(after)?;
        let (vector, after) = read_bytes(after)?;
        changes.push(match *kind {
            PUT => {
                let vector = vector.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
                Change::Put(serde_json::from_slice(text).ok()?, vector)
            }
            DELETE => Change::Delete(String::from_utf8(text.to_vec()).ok()?),
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

    fn put(id: &str) -> Change {
        let item = Item {
            id: id.into(),
            title: format!("title of {id}"),
            text: String::new(),
            fields: serde_json::Map::new(),
        };
        Change::Put(item, vec![0.5, -1.0])
    }

    fn all(journal: &Journal, after: u64) -> Vec<(String, Change)> {
        let mut all = Vec::new();
        let mut give = |model: &str, changes: Vec<Change>| {
            all.extend(changes.into_iter().map(|change| (model.to_owned(), change)));
            Ok(())
        };
        journal.reader().replay(after, &mut give).unwrap();
        all
    }

    #[test]
    fn what_was_acknowledged_comes_back_and_what_was_torn_does_not() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        assert_eq!(journal.append("m1", &[put("a"), put("b")]).unwrap(), 2);
        assert_eq!(journal.append("m2", &[Change::Delete("a".into())]).unwrap(), 3);
        assert_eq!(journal.append("m2", &[]).unwrap(), 3);
        let expected =
            [("m1", put("a")), ("m1", put("b")), ("m2", Change::Delete("a".into()))].map(|(m, c)| (m.to_owned(), c));
        for after in 0..=3 {
            assert_eq!(all(&journal, after), expected[after as usize..]);
        }
        let path = journal.path();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        let before_last = {
            let length = u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
            HEAD + length
        };
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
            let left = if end < before_last { 0 } else { 2 };
            assert_eq!(all(&journal, 0), expected[..left], "cut at {end}");
            let torn = end - if left == 0 { 0 } else { before_last };
            let copy = home.path().join("journal.torn");
            assert_eq!(fs::read(&copy).map_or(0, |copy| copy.len()), torn, "what is cut off is kept");
            drop(fs::remove_file(copy));
            assert_eq!(journal.append("m1", &[put("c")]).unwrap(), left as u64 + 1);
            assert_eq!(all(&Journal::open(&home.path().join("journal"), 0).unwrap(), 0).len(), left + 1);
        }
    }

    #[test]
    fn damage_is_an_error_that_says_where() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        journal.append("m1", &[put("a")]).unwrap();
        let second = journal.end;
        journal.append("m1", &[put("b")]).unwrap();
        let path = journal.path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[HEAD + 3] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = Journal::open(&home.path().join("journal"), 0).err().unwrap().to_string();
        assert!(error.contains("damaged at byte 0"), "{error}");
        bytes[HEAD + 3] ^= 1;
        // a length that leads past the end is no torn frame
        bytes[2] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(Journal::open(&home.path().join("journal"), 0).is_err());
        bytes[2] ^= 1;
        // a frame that is there twice
        let again = bytes[..second as usize].to_vec();
        bytes.extend(again);
        fs::write(&path, &bytes).unwrap();
        assert!(Journal::open(&home.path().join("journal"), 0).err().unwrap().to_string().contains("damaged"));
    }

    #[test]
    fn what_everybody_knows_is_let_go_and_what_is_missing_is_noticed() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("journal");
        let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        for id in ["a", "b", "c"] {
            journal.append("m1", &[put(id)]).unwrap();
            journal.roll().unwrap();
        }
        assert_eq!(journal.segments, [1, 2, 3, 4]);
        journal.forget(1).unwrap();
        assert_eq!(journal.segments, [2, 3, 4]);
        assert_eq!(all(&journal, 1).len(), 2);
        let error = journal.reader().replay(0, &mut |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("the changes from 1 to 2 are gone"), "{error}");
        journal.append("m1", &[put("d")]).unwrap();
        journal.forget(4).unwrap();
        assert_eq!((journal.segments.as_slice(), journal.last()), ([5].as_slice(), 4));
        let journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        assert_eq!((journal.last(), journal.forgotten()), (4, 4));
        drop(journal);
        // an index that knows more than the journal would miss what is written next
        let behind = Journal::open(&dir, 9).err().unwrap().to_string();
        assert!(behind.contains("ends at change 4, and the index knows 9"), "{behind}");
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
