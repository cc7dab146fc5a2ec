//! Logs in files: one JSON object a line, read to the end or followed as they grow, through rotations.
//!
//! A file is known by its inode and its first line, so a renamed file is still the same and a new one under an old inode
//! is not. Rotation by renaming loses nothing; a file cut short and written anew is read from its start; one that
//! vanished before it was read is a gap. Reads whole lines only, except for the last of a file that nobody writes any more.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::{Batch, DeadLetter, Entry, Lane, LogSource, OnGap, Position, Resume, Signal};
use souk_io::error::{Error, Result};

const CHUNK_BYTES: usize = 1 << 20;
/// A longer line is no record; its beginning is handed on, to be refused.
const MAX_LINE_BYTES: usize = 16 << 20;
const KEPT_OF_TOO_LONG: usize = 64 << 10;
/// Of a first line, so many bytes identify the file.
const NAMING_BYTES: usize = 4096;
/// How long a rotated file is read on, for a writer that has not yet moved to the new one.
const GRACE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// Which files, and how they are read.
#[derive(Clone, Debug)]
pub struct FileSettings {
    pub paths: Vec<PathBuf>,
    /// Wait for more at the end.
    pub follow: bool,
    pub on_gap: OnGap,
}

pub struct FileSource {
    settings: FileSettings,
    resume: Resume,
    tails: Vec<Tail>,
    opened: usize,
    turn: usize,
    ended: bool,
}

impl FileSource {
    pub fn open(settings: FileSettings, resume: Resume) -> Result<Self> {
        let mut tails: Vec<Tail> = Vec::new();
        for path in &settings.paths {
            let kind = fs::metadata(path).map_err(Error::store(path, "open the log"))?;
            if !kind.is_file() {
                return Err(Error::config(path.display(), "is no plain file: a log is read again after a restart"));
            }
            File::open(path).map_err(Error::store(path, "open the log"))?;
            let lane = Lane::new(&format!("file-{}", path.file_name().unwrap_or_default().to_string_lossy()));
            if let Some(other) = tails.iter().find(|tail| tail.lane == lane) {
                let problem = format!("has the same name as {}: logs are told apart by name", other.path.display());
                return Err(Error::config(path.display(), problem));
            }
            tails.push(Tail { lane, path: path.clone(), reading: None, next: VecDeque::new(), done: false });
        }
        if tails.is_empty() {
            return Err(Error::config("log.paths", "names no file: say which log to read"));
        }
        Ok(Self { settings, resume, tails, opened: 0, turn: 0, ended: false })
    }
}

impl LogSource for FileSource {
    fn next(&mut self, wait: Duration) -> Result<Option<Signal>> {
        if let Some(tail) = self.tails.get_mut(self.opened) {
            let position = (self.resume)(&tail.lane)?;
            tail.begin(position.clone(), self.settings.on_gap)?;
            self.opened += 1;
            return Ok(Some(Signal::Opened(tail.lane.clone(), position.unwrap_or_default())));
        }
        let deadline = Instant::now() + wait;
        loop {
            for _ in 0..self.tails.len() {
                let count = self.tails.len();
                let tail = &mut self.tails[self.turn];
                self.turn = (self.turn + 1) % count;
                if let Some(batch) = tail.read(self.settings.follow)? {
                    return Ok(Some(Signal::Batch(batch)));
                }
            }
            if !self.ended && self.tails.iter().all(|tail| tail.done) {
                self.ended = true;
                return Ok(Some(Signal::Ended));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(left.min(PAUSE));
        }
    }

    fn commit(&mut self, _: &Lane, _: &Position) -> Result<()> {
        // whoever reads the file keeps the mark; there is nobody here to tell
        Ok(())
    }

    fn bury(&mut self, _: &[DeadLetter]) -> Result<()> {
        // they lie in a file already
        Ok(())
    }

    fn lag(&self) -> u64 {
        self.tails.iter().map(Tail::lag).sum()
    }
}

/// One log and what was rotated away from it.
struct Tail {
    lane: Lane,
    path: PathBuf,
    reading: Option<Reading>,
    /// Files to be read before `path` itself, oldest first.
    next: VecDeque<PathBuf>,
    done: bool,
}

/// An open file.
struct Reading {
    file: File,
    path: PathBuf,
    inode: u64,
    /// Inode and first line; known once there is a whole first line.
    part: Option<Arc<[String]>>,
    /// Where `rest` begins in the file.
    offset: u64,
    /// Bytes after the last whole line.
    rest: Vec<u8>,
    /// The beginning of a line that is too long, and where it stands; what follows of it is passed over.
    too_long: Option<(Vec<u8>, u64)>,
    replaced: Option<Instant>,
    /// When it was cut short while it was read.
    cut: Option<u128>,
}

impl Tail {
    fn begin(&mut self, position: Option<Position>, on_gap: OnGap) -> Result<()> {
        let Some((part, offset)) = position.and_then(|position| position.0.into_iter().next()) else {
            return self.start(self.path.clone(), 0);
        };
        let family = rotated(&self.path)?;
        let Some(at) = family.iter().position(|path| name_of_file(path).is_ok_and(|name| is_named(&part, &name)))
        else {
            let problem = format!("the file that was read to byte {offset} is gone (it was {part})");
            on_gap.judge(&self.path.display().to_string(), problem)?;
            return self.start(self.path.clone(), 0);
        };
        let length = fs::metadata(&family[at]).map_err(Error::store(&family[at], "look at it"))?.len();
        self.next = family[at + 1..].iter().cloned().collect();
        if length < offset {
            let problem = format!("was read to byte {offset} and now has {length}: it was cut short");
            on_gap.judge(&family[at].display().to_string(), problem)?;
            return self.start(family[at].clone(), 0);
        }
        self.start(family[at].clone(), offset)?;
        if let Some(reading) = &mut self.reading {
            reading.part = Some([part].into());
        }
        Ok(())
    }

