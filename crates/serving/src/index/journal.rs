//! A replica's own copy of the catalogue stream, with vectors, on disk before a change is applied. A frame holds the changes from one
//! position of the stream to another. Frames are stored in segments, files named by the position after which they start,
//! plus one, so that old segments can be deleted.
//!
//! A crash can tear the last frame of the last segment; it was never acknowledged, so it is cut off and saved to a file next
//! to the folder. Any other broken or missing frame is damage and an error.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::frame::{Frame, Frames, ItemChange, frame};
use souk_io::atomic_dir::{create_folder, fsync};
use souk_io::error::{Error, Result};

const SEGMENT_BYTES: u64 = 64 << 20;
const EXTENSION: &str = "changes";
/// Extension of earlier versions, whose changes are in no stream.
const OLD_EXTENSION: &str = "log";

pub struct Journal {
    dir: PathBuf,
    /// Position after which each segment starts, plus one, ascending; the last segment is written to.
    segments: Vec<u64>,
    file: File,
    /// End of the last frame in the last segment.
    end: u64,
    /// Position that was reached.
    last: u64,
    /// Set when a failed write could not be rolled back.
    is_broken: bool,
}

impl Journal {
    /// Opens the journal in `dir`, or creates one that starts after position `applied`. Reads and checks every frame.
    pub fn open(dir: &Path, applied: u64) -> Result<Self> {
        create_folder(dir)?;
        let mut segments = Vec::new();
        for entry in fs::read_dir(dir).map_err(Error::store(dir, "read the folder"))? {
            let path = entry.map_err(Error::store(dir, "read the folder"))?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            match number
                .filter(|number| *number > 0 && path.extension().is_some_and(|extension| extension == EXTENSION))
            {
                Some(number) => segments.push(number),
                None if is_old(&path) && fs::metadata(&path).is_ok_and(|found| found.len() == 0) => {
                    fs::remove_file(&path).map_err(Error::store(&path, "remove it"))?;
                }
                None if is_old(&path) => {
                    let problem = "has changes that an earlier version of Souk wrote and that are in no stream: move the state folder \
                                   away, start from the data folder, and put the changed items again";
                    return Err(Error::data(&path, None, problem));
                }
                None => return Err(Error::data(&path, None, "is not a journal segment: move it out of the folder")),
            }
        }
        segments.sort_unstable();
        if segments.is_empty() {
            create_segment(dir, applied + 1)?;
            segments.push(applied + 1);
        }
        let Frontier { segments, end, last } = read_segments(dir, &segments)?;
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

    /// Position that was reached, 0 at the start.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Writes the changes up to position `last` of the stream, with vectors of `model`. They are on disk when it returns.
    pub fn append(&mut self, model: &str, changes: &[ItemChange], last: u64) -> Result<()> {
        if last <= self.last {
            let problem = format!("the changes up to {last} were written before: the journal is at {}", self.last);
            return Err(Error::input(problem));
        }
        if self.is_broken {
            let problem =
                std::io::Error::other("an earlier failed write could not be rolled back: restart the service");
            return Err(Error::store(&self.path(), "write to the journal")(problem));
        }
        let frame = frame(self.last, last, model, changes)?;
        if self.end > 0 && self.end + frame.len() as u64 > SEGMENT_BYTES {
            self.roll()?;
        }
        let written = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.write_all(&frame));
        match written.and_then(|()| self.file.sync_data()) {
            Ok(()) => {
                self.end += frame.len() as u64;
                self.last = last;
                Ok(())
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

/// Where the segments of a journal end.
struct Frontier {
    segments: Vec<u64>,
    end: u64,
    last: u64,
}

/// Reads and checks all frames, and removes empty segments that a failed roll left.
fn read_segments(dir: &Path, found: &[u64]) -> Result<Frontier> {
    let mut frontier = Frontier { segments: Vec::new(), end: 0, last: found[0] - 1 };
    let mut torn: Option<Error> = None;
    for first in found {
        let (path, last) = (segment(dir, *first), frontier.last);
        let bytes = fs::read(&path).map_err(Error::store(&path, "read the journal"))?;
        if bytes.is_empty() && *first <= last {
            fs::remove_file(&path).map_err(Error::store(&path, "remove an empty segment"))?;
            continue;
        }
        // only the last segment can have a torn frame
        torn.take().map_or(Ok(()), Err)?;
        if *first != last + 1 {
            return Err(Error::data(&path, None, format!("the changes from {} to {first} are missing", last + 1)));
        }
        let mut frames = Frames { path: &path, bytes: &bytes, at: 0, next: *first };
        while frames.next()?.is_some() {}
        frontier.last = frames.next - 1;
        frontier.end = frames.at as u64;
        frontier.segments.push(*first);
        torn = (frames.at < bytes.len()).then(|| frames.damage_error());
    }
    Ok(frontier)
}

fn is_old(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == OLD_EXTENSION)
}

/// Snapshot of a journal for reading.
pub struct JournalReader {
    dir: PathBuf,
    segments: Vec<u64>,
    end: u64,
    last: u64,
}

impl JournalReader {
    /// Position that a replay reaches.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Calls `visit` with each frame that reaches beyond position `after`: its model, its changes, and the position it reaches.
    pub fn replay(&self, after: u64, visit: &mut dyn FnMut(Frame) -> Result<()>) -> Result<()> {
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
            while let Some(frame) = frames.next()? {
                if frame.last > after {
                    visit(frame)?;
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

/// Creates a segment, or takes an empty one that was created in vain.
fn create_segment(dir: &Path, first: u64) -> Result<File> {
    let path = segment(dir, first);
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(Error::store(&path, "create a journal segment"))?;
    let bytes = file.metadata().map_err(Error::store(&path, "read its metadata"))?.len();
    if bytes > 0 {
        return Err(Error::data(&path, None, "has changes that no segment should have yet: move it out of the folder"));
    }
    fsync(dir)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::super::frame::HEADER_BYTES;
    use super::*;
    use souk_io::domain::Item;

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
        let mut visit = |frame: Frame| {
            all.extend(frame.changes.into_iter().map(|change| (frame.model.clone(), change)));
            Ok(())
        };
        journal.reader().replay(after, &mut visit).unwrap();
        all
    }

    #[test]
    fn replays_acknowledged_frames_and_drops_a_torn_one() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        journal.append("m1", &[put("a"), put("b")], 5).unwrap();
        journal.append("m2", &[], 6).unwrap();
        journal.append("m2", &[ItemChange::Delete("a".into())], 9).unwrap();
        assert_eq!(journal.last(), 9);
        assert!(journal.append("m2", &[], 9).is_err(), "no position is written twice");
        let expected = [("m1", put("a")), ("m1", put("b")), ("m2", ItemChange::Delete("a".into()))]
            .map(|(m, c)| (m.to_owned(), c));
        // a frame is applied entirely
        for (after, skipped) in [(0, 0), (4, 0), (5, 2), (6, 2), (8, 2), (9, 3)] {
            assert_eq!(all(&journal, after), expected[skipped..]);
        }
        let path = journal.path();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        let frame_end = |start: usize| {
            let length = u32::from_le_bytes(whole[start..start + 4].try_into().unwrap()) as usize;
            start + HEADER_BYTES + length
        };
        let ends = [0, frame_end(0), frame_end(frame_end(0))];
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
            let whole_frames = ends.iter().rposition(|frame| *frame <= end).unwrap();
            let left = if whole_frames == 0 { 0 } else { 2 };
            assert_eq!(all(&journal, 0), expected[..left], "cut at {end}");
            assert_eq!(journal.last(), [0, 5, 6][whole_frames]);
            let torn = end - ends[whole_frames];
            let copy = home.path().join("journal.torn");
            assert_eq!(fs::read(&copy).map_or(0, |copy| copy.len()), torn, "the torn bytes are saved");
            drop(fs::remove_file(copy));
            journal.append("m1", &[put("c")], 12).unwrap();
            assert_eq!(all(&Journal::open(&home.path().join("journal"), 0).unwrap(), 0).len(), left + 1);
        }
    }

    #[test]
    fn reports_the_position_of_damage() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        journal.append("m1", &[put("a")], 1).unwrap();
        let second = journal.end;
        journal.append("m1", &[put("b")], 2).unwrap();
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
    fn zeros_before_other_bytes_are_damage_and_zeros_at_the_end_are_a_torn_frame() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("journal");
        let mut journal = Journal::open(&dir, 0).unwrap();
        journal.append("m1", &[put("a")], 1).unwrap();
        let first = journal.end as usize;
        journal.append("m1", &[put("b")], 2).unwrap();
        let path = journal.path();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        let mut extended = whole.clone();
        extended.extend([0; 100]);
        fs::write(&path, &extended).unwrap();
        assert_eq!(Journal::open(&dir, 0).unwrap().last(), 2);
        let mut erased = whole.clone();
        erased[..HEADER_BYTES].fill(0);
        fs::write(&path, &erased).unwrap();
        let error = Journal::open(&dir, 0).err().unwrap().to_string();
        assert!(error.contains("damaged at byte 0"), "an acknowledged change was lost in silence: {error}");
        erased = whole;
        erased[first..first + HEADER_BYTES].fill(0);
        fs::write(&path, &erased).unwrap();
        assert!(Journal::open(&dir, 0).is_err());
    }

    #[test]
    fn a_failed_roll_stops_neither_the_next_one_nor_the_next_start() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(home.path(), 0).unwrap();
        journal.append("m1", &[put("a")], 1).unwrap();
        // what a roll leaves that could not sync the folder
        fs::write(segment(home.path(), 2), []).unwrap();
        journal.roll().unwrap();
        journal.append("m1", &[put("b")], 2).unwrap();
        fs::write(segment(home.path(), 3), []).unwrap();
        journal.append("m1", &[put("c")], 4).unwrap();
        drop(journal);
        let mut journal = Journal::open(home.path(), 0).unwrap();
        assert_eq!((journal.last(), journal.segments.as_slice()), (4, [1, 2].as_slice()));
        assert!(!segment(home.path(), 3).exists());
        journal.append("m1", &[put("d")], 5).unwrap();
        assert_eq!(all(&Journal::open(home.path(), 0).unwrap(), 0).len(), 4);
        fs::write(segment(home.path(), 6), "not a frame").unwrap();
        assert!(journal.roll().unwrap_err().to_string().contains("has changes that no segment should have yet"));
    }

    #[test]
    fn changes_of_an_earlier_version_are_named_and_an_empty_journal_of_one_is_used() {
        let home = tempfile::tempdir().unwrap();
        let old = home.path().join("00000000000000000001.log");
        fs::write(&old, []).unwrap();
        assert_eq!(Journal::open(home.path(), 0).unwrap().last(), 0);
        assert!(!old.exists());
        fs::write(&old, "changes").unwrap();
        let error = Journal::open(home.path(), 0).err().unwrap().to_string();
        assert!(error.contains("that are in no stream") && error.contains(".log"), "{error}");
    }

    #[test]
    fn trims_old_segments_and_detects_missing_ones() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("journal");
        let mut journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        for (last, id) in (1..).zip(["a", "b", "c"]) {
            journal.append("m1", &[put(id)], last).unwrap();
            journal.roll().unwrap();
        }
        assert_eq!(journal.segments, [1, 2, 3, 4]);
        journal.trim(1).unwrap();
        assert_eq!(journal.segments, [2, 3, 4]);
        assert_eq!(all(&journal, 1).len(), 2);
        let error = journal.reader().replay(0, &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("the changes from 1 to 2 are gone"), "{error}");
        journal.append("m1", &[put("d")], 4).unwrap();
        journal.trim(4).unwrap();
        assert_eq!((journal.segments.as_slice(), journal.last()), ([5].as_slice(), 4));
        let journal = Journal::open(&home.path().join("journal"), 0).unwrap();
        assert_eq!(journal.last(), 4);
        drop(journal);
        // an index that is ahead of the journal would miss the next writes
        let behind = Journal::open(&dir, 9).err().unwrap().to_string();
        assert!(behind.contains("ends at change 4, but the index has applied 9"), "{behind}");
        let mut after = Journal::open(&home.path().join("other"), 9).unwrap();
        after.append("m1", &[put("a")], 10).unwrap();
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
