//! File logs: one JSON object per line, read to the end or followed as they grow, across rotations.
//!
//! A file is identified by its inode and first line, so a renamed file stays the same and a new file on an old inode is
//! different. Rotation by renaming loses nothing; a truncated file is re-read from its start; a file that vanished
//! before it was read is a gap. Never gives partial lines, except the last line of a file that is no longer written.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::{DeadLetter, Entry, Lane, LogSource, MessageBatch, OnGap, Position, Resume, Signal};
use souk_io::error::{Error, Result};

const CHUNK_BYTES: usize = 1 << 20;
/// Upper bound of a line. Only the beginning of a longer one is passed on, which the consumer rejects.
const MAX_LINE_BYTES: usize = 16 << 20;
/// Bytes kept of an overlong line.
const TRUNCATED_BYTES: usize = 64 << 10;
/// Bytes of the first line that identify the file.
const IDENTITY_BYTES: usize = 4096;
/// Time a rotated file is still read, for writers that have not yet switched to the new one.
const ROTATION_GRACE: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Log files and how to read them.
#[derive(Clone, Debug)]
pub struct FileSettings {
    pub paths: Vec<PathBuf>,
    /// Wait for more data at the end.
    pub follow: bool,
    pub on_gap: OnGap,
}

pub struct FileSource {
    settings: FileSettings,
    resume: Resume,
    tails: Vec<Tail>,
    num_opened: usize,
    turn: usize,
    has_ended: bool,
}

impl FileSource {
    pub fn open(settings: FileSettings, resume: Resume) -> Result<Self> {
        let mut tails: Vec<Tail> = Vec::new();
        for path in &settings.paths {
            let kind = fs::metadata(path).map_err(Error::store(path, "open the log"))?;
            if !kind.is_file() {
                return Err(Error::config(
                    path.display(),
                    "is not a regular file: a log must be readable again after a restart",
                ));
            }
            File::open(path).map_err(Error::store(path, "open the log"))?;
            let lane = Lane::new(&format!("file-{}", path.file_name().unwrap_or_default().to_string_lossy()));
            if let Some(other) = tails.iter().find(|tail| tail.lane == lane) {
                let problem = format!("has the same file name as {}: rename one of them", other.path.display());
                return Err(Error::config(path.display(), problem));
            }
            tails.push(Tail { lane, path: path.clone(), current: None, next: VecDeque::new(), is_done: false });
        }
        if tails.is_empty() {
            return Err(Error::config("log.paths", "is empty: set it to the log files to read"));
        }
        Ok(Self { settings, resume, tails, num_opened: 0, turn: 0, has_ended: false })
    }
}

