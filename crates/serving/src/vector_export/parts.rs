//! Files of documents: takes serialised documents, gives files that stay below the size an engine takes in one request.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use souk_io::error::{Error, Result};

/// How documents become files.
#[derive(Clone, Copy)]
pub struct Framing {
    /// Name of a file before its number, or of the only file.
    pub stem: &'static str,
    pub extension: &'static str,
    /// Texts before the first document, between two, and after the last one.
    pub around: [&'static str; 3],
    /// Bytes of a file, unless one document has more. None writes one file.
    pub max_bytes: Option<usize>,
}

pub struct Parts {
    dir: PathBuf,
    framing: Framing,
    files: Vec<String>,
    open: Option<Part>,
}

struct Part {
    path: PathBuf,
    out: BufWriter<File>,
    bytes: usize,
}

impl Parts {
    pub fn new(dir: &Path, framing: Framing) -> Self {
        Self { dir: dir.into(), framing, files: Vec::new(), open: None }
    }

    pub fn push(&mut self, document: &[u8]) -> Result<()> {
        let [before, between, _] = self.framing.around;
        let is_full = |part: &Part| self.framing.max_bytes.is_some_and(|max| part.bytes + document.len() > max);
        if self.open.as_ref().is_some_and(is_full) {
            self.close()?;
        }
        let separator = if self.open.is_some() { between } else { before };
        let mut part = match self.open.take() {
            Some(part) => part,
            None => self.next_part()?,
        };
        part.add(separator.as_bytes())?;
        part.add(document)?;
        self.open = Some(part);
        Ok(())
    }

    /// Names of the files, in order.
    pub fn finish(mut self) -> Result<Vec<String>> {
        self.close()?;
        Ok(self.files)
    }

    fn next_part(&mut self) -> Result<Part> {
        let Framing { stem, extension, max_bytes, .. } = self.framing;
        let number = if max_bytes.is_some() { format!("-{:05}", self.files.len()) } else { String::new() };
        let name = format!("{stem}{number}.{extension}");
        let path = self.dir.join(&name);
        let out = BufWriter::new(File::create(&path).map_err(Error::store(&path, "create it"))?);
        self.files.push(name);
        Ok(Part { path, out, bytes: 0 })
    }

    fn close(&mut self) -> Result<()> {
        let Some(mut part) = self.open.take() else { return Ok(()) };
        part.add(self.framing.around[2].as_bytes())?;
        part.out.flush().map_err(Error::store(&part.path, "write it"))
    }
}

impl Part {
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len();
        self.out.write_all(bytes).map_err(Error::store(&self.path, "write it"))
    }
}