    /// What rotation put between the file that has been read to its end and the log as it is now.
    fn queue_newer(&mut self, inode: u64, changed: SystemTime) -> Result<()> {
        let family = rotated(&self.path)?;
        let is_it = |path: &PathBuf| fs::metadata(path).is_ok_and(|data| data.ino() == inode);
        let newer = |path: &PathBuf| {
            *path == self.path || fs::metadata(path).and_then(|data| data.modified()).is_ok_and(|time| time > changed)
        };
        self.next = match family.iter().position(is_it) {
            Some(at) => family[at + 1..].iter().cloned().collect(),
            None => family.into_iter().filter(newer).collect(),
        };
        Ok(())
    }

    fn start(&mut self, path: PathBuf, offset: u64) -> Result<()> {
        let mut file = File::open(&path).map_err(Error::store(&path, "open the log"))?;
        let inode = file.metadata().map_err(Error::store(&path, "look at it"))?.ino();
        file.seek(SeekFrom::Start(offset)).map_err(Error::store(&path, "read it from where it was left"))?;
        let (part, rest, too_long, replaced, cut) = (None, Vec::new(), None, None, None);
        self.reading = Some(Reading { file, path, inode, part, offset, rest, too_long, replaced, cut });
        Ok(())
    }

    /// The next whole lines, if there are any now.
    fn read(&mut self, follow: bool) -> Result<Option<Batch>> {
        while let Some(reading) = &mut self.reading {
            if let Some(batch) = reading.lines(&self.lane)? {
                return Ok(Some(batch));
            }
            // at the end of this file, as far as it goes now
            let now = fs::metadata(&self.path).map(|data| data.ino());
            let current = self.next.is_empty() && now.as_ref().is_ok_and(|inode| *inode == reading.inode);
            if current && follow {
                reading.restart_if_cut_short()?;
                return Ok(None);
            }
            // rotated away, with the new file not there yet or its writer not yet moved
            if follow && self.next.is_empty() {
                let waited = reading.replaced.get_or_insert_with(Instant::now).elapsed();
                if now.is_err() || waited < GRACE {
                    return Ok(None);
                }
            }
            let last = reading.last_line(&self.lane)?;
            if self.next.is_empty() && !current && follow {
                let changed = reading.file.metadata().and_then(|data| data.modified());
                let (inode, changed) = (reading.inode, changed.map_err(Error::store(&reading.path, "look at it"))?);
                self.queue_newer(inode, changed)?;
            }
            match self.next.pop_front() {
                Some(path) => self.start(path, 0)?,
                None => (self.reading, self.done) = (None, true),
            }
            if last.is_some() {
                return Ok(last);
            }
        }
        Ok(None)
    }

    fn lag(&self) -> u64 {
        let length = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
        let reading = self.reading.as_ref().map_or(0, |reading| {
            let length = reading.file.metadata().map_or(0, |data| data.len());
            length.saturating_sub(reading.offset)
        });
        reading + self.next.iter().map(|path| length(path)).sum::<u64>()
    }
}

impl Reading {
    fn lines(&mut self, lane: &Lane) -> Result<Option<Batch>> {
        loop {
            let start = self.rest.len();
            self.rest.resize(start + CHUNK_BYTES, 0);
            let read = self.file.read(&mut self.rest[start..]);
            self.rest.truncate(start + *read.as_ref().unwrap_or(&0));
            if read.map_err(Error::store(&self.path, "read it"))? == 0 {
                return Ok(None);
            }
            match self.rest[start..].iter().rposition(|byte| *byte == b'\n') {
                Some(at) => {
                    let rest = self.rest.split_off(start + at + 1);
                    let bytes = std::mem::replace(&mut self.rest, rest);
                    return self.batch(lane, bytes).map(Some);
                }
                None if self.rest.len() > MAX_LINE_BYTES => self.pass_over(),
                None => {}
            }
        }
    }

