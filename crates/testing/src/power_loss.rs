//! Power loss, simulated: a folder whose programs are watched, and the same folder with only what they synced. A file has the content of its last
//! sync, a folder the entries of its own last sync, and everything else is gone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const SHIM: &str = include_str!("power_loss.c");

/// A disk that can lose power.
pub struct Disk {
    home: TempDir,
}

impl Disk {
    pub fn new() -> Self {
        // a file system in memory does not use the number of a deleted file again
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        for folder in ["disk", "notes"] {
            fs::create_dir(home.path().join(folder)).unwrap();
        }
        let (source, shim) = (home.path().join("shim.c"), home.path().join("shim.so"));
        fs::write(&source, SHIM).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).args([&shim, &source]).status().unwrap();
        assert!(built.success(), "cannot compile the shim");
        let disk = Self { home };
        disk.settle(&disk.folder());
        disk
    }

    /// Folder that a watched program writes to.
    pub fn folder(&self) -> PathBuf {
        self.home.path().join("disk")
    }

    fn notes(&self) -> PathBuf {
        self.home.path().join("notes")
    }

    /// Watches a program. Syncs of paths that contain `dropped` do nothing.
    pub fn watch(&self, program: &mut Command, dropped: &str) {
        program.env("LD_PRELOAD", self.home.path().join("shim.so"));
        program.env("DISK", self.folder()).env("NOTES", self.notes()).env("DROPPED_SYNC", dropped);
    }

    /// Counts everything that is in a folder now as synced.
    pub fn settle(&self, folder: &Path) {
        let mut entries = String::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let kind = if path.is_dir() { 'd' } else { 'f' };
            entries += &format!("{} {kind} {name}\n", inode(&path));
            if path.is_dir() {
                self.settle(&path);
            } else {
                fs::copy(&path, self.note(inode(&path))).unwrap();
            }
        }
        fs::write(self.note(inode(folder)), entries).unwrap();
    }

    fn note(&self, inode: u64) -> PathBuf {
        self.notes().join(inode.to_string())
    }

    /// Replaces the folder by what power loss leaves of it. No program may run.
    pub fn lose_power(&self) {
        let (disk, left) = (self.folder(), self.home.path().join("left"));
        self.restore(inode(&disk), &left);
        fs::remove_dir_all(&disk).unwrap();
        fs::remove_dir_all(self.notes()).unwrap();
        fs::create_dir(self.notes()).unwrap();
        fs::rename(&left, &disk).unwrap();
        self.settle(&disk);
    }

    fn restore(&self, inode: u64, left: &Path) {
        fs::create_dir(left).unwrap();
        let entries = fs::read_to_string(self.note(inode)).unwrap_or_default();
        for entry in entries.lines() {
            let [inode, kind, name] = entry.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{entry}") };
            let (inode, left) = (inode.parse().unwrap(), left.join(name));
            if kind == "d" {
                self.restore(inode, &left);
            } else {
                // its name is durable, and of its content what was synced
                let content = fs::read(self.note(inode)).unwrap_or_default();
                fs::write(left, content).unwrap();
            }
        }
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}
