//! `--vectors`: the catalogue's vectors, which one command leaves to the next one that measures the same model. Takes a model and the texts
//! of a catalogue. Never returns vectors of another model, precision or text. Vectors of several models can be in one folder.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use souk::atomic_dir::fsync;
use souk::config::Config;
use souk::error::{Error, Result};
use souk::report::Task;

/// File of the vectors of one model and catalogue: numbers in f32, row after row.
pub struct VectorFile {
    path: PathBuf,
    num_items: usize,
}

impl VectorFile {
    /// File for the model with this fingerprint; it need not exist.
    pub fn of(folder: &Path, fingerprint: &str, config: &Config, task: &Task) -> Self {
        let mut hash = Sha256::new();
        let mut feed = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        feed(env!("CARGO_PKG_VERSION").as_bytes());
        feed(fingerprint.as_bytes());
        feed(format!("{:?}", config.model.precision).as_bytes());
        task.items.iter().for_each(|item| feed(item.text.as_bytes()));
        let name: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Self { path: folder.join(name).with_extension("f32"), num_items: task.items.len() }
    }

    /// None if they were not saved.
    pub fn load(&self) -> Result<Option<Vec<f32>>> {
        match fs::read(&self.path) {
            Ok(bytes) => {
                if bytes.is_empty() || !bytes.len().is_multiple_of(size_of::<f32>() * self.num_items) {
                    let problem = format!("is not one vector for each of {} items: delete it", self.num_items);
                    return Err(Error::data(&self.path, None, &problem));
                }
                let (numbers, _) = bytes.as_chunks();
                Ok(Some(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::store(&self.path, "read it")(error)),
        }
    }

    pub fn save(&self, vectors: &[f32]) -> Result<()> {
        let staging = self.path.with_extension(format!("{}.part", std::process::id()));
        let folder = self.path.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(Error::store(folder, "create the folder"))?;
        let bytes: Vec<u8> = vectors.iter().flat_map(|number| number.to_le_bytes()).collect();
        fs::write(&staging, bytes).map_err(Error::store(&staging, "write it"))?;
        fsync(&staging)?;
        fs::rename(&staging, &self.path).map_err(Error::store(&self.path, "rename it into place"))
    }
}
