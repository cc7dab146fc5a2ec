//! A folder, or a file, that is filled aside and renamed when it is whole, so that nobody ever meets half of it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};

/// The right to fill a folder. Given up before `finish`, it leaves nothing.
#[derive(Debug)]
pub struct Claim {
    /// Where to write until then.
    pub aside: PathBuf,
    out: PathBuf,
    /// Whether `out` goes, too, when the claim is given up.
    made: bool,
}

impl Claim {
    /// Checks that `out` is new or empty, and makes a folder of its own beside it.
    pub fn new(out: &Path) -> Result<Self> {
        let made = start_folder(out)?;
        let out = out.canonicalize().map_err(Error::store(out, "find the folder"))?;
        let aside = Self::make_aside(&out).inspect_err(|_| leave(made, &out))?;
        Ok(Self { aside, out, made })
    }

    fn make_aside(out: &Path) -> Result<PathBuf> {
        let mut name = out.file_name().unwrap_or_default().to_os_string();
        name.push(".part");
        let aside = out.with_file_name(name);
        if aside.exists() {
            let problem = "is in the way: if an interrupted run left it, remove it";
            return Err(Error::config(aside.display(), problem));
        }
        fs::create_dir(&aside).map_err(Error::store(&aside, "make the folder"))?;
        Ok(aside)
    }

    /// Puts the folder in place; from then on it survives the loss of power.
    pub fn finish(mut self) -> Result<()> {
        sync(&self.aside)?;
        fs::rename(&self.aside, &self.out).map_err(Error::store(&self.out, "put the folder in place"))?;
        self.made = false;
        self.out.parent().map_or(Ok(()), sync_one)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // after `finish` there is nothing under this name any more
        drop(fs::remove_dir_all(&self.aside));
        leave(self.made, &self.out);
    }
}

/// Removes a folder that was made here, unless something came into it.
fn leave(made: bool, out: &Path) {
    if made {
        drop(fs::remove_dir(out));
    }
}

/// Writes a folder to disk, with all that is in it.
fn sync(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::store(folder, "list the folder"))? {
        let entry = entry.map_err(Error::store(folder, "list the folder"))?;
        match entry.file_type().map_err(Error::store(folder, "list the folder"))? {
            kind if kind.is_dir() => sync(&entry.path())?,
            kind if kind.is_file() => sync_one(&entry.path())?,
            // a link is part of its folder
            _ => {}
        }
    }
    sync_one(folder)
}

/// Replaces a file of JSON; what is there afterwards survives the loss of power.
pub fn write_whole(path: &Path, value: &impl Serialize) -> Result<()> {
    let aside = path.with_extension("part");
    let text = serde_json::to_vec_pretty(value).expect("what is written here has text for keys");
    fs::write(&aside, text).map_err(Error::store(&aside, "write it"))?;
    sync_one(&aside)?;
    fs::rename(&aside, path).map_err(Error::store(path, "put it in place"))?;
    path.parent().map_or(Ok(()), sync_one)
}

/// Writes one file, or the names in one folder, to disk.
pub fn sync_one(path: &Path) -> Result<()> {
    fs::File::open(path).and_then(|file| file.sync_all()).map_err(Error::store(path, "write it to disk"))
}

/// Makes the folder: whether it was not there. One that holds something is left alone.
pub fn start_folder(out: &Path) -> Result<bool> {
    let made = !out.exists();
    fs::create_dir_all(out).map_err(Error::store(out, "make the folder"))?;
    let mut entries = fs::read_dir(out).map_err(Error::store(out, "list the folder"))?;
    match entries.next() {
        Some(_) => Err(Error::config(out.display(), "is not empty: give a new folder")),
        None => Ok(made),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_appears_whole_or_not_at_all() {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("out");
        let given_up = Claim::new(&out).unwrap();
        fs::write(given_up.aside.join("half"), "x").unwrap();
        assert!(Claim::new(&out).is_err(), "two cannot fill one folder");
        drop(given_up);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing is left");
        fs::create_dir(&out).unwrap();
        drop(Claim::new(&out).unwrap());
        assert!(out.exists(), "but what was there before");
        fs::remove_dir(&out).unwrap();
        fs::create_dir(home.path().join("out.part")).unwrap();
        assert!(Claim::new(&out).unwrap_err().to_string().contains("is in the way"));
        assert!(!out.exists() && home.path().join("out.part").exists(), "another's folder is left alone");
        fs::remove_dir(home.path().join("out.part")).unwrap();
        let claim = Claim::new(&out).unwrap();
        fs::create_dir(claim.aside.join("inner")).unwrap();
        fs::write(claim.aside.join("inner/whole"), "x").unwrap();
        claim.finish().unwrap();
        assert!(out.join("inner/whole").exists());
        assert!(Claim::new(&out).unwrap_err().to_string().contains("is not empty"));
        let empty = home.path().join("empty");
        Claim::new(&empty).unwrap().finish().unwrap();
        assert!(empty.exists());
    }
}
