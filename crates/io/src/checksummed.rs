//! Files that are written once, with their length and checksum, and mapped into memory when they are read: what comes back
//! is what was written, or an error.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use souk_native::{Mapping, Number, Numbers};

use crate::error::{Error, Result};

/// Length and checksum of a file as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    pub bytes: u64,
    pub crc32: u32,
}

/// A file that sums up what is written to it.
pub struct Summing {
    file: BufWriter<File>,
    crc: crc32fast::Hasher,
    bytes: u64,
}

impl Summing {
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create_new(path).map_err(Error::store(path, "make it"))?;
        Ok(Self { file: BufWriter::with_capacity(1 << 16, file), crc: crc32fast::Hasher::new(), bytes: 0 })
    }

    pub fn finish(mut self, path: &Path) -> Result<Sum> {
        let written = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        written.map_err(Error::store(path, "write it to disk"))?;
        Ok(Sum { bytes: self.bytes, crc32: self.crc.finalize() })
    }
}

impl Write for Summing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.crc.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

pub fn write_json_lines<'a, T: Serialize + 'a>(path: &Path, lines: impl Iterator<Item = &'a T>) -> Result<Sum> {
    let mut out = Summing::create(path)?;
    for line in lines {
        let json = serde_json::to_vec(line).expect("what is written here has text for keys");
        out.write_all(&json).and_then(|()| out.write_all(b"\n")).map_err(Error::store(path, "write it"))?;
    }
    out.finish(path)
}

/// A file's bytes, provided that they are those that were written.
pub fn checked(path: &Path, sum: Sum) -> Result<Mapping> {
    let mapping = Mapping::open(path).map_err(Error::store(path, "open it"))?;
    let bytes = mapping.as_ref();
    if bytes.len() as u64 != sum.bytes || crc32fast::hash(bytes) != sum.crc32 {
        let problem = format!("is damaged: it is not the {} bytes that were written", sum.bytes);
        return Err(Error::data(path, None, problem));
    }
    Ok(mapping)
}

/// Lines of JSON, checked.
pub fn read_json_lines<T: serde::de::DeserializeOwned>(path: &Path, sum: Sum) -> Result<Vec<T>> {
    let mapping = checked(path, sum)?;
    let lines = mapping.as_ref().split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines
        .map(|(at, line)| {
            let broken = |e| Error::data(path, Some(at as u64 + 1), "not what was written").because(e);
            serde_json::from_slice(line).map_err(broken)
        })
        .collect()
}

/// Writes numbers, one after another in this machine's order of bytes, which is little-endian.
pub fn write_numbers<T: Number>(path: &Path, numbers: &Numbers<T>) -> Result<Sum> {
    let mut out = Summing::create(path)?;
    out.write_all(numbers.bytes()).map_err(Error::store(path, "write it"))?;
    out.finish(path)
}

/// Numbers, checked; they stay in the file.
pub fn read_numbers<T: Number>(path: &Path, sum: Sum) -> Result<Numbers<T>> {
    let broken = || Error::data(path, None, "is cut within a number");
    Numbers::of(checked(path, sum)?).ok_or_else(broken)
}
