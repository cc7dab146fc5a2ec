//! Brings the log in, on a thread of its own, for as long as the trainer lives. A source that is away is opened again; while
//! the disk is full nothing is read, and nothing is lost by that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use souk::Result;
use souk::config::LogConfig;
use souk::dataset::{EXAMPLES_FOLDER, Ingest, IngestSettings};

use crate::status::Status;
use crate::watch::Signals;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

pub struct Reader {
    home: PathBuf,
    log: LogConfig,
    settings: IngestSettings,
    status: Arc<Status>,
    signals: Arc<Signals>,
}

impl Reader {
    pub fn new(
        data: &Path,
        (log, settings): (&LogConfig, &IngestSettings),
        status: Arc<Status>,
        signals: Arc<Signals>,
    ) -> Self {
        // there is always more to come
        let log = LogConfig { follow: true, ..log.clone() };
        Self { home: data.join(EXAMPLES_FOLDER), log, settings: settings.clone(), status, signals }
    }

    /// Until it is asked to stop, with everything durable that was read.
    pub fn run(&self) {
        let mut pause = FIRST_PAUSE;
        while !self.signals.stopped() {
            if self.signals.halt.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
                continue;
            }
            let mut read = false;
            match self.read(&mut read) {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => {
                    pause = if read { FIRST_PAUSE } else { (2 * pause).min(MAX_PAUSE) };
                    self.status.alarm("log", Some(said(&error)));
                    self.signals.wait(pause);
                }
            }
        }
    }

    /// Until it is halted. `read` says whether something came.
    fn read(&self, read: &mut bool) -> Result<()> {
        let open = |resume| self.log.open(resume);
        let halt: Arc<AtomicBool> = self.signals.halt.clone();
        let mut ingest = Ingest::new(&self.home, self.settings.clone(), Box::new(open), halt)?;
        let told = |progress: &_| {
            *read = true;
            self.status.alarm("log", None);
            self.status.read(progress);
        };
        ingest.run(told).map(drop)
    }
}

/// An error with what is underneath.
pub fn said(error: &souk::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