    /// The lines in `bytes`, which begin at `offset`.
    fn batch(&mut self, lane: &Lane, bytes: Vec<u8>) -> Result<Batch> {
        let part = match &self.part {
            Some(part) => part.clone(),
            None => self.identify(&bytes),
        };
        let mut batch = Batch::new(lane.clone(), part);
        batch.moves_on = true;
        let too_long = self.too_long.take();
        let mut start = 0;
        if bytes.is_empty() && too_long.is_some() {
            batch.entries.push(Entry { start, end: start, part: 0, offset: self.offset, next: self.offset });
        }
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (end, offset) = (start + line.trim_ascii_end().len(), self.offset);
            self.offset += line.len() as u64;
            batch.entries.push(Entry { start, end, part: 0, offset, next: self.offset });
            start += line.len();
        }
        batch.bytes = bytes;
        if let (Some((beginning, offset)), Some(first)) = (too_long, batch.entries.first_mut()) {
            first.start = batch.bytes.len();
            first.offset = offset;
            batch.bytes.extend_from_slice(&beginning);
            first.end = batch.bytes.len();
        }
        Ok(batch)
    }

    /// Asked when the file is read from its start.
    fn identify(&mut self, bytes: &[u8]) -> Arc<[String]> {
        let first = self.too_long.as_ref().map_or(bytes, |(beginning, _)| beginning);
        let name = name_of(self.inode, first);
        let name = self.cut.map_or(name.clone(), |cut| format!("{name}, cut {cut}"));
        self.part.insert([name].into()).clone()
    }

    /// What follows the last line end, in a file that nobody writes any more.
    fn last_line(&mut self, lane: &Lane) -> Result<Option<Batch>> {
        let bytes = std::mem::take(&mut self.rest);
        if bytes.is_empty() && self.too_long.is_none() {
            return Ok(None);
        }
        self.batch(lane, bytes).map(|batch| (!batch.is_empty()).then_some(batch))
    }

    /// Keeps memory bounded: of a line without end its beginning stays, to be refused by whoever reads it.
    fn pass_over(&mut self) {
        let length = self.rest.len() as u64;
        if self.too_long.is_none() {
            self.rest.truncate(KEPT_OF_TOO_LONG);
            self.too_long = Some((std::mem::take(&mut self.rest), self.offset));
        }
        self.offset += length;
        self.rest.clear();
    }

    fn restart_if_cut_short(&mut self) -> Result<()> {
        let length = self.file.metadata().map_err(Error::store(&self.path, "look at it"))?.len();
        if length < self.offset {
            tracing::warn!(file = %self.path.display(), "the log was cut short; reading it from its start");
            self.file.seek(SeekFrom::Start(0)).map_err(Error::store(&self.path, "read it from its start"))?;
            (self.offset, self.part, self.too_long) = (0, None, None);
            self.rest.clear();
            // another name than before, for offsets count anew
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.cut = Some(now.as_millis());
        }
        Ok(())
    }
}

/// The log and the files that rotation made of it, oldest first. Compressed ones are other files.
fn rotated(path: &Path) -> Result<Vec<PathBuf>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut family: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::store(folder, "list the folder"))? {
        let entry = entry.map_err(Error::store(folder, "list the folder"))?;
        let other = entry.file_name().to_string_lossy().into_owned();
        // logs.ndjson.1, logs.ndjson-20261121, logs.ndjson.2026-11-21T10:00; compressed ones are other files
        let suffix = other.strip_prefix(&name).filter(|suffix| suffix.starts_with(['.', '-', '_']));
        let turn = |letter: char| letter.is_ascii_digit() || ".-_:TZ".contains(letter);
        if suffix.is_some_and(|suffix| suffix.chars().all(turn)) && entry.path().is_file() {
            let changed = entry.metadata().and_then(|data| data.modified());
            family.push((changed.map_err(Error::store(&entry.path(), "look at it"))?, entry.path()));
        }
    }
    family.sort();
    Ok(family.into_iter().map(|(_, path)| path).chain([path.to_path_buf()]).collect())
}

fn name_of_file(path: &Path) -> Result<String> {
    let file = File::open(path).map_err(Error::store(path, "open the log"))?;
    let inode = file.metadata().map_err(Error::store(path, "look at it"))?.ino();
    let mut bytes = Vec::new();
    file.take(NAMING_BYTES as u64).read_to_end(&mut bytes).map_err(Error::store(path, "read it"))?;
    Ok(name_of(inode, &bytes))
}

/// Whether a file that was read under the name `part` can be the one called `name` now: its first line may not have been
/// whole then, and it may have been cut short.
fn is_named(part: &str, name: &str) -> bool {
    part == name || name.starts_with(&format!("{part}, first")) || part.starts_with(&format!("{name}, cut"))
}

/// Inode and first line; the inode alone while the first line is not whole.
fn name_of(inode: u64, bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(NAMING_BYTES)];
    match bytes.iter().position(|byte| *byte == b'\n') {
        None if bytes.len() < NAMING_BYTES => format!("inode {inode}"),
        end => format!("inode {inode}, first line {:08x}", crc32fast::hash(&bytes[..end.unwrap_or(bytes.len())])),
    }
}

#[cfg(test)]
mod tests;
