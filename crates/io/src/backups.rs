//! Backups below one address: folders named by the time, each with its files in `files` and, written last, `backup.json`,
//! which says what it holds and has the checksum of each file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::atomic_dir::{AtomicDir, create_folder, fsync_all, write_json_atomic};
use crate::checksummed::Checksum;
use crate::error::{Error, Result};
use crate::objects::{Objects, is_remote};
use crate::time;

const LIST: &str = "backup.json";
const FILES: &str = "files";
const FORMAT: u32 = 1;

/// Address of backups.
pub struct Backups {
    address: String,
}

#[derive(Serialize, Deserialize)]
struct FileList {
    format: u32,
    about: Value,
    files: BTreeMap<String, Checksum>,
}

/// A complete backup.
pub struct Backup {
    address: String,
    files: Objects,
    list: FileList,
}

/// A backup that is being written; it appears on `finish`.
pub struct NewBackup {
    address: String,
    dir: AtomicDir,
}

/// Number and bytes of a backup's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackupSize {
    pub num_files: usize,
    pub bytes: u64,
}

impl Backups {
    /// A folder, or `s3://BUCKET/PREFIX` and the like.
    pub fn new(address: &str) -> Self {
        Self { address: address.trim_end_matches('/').into() }
    }

    /// Begins a backup. What goes to an object store is collected in a folder of `workspace` first.
    pub fn begin(&self, workspace: &Path) -> Result<NewBackup> {
        let name = time::format(time::now()).replace(['-', ':'], "");
        let address = format!("{}/{name}", self.address);
        let home = if is_remote(&address) { workspace } else { Path::new(&self.address) };
        create_folder(home)?;
        let dir = AtomicDir::new(&home.join(name))?;
        let backup = NewBackup { address, dir };
        let files = backup.files();
        fs::create_dir(&files).map_err(Error::store(&files, "create the folder"))?;
        Ok(backup)
    }

    /// The newest complete backup; the address may also be that of one backup.
    pub fn newest(&self) -> Result<Option<Backup>> {
        match self.complete()?.pop() {
            Some(name) if name.is_empty() => Backup::open(&self.address).map(Some),
            Some(name) => Backup::open(&format!("{}/{name}", self.address)).map(Some),
            None => Ok(None),
        }
    }

    /// Deletes all backups but the newest `num`, and what interrupted ones left before those. Returns how many.
    pub fn keep(&self, num: usize) -> Result<usize> {
        let complete: Vec<String> = self.complete()?.into_iter().filter(|name| !name.is_empty()).collect();
        let Some(oldest_kept) = complete.len().checked_sub(num.max(1)).and_then(|at| complete.get(at)) else {
            return Ok(0);
        };
        let mut folders: Vec<String> =
            self.files()?.iter().filter_map(|name| Some(name.split_once('/')?.0.to_owned())).collect();
        folders.dedup();
        let old: Vec<String> = folders.into_iter().filter(|name| is_time(name) && name < oldest_kept).collect();
        for name in &old {
            Objects::open(&format!("{}/{name}", self.address))?.remove()?;
        }
        Ok(old.len())
    }

    /// Names of complete backups, oldest first; the empty name is the address itself.
    fn complete(&self) -> Result<Vec<String>> {
        let name_of = |file: String| match file.as_str() {
            LIST => Some(String::new()),
            _ => file.strip_suffix(LIST)?.strip_suffix('/').filter(|name| !name.contains('/')).map(str::to_owned),
        };
        Ok(self.files()?.into_iter().filter_map(name_of).collect())
    }

    /// Names of the files below the address, sorted.
    fn files(&self) -> Result<Vec<String>> {
        if !is_remote(&self.address) && !Path::new(&self.address).exists() {
            return Ok(Vec::new());
        }
        Ok(Objects::open(&self.address)?.list_or_empty()?.into_iter().map(|object| object.name).collect())
    }
}

