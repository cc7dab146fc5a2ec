//! The trainer process: locks the state folder, starts the threads and the HTTP server, and shuts down on a signal.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use souk::atomic_dir::create_folder;
use souk::beir::DataFolder;
use souk::collective::Rendezvous;
use souk::config::{Config, SharedLedger};
use souk::report::GateSource;
use souk::telemetry::TRAINER_REQUESTS;
use souk::{Error, Result};
use souk_http::{Endpoint, Entrance, Front, FrontLimits, Keys, Probe};
use tokio::runtime::{Builder, Handle};

use crate::log_reader::LogReader;
use crate::ranks::{Ranks, follow};
use crate::registry::Registry;
use crate::round_loop::{RoundContext, RoundLoop, Shop, check_stages};
use crate::routes::{AppState, router};
use crate::signals::Signals;
use crate::status::Status;
use crate::watchdog::Watchdog;

/// Environment variable with API keys, separated by commas or spaces.
const KEYS: &str = "SOUK_TRAINER_KEYS";
const LOCK: &str = "lock";
/// Time for the threads to end; the next process resumes unfinished work.
const SHUTDOWN: Duration = Duration::from_secs(28);
const MAX_REQUESTS: usize = 32;

/// Trains until SIGTERM or SIGINT, then finishes the current step, writes a checkpoint and commits what was read of the log.
/// `ready` gets the address of the status server.
pub fn serve(config: &Config, ready: impl FnOnce(Endpoint) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let settings = &config.trainer;
    let data = check(config)?;
    if Rendezvous::from_environment()?.is_some_and(|place| place.rank > 0) {
        return Ok(follow_until_signal(config)?);
    }
    let _lock = lock(&settings.state)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().context("cannot start threads")?;
    let handle = runtime.handle().clone();
    let entrance = Entrance {
        section: "trainer",
        listen: &settings.listen,
        metrics_listen: settings.metrics_listen.as_deref(),
        tls: settings.tls.as_ref(),
        key_file: settings.key_file.as_deref(),
        key_variable: KEYS,
        allow_no_keys: settings.allow_no_keys,
    };
    let open = async |_: Endpoint, keys: Keys| {
        let (threads, state) = tokio::task::block_in_place(|| Threads::start(config, data, keys, &handle))?;
        Ok((router(state, settings.metrics_listen.is_none()), threads))
    };
    let threads = runtime.block_on(souk_http::serve(&entrance, open, |endpoint, _| ready(endpoint)))?;
    let failure = threads.stop();
    runtime.shutdown_background();
    failure.map_or(Ok(()), |problem| Err(anyhow::anyhow!("distributed training failed: {problem}")))
}

/// Runs a rank other than 0, which has no HTTP server.
fn follow_until_signal(config: &Config) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|e| Error::device("cannot start a thread").because(e))?;
    runtime.spawn(async move {
        souk_http::shutdown_signal().await;
        stopped.store(true, Ordering::Relaxed);
    });
    let followed = follow(config, &stop);
    runtime.shutdown_background();
    followed
}

/// Checks the configuration before anything starts.
fn check(config: &Config) -> Result<DataFolder> {
    let settings = &config.trainer;
    check_stages(config)?;
    config.log.check()?;
    let missing = || Error::config("trainer.data", "is not set: give --data DIR");
    let data = config.open_data(settings.data.as_deref().ok_or_else(missing)?)?;
    for split in &settings.gate.splits {
        let file = data.qrels(split);
        if file.exists() {
            continue;
        }
        match settings.gate.source {
            GateSource::Log => {
                tracing::info!(file = %file.display(), "is not there: the gate measures without this split")
            }
            GateSource::Qrels => {
                let problem = format!(
                    "{} is not there: a candidate is measured with it. Without raters, set trainer.gate.source = \"log\"",
                    file.display()
                );
                return Err(Error::config("trainer.gate.splits", problem));
            }
        }
    }
    Ok(data)
}

fn lock(state: &Path) -> Result<File> {
    create_folder(state)?;
    let path = state.join(LOCK);
    let file = File::options().create(true).append(true).open(&path).map_err(Error::store(&path, "open it"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::config(
            state.display(),
            "another trainer uses this state folder: stop it, or set another one with --state",
        )),
        Err(TryLockError::Error(error)) => Err(Error::store(&path, "lock it")(error)),
    }
}

struct Threads {
    signals: Arc<Signals>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(config: &Config, data: DataFolder, keys: Keys, runtime: &Handle) -> anyhow::Result<(Self, Arc<AppState>)> {
        let (status, signals) = (Arc::new(Status::new()), Arc::new(Signals::default()));
        let registry = Arc::new(Registry::new(config.store.clone(), runtime.clone()));
        let folders = vec![config.trainer.state.clone(), data.path().into()];
        let alarms = config.trainer.alarms.clone();
        let watchdog = Watchdog { alarms, folders, status: status.clone(), signals: signals.clone() };
        let log_reader = LogReader::new(data.path(), config, status.clone(), signals.clone());
        let ranks = Ranks::open(config)?;
        let stream = config.open_catalogue_stream(Arc::new(SharedLedger::new(config.store.clone())))?;
        let shop = Shop { data, stream, runtime: runtime.clone() };
        let shared = RoundContext { registry: registry.clone(), status: status.clone(), signals: signals.clone() };
        let round_loop = RoundLoop::open(config, shop, ranks, shared)?;
        let running = vec![
            spawn("souk-watchdog", move || watchdog.run())?,
            spawn("souk-log", move || log_reader.run())?,
            spawn("souk-rounds", move || round_loop.run())?,
        ];
        let limits = FrontLimits { max_requests: MAX_REQUESTS, max_bytes: 1 << 16, body_seconds: 10 };
        let front = Front::new(keys, limits, &TRAINER_REQUESTS);
        let (probe, served) = (Probe::default(), Probe::default());
        let state =
            AppState { front: Arc::new(front), status, registry, probe, served, folder: config.trainer.state.clone() };
        Ok((Self { signals, running }, Arc::new(state)))
    }

    /// Stops the threads and waits for them. Returns the error that ended the process, if there was one.
    fn stop(self) -> Option<String> {
        self.signals.stop();
        let began = Instant::now();
        while began.elapsed() < SHUTDOWN && !self.running.iter().all(JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(20));
        }
        let failure = self.signals.failure();
        let late: Vec<_> = self.running.iter().filter(|thread| !thread.is_finished()).collect();
        for thread in &late {
            let name = thread.thread().name().unwrap_or_default();
            tracing::warn!(name, "the thread has not ended in time: the next process resumes from the files on disk");
        }
        if !late.is_empty() {
            souk_native::leave_at_once(failure.is_some().into());
        }
        failure
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(run).context("cannot start a thread")
}
