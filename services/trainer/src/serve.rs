//! The process: takes the state folder, starts the threads, and the socket they are watched on; ends them on a signal.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use souk::beir::DataFolder;
use souk::collective::Rendezvous;
use souk::config::Config;
use souk::telemetry::TRAINER_REQUESTS;
use souk::{Error, Result};
use souk_http::{Endpoint, Front, Keys, Probe};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;

use crate::ranks::{Ranks, follow};
use crate::reader::Reader;
use crate::registry::Registry;
use crate::routes::{Asked, router};
use crate::status::Status;
use crate::watch::{Signals, Watch};
use crate::work::{Work, check_stages};

/// The variable with keys, between commas or spaces.
const KEYS: &str = "SOUK_TRAINER_KEYS";
const LOCK: &str = "lock";
/// For the threads to leave; what they have not done then is done by the next process.
const LEAVING: Duration = Duration::from_secs(28);
const MAX_REQUESTS: usize = 32;

/// Trains until a signal. `ready` hears of where the trainer is asked for its status. Then the step that is being made is
/// finished, written down as a checkpoint, and what was read of the log is made durable.
pub fn serve(config: &Config, ready: impl FnOnce(Endpoint) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let settings = &config.trainer;
    let data = check(config)?;
    if Rendezvous::from_environment()?.is_some_and(|place| place.rank > 0) {
        return Ok(follow_until_told(config, &data)?);
    }
    let keys = Keys::open(settings.key_file.as_deref(), KEYS)?;
    let _lock = lock(&settings.state)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().context("cannot start threads")?;
    let handle = runtime.handle().clone();
    let open = async |endpoint: Endpoint| {
        if keys.is_empty() && !endpoint.address.ip().is_loopback() {
            tracing::warn!(%endpoint, "everybody who reaches this address may see what the trainer does: give keys");
        }
        let (threads, asked) = tokio::task::block_in_place(|| Threads::start(config, data, keys, &handle))?;
        Ok((router(asked), threads))
    };
    let listen = (settings.listen.as_str(), "trainer.listen");
    let threads = runtime.block_on(souk_http::serve(listen, None, open, |endpoint, _| ready(endpoint)))?;
    let failure = threads.leave();
    runtime.shutdown_background();
    failure.map_or(Ok(()), |problem| Err(anyhow::anyhow!("a stage that several ranks trained has ended: {problem}")))
}

/// Another rank than the first has nothing that it could be asked for.
fn follow_until_told(config: &Config, data: &DataFolder) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|e| Error::device("no thread can be started").because(e))?;
    runtime.spawn(async move {
        souk_http::asked_to_end().await;
        stopped.store(true, Ordering::Relaxed);
    });
    let followed = follow(config, data, &stop);
    runtime.shutdown_background();
    followed
}

/// What is wrong is told before anything begins.
fn check(config: &Config) -> Result<DataFolder> {
    let settings = &config.trainer;
    check_stages(config)?;
    let missing = || Error::config("trainer.data", "names no data folder: give --data DIR");
    let data = DataFolder::open(settings.data.as_deref().ok_or_else(missing)?)?;
    for split in &settings.gate.splits {
        let file = data.qrels(split);
        if !file.exists() {
            let problem = format!("{} is not there, and a candidate is measured by it", file.display());
            return Err(Error::config("trainer.gate.splits", problem));
        }
    }
    Ok(data)
}

fn lock(state: &Path) -> Result<File> {
    fs::create_dir_all(state).map_err(Error::store(state, "make the folder"))?;
    let path = state.join(LOCK);
    let file = File::options().create(true).append(true).open(&path).map_err(Error::store(&path, "open it"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Error::config(state.display(), "another trainer works in it: stop it, or give another with --state"))
        }
        Err(TryLockError::Error(error)) => Err(Error::store(&path, "lock it")(error)),
    }
}

struct Threads {
    signals: Arc<Signals>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(config: &Config, data: DataFolder, keys: Keys, runtime: &Handle) -> anyhow::Result<(Self, Arc<Asked>)> {
        let (status, signals) = (Arc::new(Status::new()), Arc::new(Signals::default()));
        let registry = Arc::new(Registry::new(config.store.clone(), runtime.clone()));
        let folders = vec![config.trainer.state.clone(), data.path().into()];
        let watch =
            Watch { alarms: config.trainer.alarms.clone(), folders, status: status.clone(), signals: signals.clone() };
        let reader = Reader::new(data.path(), (&config.log, &config.ingest), status.clone(), signals.clone());
        let ranks = Ranks::open(config)?;
        let work = Work::open(config, data, (registry.clone(), ranks), (status.clone(), signals.clone()))?;
        let running = vec![
            spawn("souk-watch", move || watch.run())?,
            spawn("souk-reader", move || reader.run())?,
            spawn("souk-work", move || work.run())?,
        ];
        let front = Front {
            keys,
            room: Arc::new(Semaphore::new(MAX_REQUESTS)),
            max_requests: MAX_REQUESTS,
            max_bytes: 1 << 16,
            body_time: Duration::from_secs(10),
            metrics: &TRAINER_REQUESTS,
        };
        let (probe, served) = (Probe::default(), Probe::default());
        let asked = Asked { front: Arc::new(front), status, registry, probe, served };
        Ok((Self { signals, running }, Arc::new(asked)))
    }

    /// Asks them to end, and waits for a while. Why it was that they had to, where they did not get on.
    fn leave(self) -> Option<String> {
        self.signals.stop();
        let began = Instant::now();
        while began.elapsed() < LEAVING && !self.running.iter().all(JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(20));
        }
        let failure = self.signals.failure();
        let late: Vec<_> = self.running.iter().filter(|thread| !thread.is_finished()).collect();
        for thread in &late {
            let name = thread.thread().name().unwrap_or_default();
            tracing::warn!(name, "is still at work: the next process goes on from what is on disk");
        }
        if !late.is_empty() {
            souk_native::leave_at_once(failure.is_some().into());
        }
        failure
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(work).context("cannot start a thread")
}