impl NewBackup {
    /// Folder for the files.
    pub fn files(&self) -> PathBuf {
        self.dir.staging.join(FILES)
    }

    /// Makes the backup complete; `about` says what it holds.
    pub fn finish(self, about: &impl Serialize) -> Result<(String, BackupSize)> {
        let Self { address, dir } = self;
        let (files, staging) = (dir.staging.join(FILES), dir.staging.clone());
        let about = serde_json::to_value(about).map_err(|e| Error::input("cannot describe the backup").because(e))?;
        let mut list = FileList { format: FORMAT, about, files: BTreeMap::new() };
        let written = Objects::open(&files.to_string_lossy())?;
        for file in written.list()? {
            let checksum = checksum(&written, &file.name, file.bytes, |_| Ok(()))?;
            list.files.insert(file.name, checksum);
        }
        let size = list.size();
        if is_remote(&address) {
            Objects::open(&format!("{address}/{FILES}"))?.send(&files)?;
            fs::remove_dir_all(&files).map_err(Error::store(&files, "remove it"))?;
            write_json_atomic(&staging.join(LIST), &list)?;
            Objects::open(&address)?.send(&staging)?;
        } else {
            write_json_atomic(&staging.join(LIST), &list)?;
            dir.finish()?;
        }
        Ok((address, size))
    }
}

impl FileList {
    fn size(&self) -> BackupSize {
        BackupSize { num_files: self.files.len(), bytes: self.files.values().map(|file| file.bytes).sum() }
    }
}

impl Backup {
    fn open(address: &str) -> Result<Self> {
        let path = PathBuf::from(format!("{address}/{LIST}"));
        let bytes = Objects::open(address)?.read(LIST, 0..u64::from(u32::MAX >> 4))?;
        let broken = |e| Error::data(&path, None, "does not describe a backup: use another one").because(e);
        let list: FileList = serde_json::from_slice(&bytes).map_err(broken)?;
        if list.format != FORMAT {
            let problem =
                format!("has format {}, but this version reads {FORMAT}: use the version that wrote it", list.format);
            return Err(Error::data(&path, None, problem));
        }
        Ok(Self { address: address.into(), files: Objects::open(&format!("{address}/{FILES}"))?, list })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Description that was given when it was written.
    pub fn about<T: DeserializeOwned>(&self) -> Result<T> {
        let path = PathBuf::from(format!("{}/{LIST}", self.address));
        let broken = |e| Error::data(&path, None, "does not describe a backup of this version of Souk").because(e);
        serde_json::from_value(self.list.about.clone()).map_err(broken)
    }

    pub fn size(&self) -> BackupSize {
        self.list.size()
    }

    /// Whether it has files in a folder.
    pub fn has(&self, part: &str) -> bool {
        self.part(part).next().is_some()
    }

    /// Copies a folder of the backup to `to`, durably, and checks each file.
    pub fn fetch(&self, part: &str, to: &Path) -> Result<()> {
        create_folder(to)?;
        for (name, rest, expected) in self.part(part) {
            let path = to.join(rest);
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(Error::store(&path, "create its folder"))?;
            let mut file = File::create(&path).map_err(Error::store(&path, "create it"))?;
            self.check_file(name, expected, |part| file.write_all(part).map_err(Error::store(&path, "write it")))?;
        }
        fsync_all(to)
    }

    /// Reads all files and compares them with their checksums.
    pub fn check(&self) -> Result<()> {
        self.list.files.iter().try_for_each(|(name, expected)| self.check_file(name, *expected, |_| Ok(())))
    }

    /// Files in a folder: full name, name within the folder, checksum.
    fn part<'a>(&'a self, part: &'a str) -> impl Iterator<Item = (&'a str, &'a str, Checksum)> {
        let within = move |name: &'a str| name.strip_prefix(part)?.strip_prefix('/');
        self.list.files.iter().filter_map(move |(name, checksum)| Some((name.as_str(), within(name)?, *checksum)))
    }

