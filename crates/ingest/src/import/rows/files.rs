//! Files of an input: the file itself, or the files of a folder whose names say that they hold rows. Lists the others,
//! so that none is passed over silently.

use std::path::{Path, PathBuf};

use super::super::folder::{file_names, find_file};
use souk_io::error::{Error, Result};

/// Name endings of files that hold rows, before `.gz`.
const ENDINGS: [&str; 11] =
    [".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet", ".pq", ".arrow", ".feather", ".ipc"];

/// Files of an input, sorted by name.
pub struct InputFiles {
    pub files: Vec<PathBuf>,
    /// Names of the folder's other entries.
    pub others: Vec<String>,
}

/// Files of `from`. Of a data folder, which has several kinds of files, only `own` is read (gzipped or not).
pub fn input_files(from: &Path, own: &str) -> Result<InputFiles> {
    if !from.is_dir() {
        return Ok(InputFiles { files: vec![from.into()], others: Vec::new() });
    }
    let own = find_file(from, own);
    let is_read = |name: &String| match &own {
        Some(file) => *file == from.join(name),
        None => has_known_ending(name) && from.join(name).is_file(),
    };
    let (read, others): (Vec<_>, Vec<_>) = file_names(from)?.into_iter().partition(is_read);
    if read.is_empty() {
        let found = if others.is_empty() { "nothing".to_owned() } else { others.join(", ") };
        let problem = format!("has no file that ends with {} (or .gz after it); it has: {found}", ENDINGS.join(", "));
        return Err(Error::config(from.display(), problem));
    }
    Ok(InputFiles { files: read.iter().map(|name| from.join(name)).collect(), others })
}

fn has_known_ending(name: &str) -> bool {
    let name = name.to_lowercase();
    let plain = name.strip_suffix(".gz").unwrap_or(&name);
    ENDINGS.iter().any(|ending| plain.len() > ending.len() && plain.ends_with(ending))
}