impl LogSource for FileSource {
    fn next(&mut self, wait: Duration) -> Result<Option<Signal>> {
        if let Some(tail) = self.tails.get_mut(self.num_opened) {
            let position = (self.resume)(&tail.lane)?;
            tail.begin(position.clone(), self.settings.on_gap)?;
            self.num_opened += 1;
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
            if !self.has_ended && self.tails.iter().all(|tail| tail.is_done) {
                self.has_ended = true;
                return Ok(Some(Signal::Ended));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    fn commit(&mut self, _: &Lane, _: &Position) -> Result<()> {
        // the dataset stores the position; files have no broker to inform
        Ok(())
    }

    fn send_dead_letters(&mut self, _: &[DeadLetter]) -> Result<()> {
        // already stored in a file of their commit
        Ok(())
    }

    fn lag(&self) -> u64 {
        self.tails.iter().map(Tail::lag).sum()
    }
}

/// One log and the files rotated away from it.
struct Tail {
    lane: Lane,
    path: PathBuf,
    current: Option<OpenFile>,
    /// Files to read before `path` itself, oldest first.
    next: VecDeque<PathBuf>,
    is_done: bool,
}

/// Log file being read.
struct OpenFile {
    file: File,
    path: PathBuf,
    inode: u64,
    /// Inode and first line, once the first line is complete.
    part: Option<Arc<[String]>>,
    /// File offset of `rest`.
    offset: u64,
    /// Bytes after the last whole line.
    rest: Vec<u8>,
    /// Beginning of an overlong line and its offset; the remainder is skipped.
    overlong: Option<(Vec<u8>, u64)>,
    /// Time at which rotation was first noticed.
    rotated_at: Option<Instant>,
    /// Unix time in milliseconds at which truncation was noticed.
    truncated_at: Option<u128>,
}

impl Tail {
    fn begin(&mut self, position: Option<Position>, on_gap: OnGap) -> Result<()> {
        let Some((part, offset)) = position.and_then(|position| position.0.into_iter().next()) else {
            return self.start(self.path.clone(), 0);
        };
        let family = rotated_files(&self.path)?;
        let Some(at) = family.iter().position(|path| name_of_file(path).is_ok_and(|name| is_same_file(&part, &name)))
        else {
            let problem = format!("the file read up to byte {offset} is gone ({part})");
            on_gap.handle(&self.path.display().to_string(), problem)?;
            return self.start(self.path.clone(), 0);
        };
        let length = fs::metadata(&family[at]).map_err(Error::store(&family[at], "read its metadata"))?.len();
        self.next = family[at + 1..].iter().cloned().collect();
        if length < offset {
            let problem = format!("was read up to byte {offset} and now has {length} bytes: it was truncated");
            on_gap.handle(&family[at].display().to_string(), problem)?;
            return self.start(family[at].clone(), 0);
        }
        self.start(family[at].clone(), offset)?;
        if let Some(open) = &mut self.current {
            open.part = Some([part].into());
        }
        Ok(())
    }

    /// Queues the files that rotation put between the finished file and the current log.
    fn queue_newer(&mut self, inode: u64, changed: SystemTime) -> Result<()> {
        let family = rotated_files(&self.path)?;
        let is_same = |path: &PathBuf| fs::metadata(path).is_ok_and(|data| data.ino() == inode);
        let newer = |path: &PathBuf| {
            *path == self.path || fs::metadata(path).and_then(|data| data.modified()).is_ok_and(|time| time > changed)
        };
        self.next = match family.iter().position(is_same) {
            Some(at) => family[at + 1..].iter().cloned().collect(),
            None => family.into_iter().filter(newer).collect(),
        };
        Ok(())
    }

    fn start(&mut self, path: PathBuf, offset: u64) -> Result<()> {
        let mut file = File::open(&path).map_err(Error::store(&path, "open the log"))?;
        let inode = file.metadata().map_err(Error::store(&path, "read its metadata"))?.ino();
        file.seek(SeekFrom::Start(offset)).map_err(Error::store(&path, "seek to the resume position"))?;
        self.current = Some(OpenFile {
            file,
            path,
            inode,
            part: None,
            offset,
            rest: Vec::new(),
            overlong: None,
            rotated_at: None,
            truncated_at: None,
        });
        Ok(())
    }

    /// Returns the next whole lines, or `None` if there are none yet.
    fn read(&mut self, follow: bool) -> Result<Option<MessageBatch>> {
        while let Some(open) = &mut self.current {
            if let Some(batch) = open.lines(&self.lane)? {
                return Ok(Some(batch));
            }
            // end of this file for now
            let now = fs::metadata(&self.path).map(|data| data.ino());
            let is_current = self.next.is_empty() && now.as_ref().is_ok_and(|inode| *inode == open.inode);
            if is_current && follow {
                open.restart_if_truncated()?;
                return Ok(None);
            }
            // rotated away, but the new file is missing or the writer has not switched yet
            if follow && self.next.is_empty() {
                let waited = open.rotated_at.get_or_insert_with(Instant::now).elapsed();
                if now.is_err() || waited < ROTATION_GRACE {
                    return Ok(None);
                }
            }
            let last = open.last_line(&self.lane)?;
            if self.next.is_empty() && !is_current && follow {
                let changed = open.file.metadata().and_then(|data| data.modified());
                let (inode, changed) = (open.inode, changed.map_err(Error::store(&open.path, "read its metadata"))?);
                self.queue_newer(inode, changed)?;
            }
            match self.next.pop_front() {
                Some(path) => self.start(path, 0)?,
                None => (self.current, self.is_done) = (None, true),
            }
            if last.is_some() {
                return Ok(last);
            }
        }
        Ok(None)
    }

    fn lag(&self) -> u64 {
        let length = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
        let current = self.current.as_ref().map_or(0, |open| {
            let length = open.file.metadata().map_or(0, |data| data.len());
            length.saturating_sub(open.offset)
        });
        current + self.next.iter().map(|path| length(path)).sum::<u64>()
    }
}

impl OpenFile {
    fn lines(&mut self, lane: &Lane) -> Result<Option<MessageBatch>> {
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
                None if self.rest.len() > MAX_LINE_BYTES => self.skip_overlong(),
                None => {}
            }
        }
    }

    /// Batch of the lines in `bytes`, which start at `offset`.
    fn batch(&mut self, lane: &Lane, bytes: Vec<u8>) -> Result<MessageBatch> {
        let part = match &self.part {
            Some(part) => part.clone(),
            None => self.identify(&bytes),
        };
        let mut batch = MessageBatch::new(lane.clone(), part);
        batch.finishes_earlier_parts = true;
        let overlong = self.overlong.take();
        let mut start = 0;
        if bytes.is_empty() && overlong.is_some() {
            let (offset, next) = (self.offset, self.offset);
            batch.entries.push(Entry { start, end: start, part: 0, offset, next, appended_at: None });
        }
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (end, offset) = (start + line.trim_ascii_end().len(), self.offset);
            self.offset += line.len() as u64;
            batch.entries.push(Entry { start, end, part: 0, offset, next: self.offset, appended_at: None });
            start += line.len();
        }
        batch.bytes = bytes;
        if let (Some((beginning, offset)), Some(first)) = (overlong, batch.entries.first_mut()) {
            first.start = batch.bytes.len();
            first.offset = offset;
            batch.bytes.extend_from_slice(&beginning);
            first.end = batch.bytes.len();
        }
        Ok(batch)
    }

