//! A folder that is filled aside and renamed when it is whole, so that nobody ever meets half of it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The right to fill a folder. Given up before `finish`, it leaves nothing.
#[derive(Debug)]
pub struct Claim {
    /// Where to write until then.
    pub aside: PathBuf,
    out: PathBuf,
}

impl Claim {
    /// Checks that `out` is new or empty, and makes a folder of its own beside it.
    pub fn new(out: &Path) -> Result<Self> {
        start_folder(out)?;
        let out = out.canonicalize().map_err(Error::store(out, "find the folder"))?;
        let mut name = out.file_name().unwrap_or_default().to_os_string();
        name.push(".part");
        let aside = out.with_file_name(name);
        if aside.exists() {
            let problem = "is in the way: if an interrupted run left it, remove it";
            return Err(Error::config(aside.display(), problem));
        }
        fs::create_dir(&aside).map_err(Error::store(&aside, "make the folder"))?;
        Ok(Self { aside, out })
    }

    pub fn finish(self) -> Result<()> {
        fs::rename(&self.aside, &self.out).map_err(Error::store(&self.out, "put the folder in place"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // after `finish` there is nothing under this name any more
        drop(fs::remove_dir_all(&self.aside));
    }
}

/// Makes the folder; one that holds something is left alone.
pub fn start_folder(out: &Path) -> Result<()> {
    fs::create_dir_all(out).map_err(Error::store(out, "make the folder"))?;
    let mut entries = fs::read_dir(out).map_err(Error::store(out, "list the folder"))?;
    match entries.next() {
        Some(_) => Err(Error::config(out.display(), "is not empty: give a new folder")),
        None => Ok(()),
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
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
        let claim = Claim::new(&out).unwrap();
        fs::write(claim.aside.join("whole"), "x").unwrap();
        claim.finish().unwrap();
        assert!(out.join("whole").exists());
        assert!(Claim::new(&out).unwrap_err().to_string().contains("is not empty"));
    }
}
