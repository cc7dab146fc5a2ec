//! Input folders: finds the files of a format, gzipped or not, and reports files that no importer reads.

use std::fs;
use std::path::{Path, PathBuf};

use super::import_writer::ImportWriter;
use souk_io::error::{Error, Result};

/// Folder of judgements.
pub const QRELS: &str = "qrels";

/// Returns the file of this name or its gzipped form, if there is one.
pub fn find_file(folder: &Path, name: &str) -> Option<PathBuf> {
    [folder.join(name), folder.join(format!("{name}.gz"))].into_iter().find(|path| path.is_file())
}

/// Returns the file of this name or its gzipped form; a missing file is an error.
pub fn require_file(folder: &Path, name: &str) -> Result<PathBuf> {
    let missing = || {
        let found = file_names(folder).unwrap_or_default();
        let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
        let problem = format!("has no {name} (nor {name}.gz); it has: {found}");
        Error::config(folder.display(), problem)
    };
    find_file(folder, name).ok_or_else(missing)
}

/// Records the files of a folder that were not read: unknown names, and a gzipped file next to its unpacked form.
pub fn note_unread_files(writer: &mut ImportWriter, folder: &Path, known: &[&str]) -> Result<()> {
    let is_read = |name: &String| {
        let plain = name.strip_suffix(".gz").unwrap_or(name);
        known.contains(&plain) && find_file(folder, plain).is_none_or(|read| read == folder.join(name))
    };
    writer.summary.unread_files.extend(file_names(folder)?.into_iter().filter(|name| !is_read(name)));
    if known.contains(&QRELS) && folder.join(QRELS).is_dir() {
        let others = file_names(&folder.join(QRELS))?.into_iter().filter(|name| split_name(name).is_none());
        writer.summary.unread_files.extend(others.map(|name| format!("{QRELS}/{name}")));
    }
    Ok(())
}

/// Sorted names of the entries of a folder.
pub fn file_names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(Error::store(folder, "list the folder"))?;
    let name = |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> =
        entries.map(name).collect::<std::io::Result<_>>().map_err(Error::store(folder, "list the folder"))?;
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    Ok(names)
}

/// Splits of a judgement folder, with their files.
pub fn qrels_files(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let file = |name: String| Some((split_name(&name)?.to_owned(), folder.join(&name)));
    Ok(file_names(folder)?.into_iter().filter_map(file).collect())
}

/// Split that a judgement file belongs to, by its name.
fn split_name(name: &str) -> Option<&str> {
    let split = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".tsv")?;
    (!split.is_empty()).then_some(split)
}