    /// Names the file; called when reading from its start.
    fn identify(&mut self, bytes: &[u8]) -> Arc<[String]> {
        let first = self.overlong.as_ref().map_or(bytes, |(beginning, _)| beginning);
        let name = name_of(self.inode, first);
        let name = self.truncated_at.map_or(name.clone(), |time| format!("{name}, cut {time}"));
        self.part.insert([name].into()).clone()
    }

    /// Text after the last line end, in a file that is no longer written.
    fn last_line(&mut self, lane: &Lane) -> Result<Option<MessageBatch>> {
        let bytes = std::mem::take(&mut self.rest);
        if bytes.is_empty() && self.overlong.is_none() {
            return Ok(None);
        }
        self.batch(lane, bytes).map(|batch| (!batch.is_empty()).then_some(batch))
    }

    /// Bounds memory: keeps only the beginning of an endless line, which the consumer rejects.
    fn skip_overlong(&mut self) {
        let length = self.rest.len() as u64;
        if self.overlong.is_none() {
            self.rest.truncate(TRUNCATED_BYTES);
            self.overlong = Some((std::mem::take(&mut self.rest), self.offset));
        }
        self.offset += length;
        self.rest.clear();
    }

    fn restart_if_truncated(&mut self) -> Result<()> {
        let length = self.file.metadata().map_err(Error::store(&self.path, "read its metadata"))?.len();
        if length < self.offset {
            tracing::warn!(file = %self.path.display(), "the log was truncated; reading it from the start");
            self.file.seek(SeekFrom::Start(0)).map_err(Error::store(&self.path, "seek to its start"))?;
            (self.offset, self.part, self.overlong) = (0, None, None);
            self.rest.clear();
            // a new name, because offsets start over
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.truncated_at = Some(now.as_millis());
        }
        Ok(())
    }
}

/// Returns the log and its rotated files, oldest first. Compressed files are not included.
fn rotated_files(path: &Path) -> Result<Vec<PathBuf>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut family: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::store(folder, "list the folder"))? {
        let entry = entry.map_err(Error::store(folder, "list the folder"))?;
        let other = entry.file_name().to_string_lossy().into_owned();
        // logs.ndjson.1, logs.ndjson-20261121, logs.ndjson.2026-11-21T10:00; compressed files do not match
        let suffix = other.strip_prefix(&name).filter(|suffix| suffix.starts_with(['.', '-', '_']));
        let is_rotation_mark = |letter: char| letter.is_ascii_digit() || ".-_:TZ".contains(letter);
        if suffix.is_some_and(|suffix| suffix.chars().all(is_rotation_mark)) && entry.path().is_file() {
            let changed = entry.metadata().and_then(|data| data.modified());
            family.push((changed.map_err(Error::store(&entry.path(), "read its metadata"))?, entry.path()));
        }
    }
    family.sort();
    Ok(family.into_iter().map(|(_, path)| path).chain([path.to_path_buf()]).collect())
}

fn name_of_file(path: &Path) -> Result<String> {
    let file = File::open(path).map_err(Error::store(path, "open the log"))?;
    let inode = file.metadata().map_err(Error::store(path, "read its metadata"))?.ino();
    let mut bytes = Vec::new();
    file.take(IDENTITY_BYTES as u64).read_to_end(&mut bytes).map_err(Error::store(path, "read it"))?;
    Ok(name_of(inode, &bytes))
}

/// Returns whether the file recorded as `part` can be the file now named `name`: its first line may have been
/// incomplete, and it may have been truncated.
fn is_same_file(part: &str, name: &str) -> bool {
    part == name || name.starts_with(&format!("{part}, first")) || part.starts_with(&format!("{name}, cut"))
}

/// Name of a file: its inode and first line, or the inode alone while the first line is incomplete.
fn name_of(inode: u64, bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(IDENTITY_BYTES)];
    match bytes.iter().position(|byte| *byte == b'\n') {
        None if bytes.len() < IDENTITY_BYTES => format!("inode {inode}"),
        end => format!("inode {inode}, first line {:08x}", crc32fast::hash(&bytes[..end.unwrap_or(bytes.len())])),
    }
}

#[cfg(test)]
mod tests;
