//! Looks every second whether all get on: the log, the stage that trains, the disk. Tells the others to stop, or to pause.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use nix::sys::statvfs::statvfs;
use souk::Error;
use souk::config::Alarms;

use crate::reader::said;
use crate::status::Status;

const LOOK: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(50);

/// What the threads are told.
#[derive(Default)]
pub struct Signals {
    /// To end, at the next good moment.
    pub stop: Arc<AtomicBool>,
    /// To read no more for now.
    pub halt: Arc<AtomicBool>,
    /// The disk is full: nothing large shall begin.
    pub full: AtomicBool,
    /// Why the process has to end.
    failed: Mutex<Option<String>>,
}

impl Signals {
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.halt.store(true, Ordering::Relaxed);
    }

    /// The process ends, as if it had been asked to, and says why.
    pub fn fail(&self, error: &Error) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(said(error));
        self.stop();
        if let Err(error) = raise(Signal::SIGTERM) {
            tracing::error!(%error, "the process cannot be told to end");
        }
    }

    pub fn failure(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// So long, or until it is time to stop.
    pub fn wait(&self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time && !self.stopped() {
            thread::sleep(STEP.min(time));
        }
    }
}

pub struct Watch {
    pub alarms: Alarms,
    /// Folders that are written to.
    pub folders: Vec<PathBuf>,
    pub status: Arc<Status>,
    pub signals: Arc<Signals>,
}

impl Watch {
    pub fn run(&self) {
        while !self.signals.stopped() {
            self.status.account();
            self.look();
            self.signals.wait(LOOK);
        }
    }

    fn look(&self) {
        let Alarms { source_seconds, step_seconds, .. } = self.alarms;
        let late = |since: Option<Duration>, most: u64| {
            since.map(|since| since.as_secs()).filter(|since| most > 0 && *since >= most)
        };
        let silent = late(Some(self.status.since_message()), source_seconds);
        self.status.alarm("source", silent.map(|since| format!("no message has come from the log for {since} s")));
        let stalled = late(self.status.since_step(), step_seconds);
        let problem = |since| format!("the stage that trains has made no step for {since} s: is its judge there?");
        self.status.alarm("step", stalled.map(problem));
        let full = self.folders.iter().find_map(|folder| self.lacking(folder.clone()));
        self.signals.full.store(full.is_some(), Ordering::Relaxed);
        self.signals.halt.store(full.is_some() || self.signals.stopped(), Ordering::Relaxed);
        self.status.alarm("disk", full);
    }

    fn lacking(&self, folder: PathBuf) -> Option<String> {
        let free = statvfs(&folder).ok().map(|disk| disk.blocks_available() * disk.fragment_size())?;
        (free < self.alarms.free_bytes).then(|| {
            let (free, least) = (free >> 20, self.alarms.free_bytes >> 20);
            format!(
                "{}: {free} MiB are free, and {least} must be: make room, and it goes on by itself",
                folder.display()
            )
        })
    }
}
