//! A small file system of the test's own, which can be filled until nothing more can be written.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

/// Dropped, it is unmounted, whoever still has files open on it.
pub struct Disk(PathBuf);

impl Disk {
    /// None where this is not permitted, which is noted as skipped.
    pub fn mount(place: &Path) -> Option<Self> {
        fs::create_dir(place).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64m,mode=755", "tmpfs"]).arg(place);
        if mount.status().is_ok_and(|status| status.success()) {
            return Some(Self(place.into()));
        }
        if let Some(file) = std::env::var_os("SOUK_SKIPPED") {
            let mut file = File::options().append(true).create(true).open(file).unwrap();
            writeln!(file, "the loop on a full disk: only root may mount a small one").unwrap();
        }
        None
    }

    /// Returns when not a byte more can be written, which stays so until what is returned is dropped.
    pub fn fill(&self) -> Filled {
        let (place, over) = (self.0.join("filled"), Arc::new(AtomicBool::new(false)));
        let mut file = File::create(&place).unwrap();
        fill(&mut file);
        let seen = over.clone();
        let filling = thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                // what others remove makes no room for them
                fill(&mut file);
                sleep(Duration::from_millis(5));
            }
        });
        Filled { place, over, filling: Some(filling) }
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
            Err(error) => panic!("the disk was to be filled: {error}"),
        }
    }
}

/// Room comes back when it is dropped.
pub struct Filled {
    place: PathBuf,
    over: Arc<AtomicBool>,
    filling: Option<JoinHandle<()>>,
}

impl Drop for Filled {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let filled = self.filling.take().map(JoinHandle::join);
        drop(fs::remove_file(&self.place));
        assert!(thread::panicking() || !matches!(filled, Some(Err(_))), "the disk was not full all along");
    }
}
