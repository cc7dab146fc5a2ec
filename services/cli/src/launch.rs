//! `souk launch`: several ranks of one job on this machine, each an engine of its own with torchrun's variables set. When one
//! fails, the others are ended.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write, stderr};
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Shared;
use crate::stop::listen;

/// How long ranks may take to end once one has failed.
const GRACE: Duration = Duration::from_secs(10);
/// How long they may take when the user has asked: a step and a checkpoint.
const PATIENCE: Duration = Duration::from_secs(600);
/// Tells a rank who started it.
const LAUNCHER: &str = "SOUK_LAUNCHER";
const POLL: Duration = Duration::from_millis(20);
/// A longer line is shown in pieces.
const MAX_LINE: u64 = 64 << 10;

/// Run a verb as several processes of this machine that work together
///
/// Starts N ranks of `souk VERB` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
/// set, as torchrun does; on several machines, use torchrun. Standard output is rank 0's; all else
/// is shown with [RANK] before each line. When a rank fails, the others are ended, and its exit
/// code is the job's (1 after a signal). Ctrl-C lets all end their step, a second one ends them at once. Example:
///
///   souk launch --nproc 2 -- train --config configs/sft-market.toml --data market --out run
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Launch {
    /// Ranks to start
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: u16,
    /// End the job when it has run for so long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    timeout: Option<u64>,
    /// What each rank runs
    #[arg(last = true, required = true, value_name = "VERB ARGS")]
    command: Vec<OsString>,
}

/// The job's end is a rank's: its exit code is ours.
#[derive(Debug)]
pub struct RankFailed {
    pub code: u8,
    how: String,
}

impl fmt::Display for RankFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.how)
    }
}

impl std::error::Error for RankFailed {}

struct Rank {
    number: usize,
    process: Child,
    /// How it has ended.
    ended: Option<ExitStatus>,
    readers: Vec<JoinHandle<()>>,
}

impl Launch {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let insisted = Arc::new(AtomicBool::new(false));
        let again = insisted.clone();
        let stop = listen(move || again.store(true, Ordering::Relaxed))?;
        let end = self.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut job = Job(Vec::new());
        let port = free_port().context("no free port for the ranks to meet at")?;
        for number in 0..usize::from(self.nproc) {
            job.0.push(self.start(number, port, shared)?);
        }
        let outcome = loop {
            // first, for a terminal sends Ctrl-C to the ranks as well, and that is no failure of theirs
            if stop.load(Ordering::Relaxed) {
                break Err(anyhow::anyhow!("stopped: all ranks were told to end"));
            }
            if let Some(failed) = job.first_failure()? {
                break Err(failed.into());
            }
            if job.0.iter().all(|rank| rank.ended.is_some()) {
                break Ok(());
            }
            if end.is_some_and(|end| Instant::now() > end) {
                let seconds = self.timeout.unwrap_or_default();
                break Err(anyhow::anyhow!("the job was not done after {seconds} s (--timeout), and was ended"));
            }
            std::thread::sleep(POLL);
        };
        let grace = if stop.load(Ordering::Relaxed) { PATIENCE } else { GRACE };
        job.end(grace, &insisted)?;
        outcome
    }

    fn start(&self, number: usize, port: u16, shared: &Shared) -> anyhow::Result<Rank> {
        let engine = std::env::current_exe().context("cannot tell where this program lies")?;
        let mut command = Command::new(engine);
        command.args(&self.command).args(forwarded(shared));
        let variables = [("RANK", number), ("LOCAL_RANK", number)];
        let sizes = [("WORLD_SIZE", usize::from(self.nproc)), ("LOCAL_WORLD_SIZE", usize::from(self.nproc))];
        command.envs(variables.into_iter().chain(sizes).map(|(name, value)| (name, value.to_string())));
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env(LAUNCHER, std::process::id().to_string());
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env("OMP_NUM_THREADS", (cores / usize::from(self.nproc)).max(1).to_string());
        }
        command.stderr(Stdio::piped());
        if number > 0 {
            command.stdin(Stdio::null()).stdout(Stdio::piped());
        }
        let mut process = command.spawn().with_context(|| format!("cannot start rank {number}"))?;
        let error = process.stderr.take().map(|stream| prefixed(number, stream));
        let output = process.stdout.take().map(|stream| prefixed(number, stream));
        let readers = error.into_iter().chain(output).collect();
        Ok(Rank { number, process, ended: None, readers })
    }
}