    fn check_file(&self, name: &str, expected: Checksum, pass_on: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let found = checksum(&self.files, name, expected.bytes, pass_on)?;
        if found == expected {
            return Ok(());
        }
        let problem = "is damaged: its checksum differs from what was written: use another backup";
        Err(Error::data(Path::new(&self.files.name(name)), None, problem))
    }
}

/// Checksum of a file, whose parts are passed on.
fn checksum(files: &Objects, name: &str, bytes: u64, mut pass_on: impl FnMut(&[u8]) -> Result<()>) -> Result<Checksum> {
    let mut crc = crc32fast::Hasher::new();
    files.read_parts(name, bytes, |part| {
        crc.update(part);
        pass_on(part)
    })?;
    Ok(Checksum { bytes, crc32: crc.finalize() })
}

/// Whether a folder has the name of a backup, such as `20260131T100000.000Z`.
fn is_time(name: &str) -> bool {
    let shape: String = name.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "00000000T000000.000Z"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;
    use std::time::Duration;

    fn write(backups: &Backups, text: &str) -> String {
        // names have milliseconds
        sleep(Duration::from_millis(2));
        let backup = backups.begin(Path::new("unused")).unwrap();
        fs::create_dir(backup.files().join("part")).unwrap();
        fs::write(backup.files().join("part/x.txt"), text).unwrap();
        fs::write(backup.files().join("y.txt"), "").unwrap();
        let (address, size) = backup.finish(&text).unwrap();
        assert_eq!(size, BackupSize { num_files: 2, bytes: text.len() as u64 });
        address
    }

    #[test]
    fn the_newest_complete_backup_is_read_and_old_ones_are_deleted() {
        let home = tempfile::tempdir().unwrap();
        let at = home.path().join("backups");
        let backups = Backups::new(at.to_str().unwrap());
        assert!(backups.newest().unwrap().is_none());
        let first = write(&backups, "first");
        let second = write(&backups, "second");
        // an interrupted one, and what is not Souk's
        fs::create_dir(at.join("20990101T000000.000Z")).unwrap();
        fs::create_dir(at.join("notes")).unwrap();
        fs::write(at.join("notes/a.txt"), "mine").unwrap();
        let newest = backups.newest().unwrap().unwrap();
        assert_eq!((newest.address(), newest.about::<String>().unwrap().as_str()), (second.as_str(), "second"));
        assert!(newest.has("part") && !newest.has("par") && !newest.has("x"));
        newest.check().unwrap();
        newest.fetch("part", &home.path().join("to")).unwrap();
        assert_eq!(fs::read_to_string(home.path().join("to/x.txt")).unwrap(), "second");
        let named = Backups::new(&first).newest().unwrap().unwrap();
        assert_eq!(named.about::<String>().unwrap(), "first");
        assert_eq!(backups.keep(2).unwrap(), 0);
        assert_eq!(backups.keep(1).unwrap(), 1);
        assert!(!Path::new(&first).exists() && Path::new(&second).exists() && at.join("notes/a.txt").exists());
    }

    #[test]
    fn damage_is_named() {
        let home = tempfile::tempdir().unwrap();
        let backups = Backups::new(home.path().to_str().unwrap());
        let address = write(&backups, "text");
        let file = Path::new(&address).join("files/part/x.txt");
        let to = home.path().join("to");
        for damage in ["tex", "texT"] {
            fs::write(&file, damage).unwrap();
            let backup = Backups::new(&address).newest().unwrap().unwrap();
            for problem in [backup.check(), backup.fetch("part", &to)] {
                assert!(problem.unwrap_err().to_string().contains("part/x.txt"));
            }
        }
        fs::write(Path::new(&address).join(LIST), "{}").unwrap();
        let error = backups.newest().err().unwrap().to_string();
        assert!(error.contains("does not describe a backup"), "{error}");
    }
}
