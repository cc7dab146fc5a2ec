//! Reads the search log on its own thread while the trainer runs. Reopens a log that fails, with back-off; pauses while the disk
//! is full. No message is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use souk::Result;
use souk::backoff::Backoff;
use souk::config::{Config, LogConfig};
use souk::dataset::{EXAMPLES_FOLDER, Ingest, IngestSettings};

use crate::signals::Signals;
use crate::status::Status;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

pub struct LogReader {
    home: PathBuf,
    log: LogConfig,
    settings: IngestSettings,
    status: Arc<Status>,
    signals: Arc<Signals>,
}

impl LogReader {
    pub fn new(data: &Path, config: &Config, status: Arc<Status>, signals: Arc<Signals>) -> Self {
        let log = LogConfig { follow: true, ..config.log.clone() };
        Self { home: data.join(EXAMPLES_FOLDER), log, settings: config.ingest.clone(), status, signals }
    }

    /// Reads until asked to stop. Everything that was read is durable then.
    pub fn run(&self) {
        let new_backoff = || Backoff::new(FIRST_PAUSE, MAX_PAUSE);
        let mut backoff = new_backoff();
        while !self.signals.stopped() {
            if self.signals.halt.load(Ordering::Relaxed) {
                thread::sleep(POLL);
                continue;
            }
            let mut has_read = false;
            let outcome = self.read(&mut has_read);
            if outcome.is_ok() || has_read {
                backoff = new_backoff();
            }
            if let Err(error) = outcome {
                // what was read before can be trained on
                self.status.change(|shown| shown.log.is_caught_up = true);
                self.status.alarm("log", Some(error.with_causes()));
                self.signals.wait(backoff.next_pause());
            }
        }
    }

    /// Reads until halted. Sets `has_read` once something was read.
    fn read(&self, has_read: &mut bool) -> Result<()> {
        let open = |resume| self.log.open(resume);
        let halt: Arc<AtomicBool> = self.signals.halt.clone();
        let mut ingest = Ingest::new(&self.home, self.settings.clone(), Box::new(open), halt)?;
        let report = |progress: &_| {
            *has_read = true;
            self.status.alarm("log", None);
            self.status.read(progress);
        };
        ingest.run(report).map(drop)
    }
}
