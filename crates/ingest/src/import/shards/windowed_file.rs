//! File on disk or in an object store, read through a window in memory. Gives byte ranges, or a seekable stream, as the
//! format readers need. Never holds more than the last range read.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use souk_io::error::Result;
use souk_io::objects::{Object, Objects};

/// Minimum read size: an object store takes as long for one byte as for this.
const MIN_READ_BYTES: u64 = 4 << 20;

#[derive(Clone)]
pub struct WindowedFile {
    objects: Arc<Objects>,
    object: String,
    pub bytes: u64,
    /// Name for messages.
    pub path: PathBuf,
    /// Offset and contents of the bytes in memory.
    window: Arc<Mutex<(u64, Bytes)>>,
    /// Position of the stream.
    at: u64,
}

impl WindowedFile {
    pub fn new(objects: Arc<Objects>, file: &Object) -> Self {
        let path = Path::new(&objects.name(&file.name)).to_path_buf();
        Self { objects, object: file.name.clone(), bytes: file.bytes, path, window: Arc::default(), at: 0 }
    }

    /// Returns up to `length` bytes from `start`, fewer at the end of the file.
    pub fn get(&self, start: u64, length: u64) -> Result<Bytes> {
        let start = start.min(self.bytes);
        let end = start.saturating_add(length).min(self.bytes);
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, bytes) = &*window;
        if start < *from || end > from + bytes.len() as u64 {
            let read = start..end.max(start + MIN_READ_BYTES).min(self.bytes);
            let bytes = if read.is_empty() { Bytes::new() } else { self.objects.read(&self.object, read)? };
            *window = (start, bytes);
        }
        let (from, bytes) = &*window;
        let cut = |at: u64| ((at - from) as usize).min(bytes.len());
        Ok(bytes.slice(cut(start)..cut(end)))
    }

    /// Returns a stream over the same file that starts at `at`.
    pub fn from(&self, at: u64) -> Self {
        Self { at, ..self.clone() }
    }
}

impl Read for WindowedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.get(self.at, into.len() as u64).map_err(io::Error::other)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }
}

impl Seek for WindowedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(back) => self.bytes.checked_add_signed(back),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek before the start of the file"))?;
        Ok(self.at)
    }
}
