//! Checks every second that messages arrive, that training makes steps, and that the disk has space. Raises alarms, and pauses
//! reading and new rounds while the disk is full.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use souk::config::Alarms;
use souk::disk::missing_space;

use crate::signals::Signals;
use crate::status::Status;

const INTERVAL: Duration = Duration::from_secs(1);

pub struct Watchdog {
    pub alarms: Alarms,
    /// Folders the trainer writes to.
    pub folders: Vec<PathBuf>,
    pub status: Arc<Status>,
    pub signals: Arc<Signals>,
}

impl Watchdog {
    pub fn run(&self) {
        while !self.signals.stopped() {
            self.status.account();
            self.check();
            self.signals.wait(INTERVAL);
        }
    }

    fn check(&self) {
        let Alarms { source_seconds, step_seconds, .. } = self.alarms;
        let late = |since: Option<Duration>, limit: u64| {
            since.map(|since| since.as_secs()).filter(|since| limit > 0 && *since >= limit)
        };
        let silent = late(Some(self.status.since_message()), source_seconds);
        self.status.alarm("source", silent.map(|since| format!("no message from the log for {since} s")));
        let stalled = late(self.status.since_step(), step_seconds);
        let problem = |since| format!("no training step for {since} s: check that the judge answers");
        self.status.alarm("step", stalled.map(problem));
        let full = self.folders.iter().find_map(|folder| missing_space(folder, self.alarms.free_bytes));
        let full = full.map(|problem| format!("{problem}: free some space, and the trainer resumes"));
        self.signals.full.store(full.is_some(), Ordering::Relaxed);
        self.signals.halt.store(full.is_some() || self.signals.stopped(), Ordering::Relaxed);
        self.status.alarm("disk", full);
    }
}
