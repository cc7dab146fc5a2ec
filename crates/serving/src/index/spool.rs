//! A file that holds what was added to an index until it is put in order. In memory, it would be there twice.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use souk_native::{Mapping, Numbers};

use souk_io::error::{Error, Result};

pub struct Spool {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Spool {
    pub fn create(path: PathBuf) -> Result<Self> {
        let file = File::create_new(&path).map_err(Error::store(&path, "create it"))?;
        Ok(Self { path, file: BufWriter::with_capacity(1 << 16, file) })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::store(&self.path, "write it"))
    }

    /// Maps what was written. The file has no name then, so that nobody can change it, and is gone with the mapping.
    pub fn map(mut self) -> Result<Mapping> {
        self.file.flush().map_err(Error::store(&self.path, "write it"))?;
        let mapping = Mapping::open(&self.path).map_err(Error::store(&self.path, "open it"))?;
        fs::remove_file(&self.path).map_err(Error::store(&self.path, "remove it"))?;
        Ok(mapping)
    }

    /// The same as f32 numbers.
    pub fn numbers(self) -> Result<Numbers<f32>> {
        let path = self.path.clone();
        Numbers::of(self.map()?).ok_or_else(|| Error::data(&path, None, "ends within a number"))
    }
}
