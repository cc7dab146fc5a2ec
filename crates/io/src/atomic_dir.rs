//! Atomic writes: a folder or file is written under a temporary name, synced and renamed. Readers never see a partial
//! one.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};

/// Output folder that appears on `finish`. Dropped earlier, it leaves nothing behind.
#[derive(Debug)]
pub struct AtomicDir {
    /// Folder to write to until then.
    pub staging: PathBuf,
    /// The staging folder, locked: what has no lock was left by a killed process.
    _lock: File,
    out: PathBuf,
    /// `out` did not exist before; removed on drop.
    is_new: bool,
}

impl AtomicDir {
    /// Checks that `out` is new or empty, and creates the staging folder `out.souk.part` beside it. One that a killed process left is emptied.
    pub fn new(out: &Path) -> Result<Self> {
        let is_new = create_empty_dir(out)?;
        let out = out.canonicalize().map_err(Error::store(out, "find the folder"))?;
        let (staging, lock) = create_staging(&out).inspect_err(|_| remove_if_new(is_new, &out))?;
        Ok(Self { staging, _lock: lock, out, is_new })
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

/// Creates and locks the staging folder of `out`.
fn create_staging(out: &Path) -> Result<(PathBuf, File)> {
    let mut name = out.file_name().unwrap_or_default().to_os_string();
    name.push(".souk.part");
    let staging = out.with_file_name(name);
    let exists = |error: &std::io::Error| error.kind() == ErrorKind::AlreadyExists;
    let is_left = match fs::create_dir(&staging) {
        Err(error) if !exists(&error) => return Err(Error::store(&staging, "create the folder")(error)),
        created => created.is_err(),
    };
    let folder = File::open(&staging).map_err(Error::store(&staging, "open the folder"))?;
    let busy =
        || Error::config(out.display(), "is being written by another process: wait for it, or give another folder");
    match folder.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(busy()),
        // a file system without locks
        Err(TryLockError::Error(_)) if is_left => {
            return Err(Error::config(staging.display(), "is in the way: if an interrupted run left it, remove it"));
        }
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    // its writer may have renamed or removed it before this lock
    let locked = folder.metadata().map_err(Error::store(&staging, "open the folder"))?;
    if !fs::metadata(&staging).is_ok_and(|found| (found.dev(), found.ino()) == (locked.dev(), locked.ino())) {
        return Err(busy());
    }
    for entry in fs::read_dir(&staging).map_err(Error::store(&staging, "list the folder"))? {
        let path = entry.map_err(Error::store(&staging, "list the folder"))?.path();
        let is_folder = path.is_dir() && !path.is_symlink();
        let removed = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(Error::store(&path, "remove what a killed process left"))?;
    }
    Ok((staging, folder))
}

/// Removes a folder created here, unless it has entries by now.
fn remove_if_new(is_new: bool, out: &Path) {
    if is_new {
        drop(fs::remove_dir(out));
    }
}

/// Syncs a folder and everything in it to disk.
pub fn fsync_all(folder: &Path) -> Result<()> {
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
    fsync(folder_of(path))
}

/// Folder of a file; that of a bare name is the current one.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a folder and those above it that are missing, durably.
pub fn create_folder(path: &Path) -> Result<()> {
    let missing = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists()).count();
    fs::create_dir_all(path).map_err(Error::store(path, "create the folder"))?;
    for folder in path.ancestors().take(missing) {
        // a new entry of the folder above
        fsync(folder_of(folder))?;
    }
    Ok(())
}

/// Syncs one file, or the entries of one folder, to disk.
pub fn fsync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(Error::store(path, "write it to disk"))
}

/// Creates the folder; returns whether it is new. A folder with entries is an error and stays as it is.
pub fn create_empty_dir(out: &Path) -> Result<bool> {
    let is_new = !out.exists();
    create_folder(out)?;
    let mut entries = fs::read_dir(out).map_err(Error::store(out, "list the folder"))?;
    match entries.next() {
        Some(_) => Err(Error::config(out.display(), "is not empty: give a new folder")),
        None => Ok(is_new),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_appear_complete_or_not_at_all() {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("out");
        let unfinished = AtomicDir::new(&out).unwrap();
        fs::write(unfinished.staging.join("half"), "x").unwrap();
        assert!(AtomicDir::new(&out).unwrap_err().to_string().contains("another process"), "one writer per folder");
        assert!(unfinished.staging.join("half").exists(), "and the other one goes on");
        drop(unfinished);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing is left behind");
        fs::create_dir(&out).unwrap();
        drop(AtomicDir::new(&out).unwrap());
        assert!(out.exists(), "a folder that existed before stays");
        fs::remove_dir(&out).unwrap();
        let left = home.path().join("out.souk.part");
        fs::create_dir_all(left.join("left")).unwrap();
        fs::write(left.join("left/half"), "x").unwrap();
        symlink(home.path(), left.join("link")).unwrap();
        let atomic_dir = AtomicDir::new(&out).unwrap();
        assert_eq!(fs::read_dir(&atomic_dir.staging).unwrap().count(), 0, "what a killed process left is gone");
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