/// What stands before `--` but belongs to every verb.
fn forwarded(shared: &Shared) -> Vec<OsString> {
    let mut arguments = Vec::new();
    if let Some(config) = &shared.config {
        arguments.extend(["--config".into(), config.into()]);
    }
    for set in &shared.sets {
        arguments.extend(["--set".into(), set.into()]);
    }
    if shared.json {
        arguments.push("--json".into());
    }
    arguments
}

/// The ranks; none outlives this.
struct Job(Vec<Rank>);

impl Job {
    /// Of the ranks that have ended since the last look, the first that failed.
    fn first_failure(&mut self) -> anyhow::Result<Option<RankFailed>> {
        let mut first = None;
        for rank in self.0.iter_mut().filter(|rank| rank.ended.is_none()) {
            rank.ended = rank.process.try_wait()?;
            let failed = rank.ended.filter(|status| !status.success());
            first = first.or(failed.map(|status| failure(rank.number, status)));
        }
        Ok(first)
    }

    /// Ends those that still run, first by asking, and shows what they have to say.
    fn end(&mut self, grace: Duration, insisted: &AtomicBool) -> anyhow::Result<()> {
        for rank in self.0.iter_mut().filter(|rank| rank.ended.is_none()) {
            let pid = Pid::from_raw(i32::try_from(rank.process.id())?);
            // it has not been waited for, so the number is still its own; it may have ended by itself
            let _ = kill(pid, Signal::SIGTERM);
        }
        let end = Instant::now() + grace;
        for rank in &mut self.0 {
            while rank.ended.is_none() && Instant::now() < end && !insisted.load(Ordering::Relaxed) {
                rank.ended = rank.process.try_wait()?;
                std::thread::sleep(POLL.min(end.saturating_duration_since(Instant::now())));
            }
            if rank.ended.is_none() {
                drop(rank.process.kill());
                rank.ended = Some(rank.process.wait()?);
            }
            for reader in rank.readers.drain(..) {
                drop(reader.join());
            }
        }
        Ok(())
    }
}

/// A rank ends with who launched it, however that ended.
#[cfg(target_os = "linux")]
pub fn follow_launcher() -> anyhow::Result<()> {
    let Some(launcher) = std::env::var(LAUNCHER).ok().and_then(|text| text.parse().ok()) else { return Ok(()) };
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("cannot follow the launcher")?;
    match nix::unistd::getppid() == Pid::from_raw(launcher) {
        true => Ok(()),
        false => anyhow::bail!("the launcher has ended"),
    }
}

#[cfg(not(target_os = "linux"))]
pub fn follow_launcher() -> anyhow::Result<()> {
    Ok(())
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in self.0.iter_mut().filter(|rank| rank.ended.is_none()) {
            drop(rank.process.kill());
            drop(rank.process.wait());
        }
    }
}

fn failure(number: usize, status: ExitStatus) -> RankFailed {
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    let how = match (status.code(), signal) {
        (Some(code), _) => format!("rank {number} failed first, with exit code {code}; the others were ended"),
        (None, Some(signal)) => {
            let name = Signal::try_from(signal).map_or_else(|_| signal.to_string(), |name| name.to_string());
            format!("rank {number} failed first, ended by {name}; the others were ended")
        }
        (None, None) => format!("rank {number} failed first; the others were ended"),
    };
    RankFailed { code: status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1), how }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Shows a rank's lines on standard error, each whole and with the rank before it.
fn prefixed(number: usize, stream: impl Read + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = format!("[{number}] ").into_bytes();
        let begin = line.len();
        while matches!(stream.by_ref().take(MAX_LINE).read_until(b'\n', &mut line), Ok(1..)) {
            if !line.ends_with(b"\n") {
                line.push(b'\n');
            }
            // with nobody to read it, the rank still must not wait
            drop(stderr().lock().write_all(&line));
            line.truncate(begin);
        }
    })
}
