//! A small file system for the test, which can be filled up.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

/// Mounted tmpfs; lazily unmounted when dropped.
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts the disk. None if that is not permitted; then records the test as skipped.
    pub fn mount(path: &Path) -> Option<Self> {
        fs::create_dir(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64m,mode=755", "tmpfs"]).arg(path);
        if mount.status().is_ok_and(|status| status.success()) {
            return Some(Self(path.into()));
        }
        if let Some(file) = std::env::var_os("SOUK_SKIPPED") {
            let mut file = File::options().append(true).create(true).open(file).unwrap();
            writeln!(file, "chaos test on a full disk: mounting a small disk needs root").unwrap();
        }
        None
    }

    /// Fills the disk; it stays full until the returned guard is dropped.
    pub fn fill(&self) -> FullDisk {
        let (path, stop) = (self.0.join("filled"), Arc::new(AtomicBool::new(false)));
        let mut file = File::create(&path).unwrap();
        fill(&mut file);
        let stopped = stop.clone();
        let filling = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // fills space that others free
                fill(&mut file);
                sleep(Duration::from_millis(5));
            }
        });
        FullDisk { path, stop, filling: Some(filling) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

fn fill(file: &mut File) {
    let bytes = [7; 4096];
    loop {
        match file.write(&bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return,
            Err(error) => panic!("cannot fill the disk: {error}"),
        }
    }
}

/// Guard of a full disk; frees the space when dropped.
pub struct FullDisk {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    filling: Option<JoinHandle<()>>,
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let outcome = self.filling.take().map(JoinHandle::join);
        drop(fs::remove_file(&self.path));
        assert!(thread::panicking() || !matches!(outcome, Some(Err(_))), "filling the disk failed");
    }
}
