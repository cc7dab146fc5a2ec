//! The file that describes a generation on disk: version, model, snapshot, journal position and canaries. Written last,
//! so a folder that has it is complete.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use souk_io::atomic_dir::write_json_atomic;
use souk_io::error::{Error, Result};

pub(super) const RECORD: &str = "generation.json";

/// Description of a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationRecord {
    pub generation: String,
    pub version: String,
    /// Path of the model.
    pub path: String,
    /// Fingerprint of the model, and its vector size.
    pub model: String,
    pub dimensions: i64,
    /// Name of the snapshot's folder.
    pub snapshot: String,
    /// Number of the last catalogue change in the snapshot.
    pub catalogue: u64,
    /// Texts with known vectors: if they change, the encoder is not the one that built the index.
    pub canaries: Vec<Canary>,
    /// Recall measured when the index was built; None on a server.
    pub recall: Option<f64>,
    /// Search width that this recall needed; None on a server.
    #[serde(default)]
    pub base_ef: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    pub text: String,
    pub vector: Vec<f32>,
}

impl GenerationRecord {
    /// Loads the record; None if the folder has none, as after an interrupted build.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(RECORD);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::store(&path, "read it")(error)),
        };
        let broken = |e| Error::data(&path, None, "is not a generation record: remove its folder").because(e);
        serde_json::from_slice(&text).map(Some).map_err(broken)
    }

    pub fn save(&self, dir: &Path) -> Result<()> {
        write_json_atomic(&dir.join(RECORD), self)
    }
}
