//! One file, here or in an object store, with the stretch of it in memory that was read last. Gives it as the readers of formats want
//! it: bytes of a range, or a stream with a place.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use souk_io::error::Result;
use souk_io::objects::{Object, Objects};

/// Read at once where less is asked for: a call to an object store takes as long for a byte as for this.
const AHEAD: u64 = 4 << 20;

#[derive(Clone)]
pub struct Held {
    objects: Arc<Objects>,
    object: String,
    pub bytes: u64,
    /// For messages.
    pub path: PathBuf,
    /// Where it begins, and what is there.
    window: Arc<Mutex<(u64, Bytes)>>,
    at: u64,
}

impl Held {
    pub fn new(objects: Arc<Objects>, file: &Object) -> Self {
        let path = Path::new(&objects.name(&file.name)).to_path_buf();
        Self { objects, object: file.name.clone(), bytes: file.bytes, path, window: Arc::default(), at: 0 }
    }

    /// Bytes from a place on, as many as are asked for or as there are.
    pub fn get(&self, start: u64, length: u64) -> Result<Bytes> {
        let start = start.min(self.bytes);
        let end = start.saturating_add(length).min(self.bytes);
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, held) = &*window;
        if start < *from || end > from + held.len() as u64 {
            let read = start..end.max(start + AHEAD).min(self.bytes);
            let bytes = if read.is_empty() { Bytes::new() } else { self.objects.read(&self.object, read)? };
            *window = (start, bytes);
        }
        let (from, held) = &*window;
        let cut = |at: u64| ((at - from) as usize).min(held.len());
        Ok(held.slice(cut(start)..cut(end)))
    }

    /// The same file from another place on.
    pub fn from(&self, at: u64) -> Self {
        Self { at, ..self.clone() }
    }
}

impl Read for Held {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.get(self.at, into.len() as u64).map_err(io::Error::other)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }
}

impl Seek for Held {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(back) => self.bytes.checked_add_signed(back),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a place before the file"))?;
        Ok(self.at)
    }
}
