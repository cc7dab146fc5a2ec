//! Checksummed files: written once with their length and CRC-32, memory-mapped when read. Reading returns the bytes
//! that were written, or an error.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use souk_native::{Mapping, Number, Numbers};

use crate::error::{Error, Result};

/// Length and CRC-32 of a file as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    pub bytes: u64,
    pub crc32: u32,
}

/// File writer that computes the checksum of its bytes.
pub struct ChecksumWriter {
    file: BufWriter<File>,
    crc: crc32fast::Hasher,
    bytes: u64,
}

impl ChecksumWriter {
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create_new(path).map_err(Error::store(path, "create it"))?;
        Ok(Self { file: BufWriter::with_capacity(1 << 16, file), crc: crc32fast::Hasher::new(), bytes: 0 })
    }

    pub fn finish(mut self, path: &Path) -> Result<Checksum> {
        let written = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        written.map_err(Error::store(path, "write it to disk"))?;
        Ok(Checksum { bytes: self.bytes, crc32: self.crc.finalize() })
    }
}

impl Write for ChecksumWriter {
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

pub fn write_json_lines<'a, T: Serialize + 'a>(path: &Path, lines: impl Iterator<Item = &'a T>) -> Result<Checksum> {
    let mut out = ChecksumWriter::create(path)?;
    for line in lines {
        let json = serde_json::to_vec(line).expect("JSON written here has string keys");
        out.write_all(&json).and_then(|()| out.write_all(b"\n")).map_err(Error::store(path, "write it"))?;
    }
    out.finish(path)
}

/// Maps a file into memory after checking its length and CRC-32.
pub fn map_checked(path: &Path, checksum: Checksum) -> Result<Mapping> {
    let mapping = Mapping::open(path).map_err(Error::store(path, "open it"))?;
    let bytes = mapping.as_ref();
    if bytes.len() as u64 != checksum.bytes || crc32fast::hash(bytes) != checksum.crc32 {
        let problem =
            format!("is damaged: length or checksum differ from the {} bytes that were written", checksum.bytes);
        return Err(Error::data(path, None, problem));
    }
    Ok(mapping)
}

/// Reads lines of JSON after checking the file.
pub fn read_json_lines<T: serde::de::DeserializeOwned>(path: &Path, checksum: Checksum) -> Result<Vec<T>> {
    let mapping = map_checked(path, checksum)?;
    let lines = mapping.as_ref().split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines
        .map(|(at, line)| {
            let broken =
                |e| Error::data(path, Some(at as u64 + 1), "is damaged: not the JSON that was written").because(e);
            serde_json::from_slice(line).map_err(broken)
        })
        .collect()
}

/// Writes numbers one after another, in this machine's byte order, which is little-endian.
pub fn write_numbers<T: Number>(path: &Path, numbers: &Numbers<T>) -> Result<Checksum> {
    let mut out = ChecksumWriter::create(path)?;
    out.write_all(numbers.bytes()).map_err(Error::store(path, "write it"))?;
    out.finish(path)
}

/// Maps numbers from a file after checking it; they are not copied.
pub fn read_numbers<T: Number>(path: &Path, checksum: Checksum) -> Result<Numbers<T>> {
    let broken = || Error::data(path, None, "is damaged: it ends within a number");
    Numbers::of(map_checked(path, checksum)?).ok_or_else(broken)
}
