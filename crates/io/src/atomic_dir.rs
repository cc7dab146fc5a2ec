//! Atomic writes: a folder or file is written under a temporary name, synced and renamed. Readers never see a partial
//! one.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};

/// Output folder that appears on `finish`. Dropped earlier, it leaves nothing behind.
#[derive(Debug)]
pub struct AtomicDir {
    /// Folder to write to until then.
    pub staging: PathBuf,
    out: PathBuf,
    /// `out` did not exist before; removed on drop.
    is_new: bool,
}

impl AtomicDir {
    /// Checks that `out` is new or empty, and creates the staging folder `out.part` beside it.
    pub fn new(out: &Path) -> Result<Self> {
        let is_new = create_empty_dir(out)?;
        let out = out.canonicalize().map_err(Error::store(out, "find the folder"))?;
        let staging = Self::create_staging(&out).inspect_err(|_| remove_if_new(is_new, &out))?;
        Ok(Self { staging, out, is_new })
    }

    fn create_staging(out: &Path) -> Result<PathBuf> {
        let mut name = out.file_name().unwrap_or_default().to_os_string();
        name.push(".part");
        let staging = out.with_file_name(name);
        if staging.exists() {
            let problem = "is in the way: if an interrupted run left it, remove it";
            return Err(Error::config(staging.display(), problem));
        }
        fs::create_dir(&staging).map_err(Error::store(&staging, "create the folder"))?;
        Ok(staging)
    }

    /// Renames the folder into place. Durable: it survives a power failure from then on.
    pub fn finish(mut self) -> Result<()> {
        fsync_all(&self.staging)?;
        fs::rename(&self.staging, &self.out).map_err(Error::store(&self.out, "rename the folder into place"))?;
        self.is_new = false;
        self.out.parent().map_or(Ok(()), fsync)
    }
}

impl Drop for AtomicDir {
    fn drop(&mut self) {
        // after `finish` the staging folder no longer exists
        drop(fs::remove_dir_all(&self.staging));
        remove_if_new(self.is_new, &self.out);
    }
}

/// Removes a folder created here, unless it has entries by now.
fn remove_if_new(is_new: bool, out: &Path) {
    if is_new {
        drop(fs::remove_dir(out));
    }
}

/// Syncs a folder and everything in it to disk.
fn fsync_all(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::store(folder, "list the folder"))? {
        let entry = entry.map_err(Error::store(folder, "list the folder"))?;
        match entry.file_type().map_err(Error::store(folder, "list the folder"))? {
            kind if kind.is_dir() => fsync_all(&entry.path())?,
            kind if kind.is_file() => fsync(&entry.path())?,
            // a link is synced with its folder
            _ => {}
        }
    }
    fsync(folder)
}

/// Replaces a JSON file atomically and durably.
pub fn write_json_atomic(path: &Path, value: &impl Serialize) -> Result<()> {
    write_atomic(path, &serde_json::to_vec_pretty(value).expect("JSON written here has string keys"))
}

/// Replaces a file atomically and durably.
pub fn write_atomic(path: &Path, content: &[u8]) -> Result<()> {
    let staging = path.with_extension("part");
    fs::write(&staging, content).map_err(Error::store(&staging, "write it"))?;
    fsync(&staging)?;
    fs::rename(&staging, path).map_err(Error::store(path, "rename it into place"))?;
    path.parent().map_or(Ok(()), fsync)
}

/// Syncs one file, or the entries of one folder, to disk.
pub fn fsync(path: &Path) -> Result<()> {
    fs::File::open(path).and_then(|file| file.sync_all()).map_err(Error::store(path, "write it to disk"))
}

/// Creates the folder; returns whether it is new. A folder with entries is an error and stays as it is.
pub fn create_empty_dir(out: &Path) -> Result<bool> {
    let is_new = !out.exists();
    fs::create_dir_all(out).map_err(Error::store(out, "create the folder"))?;
    let mut entries = fs::read_dir(out).map_err(Error::store(out, "list the folder"))?;
    match entries.next() {
        Some(_) => Err(Error::config(out.display(), "is not empty: give a new folder")),
        None => Ok(is_new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_appear_complete_or_not_at_all() {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("out");
        let unfinished = AtomicDir::new(&out).unwrap();
        fs::write(unfinished.staging.join("half"), "x").unwrap();
        assert!(AtomicDir::new(&out).is_err(), "one writer per folder");
        drop(unfinished);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing is left behind");
        fs::create_dir(&out).unwrap();
        drop(AtomicDir::new(&out).unwrap());
        assert!(out.exists(), "a folder that existed before stays");
        fs::remove_dir(&out).unwrap();
        fs::create_dir(home.path().join("out.part")).unwrap();
        assert!(AtomicDir::new(&out).unwrap_err().to_string().contains("is in the way"));
        assert!(!out.exists() && home.path().join("out.part").exists(), "a folder of another writer stays");
        fs::remove_dir(home.path().join("out.part")).unwrap();
        let atomic_dir = AtomicDir::new(&out).unwrap();
        fs::create_dir(atomic_dir.staging.join("inner")).unwrap();
        fs::write(atomic_dir.staging.join("inner/whole"), "x").unwrap();
        atomic_dir.finish().unwrap();
        assert!(out.join("inner/whole").exists());
        assert!(AtomicDir::new(&out).unwrap_err().to_string().contains("is not empty"));
        let empty = home.path().join("empty");
        AtomicDir::new(&empty).unwrap().finish().unwrap();
        assert!(empty.exists());
    }
}
