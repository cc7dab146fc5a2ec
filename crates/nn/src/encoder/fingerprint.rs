//! Fingerprint of a model by content, to match vectors with the index that stores them.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::Encoder;
use super::folder::{recipe_files, transformer_dir};
use crate::backbone::lora;
use crate::backbone::weights::weight_files;
use souk_io::error::{Error, Result};

impl Encoder {
    /// Hash of the files that were opened and of the overrides: equal for equal vectors. Excludes the precision, and other
    /// files in the folder.
    pub fn fingerprint(&self) -> Result<String> {
        let mut hash = Sha256::new();
        let mut files = recipe_files(&self.dir)?;
        let transformer = transformer_dir(&self.dir)?;
        files.extend(weight_files(&transformer)?);
        if self.recipe.rationale.is_some() {
            let chat = ["chat_template.jinja", "generation_config.json"].map(|file| transformer.join(file));
            files.extend(chat.into_iter().filter(|file| file.exists()));
        }
        feed_all(&mut hash, &self.dir, files)?;
        if let Some(adapter) = &self.placement.adapter {
            feed_all(&mut hash, adapter, lora::FILES.iter().map(|file| adapter.join(file)).collect())?;
        }
        let overrides = serde_json::to_vec(&self.overrides)
            .map_err(|e| Error::config("encoder", "cannot be serialized").because(e))?;
        hash.update(overrides);
        Ok(short(hash))
    }
}

/// Hash of the names and contents of files below `folder`.
pub fn digest_files(folder: &Path, files: Vec<PathBuf>) -> Result<String> {
    let mut hash = Sha256::new();
    feed_all(&mut hash, folder, files)?;
    Ok(short(hash))
}

fn short(hash: Sha256) -> String {
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn feed_all(hash: &mut Sha256, folder: &Path, mut files: Vec<PathBuf>) -> Result<()> {
    files.sort();
    for file in files {
        let name = file.strip_prefix(folder).unwrap_or(&file).as_os_str().as_encoded_bytes();
        // the length separates the name from the content after it
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        feed(hash, &file)?;
    }
    Ok(())
}

fn feed(hash: &mut Sha256, path: &Path) -> Result<()> {
    let file = File::open(path).map_err(Error::store(path, "open it"))?;
    let size = file.metadata().map_err(Error::store(path, "read its size"))?.len();
    hash.update(size.to_le_bytes());
    let mut file = BufReader::new(file);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(Error::store(path, "read it"))? {
            0 => return Ok(()),
            n => hash.update(&buffer[..n]),
        }
    }
}
