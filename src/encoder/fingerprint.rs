//! Names a model by its content, so that vectors and the index they go into can be matched.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::Encoder;
use crate::error::{Error, Result};

impl Encoder {
    /// The same for the same vectors: weights, tokenizer, recipe and overrides; not the precision they are computed in.
    pub fn fingerprint(&self) -> Result<String> {
        let mut hash = Sha256::new();
        let folders = std::iter::once(&self.dir).chain(&self.placement.adapter);
        for folder in folders {
            let mut files = Vec::new();
            collect(folder, 2, &mut files)?;
            files.sort();
            for file in files {
                hash.update(file.strip_prefix(folder).unwrap_or(&file).as_os_str().as_encoded_bytes());
                feed(&mut hash, &file)?;
            }
        }
        let overrides = serde_json::to_vec(&self.overrides)
            .map_err(|e| Error::config("encoder", "cannot be written down").because(e))?;
        hash.update(overrides);
        let digest = hash.finalize();
        Ok(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }
}

fn collect(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(Error::store(dir, "list the folder"))? {
        let path = entry.map_err(Error::store(dir, "list the folder"))?.path();
        if path.is_dir() && depth > 1 {
            collect(&path, depth - 1, files)?;
        } else if path.extension().is_some_and(|e| e == "json" || e == "safetensors") {
            files.push(path);
        }
    }
    Ok(())
}

fn feed(hash: &mut Sha256, path: &Path) -> Result<()> {
    let mut file = BufReader::new(File::open(path).map_err(Error::store(path, "open it"))?);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(Error::store(path, "read it"))? {
            0 => return Ok(()),
            n => hash.update(&buffer[..n]),
        }
    }
}
