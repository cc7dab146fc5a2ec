//! `souk launch`: runs a command as several ranks on this machine, each a process with torchrun's variables. When one
//! rank fails, the others are stopped.

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

use crate::GlobalArgs;
use crate::stop::listen;

/// Grace period after a rank failed, before the others are killed.
const FAILURE_GRACE: Duration = Duration::from_secs(10);
/// Grace period after Ctrl-C: long enough for a step and a checkpoint.
const STOP_GRACE: Duration = Duration::from_secs(600);
/// Environment variable with the launcher's process id.
pub const LAUNCHER: &str = "SOUK_LAUNCHER";
const POLL: Duration = Duration::from_millis(20);
/// Upper bound of a line in bytes; longer lines are split.
const MAX_LINE: u64 = 64 << 10;

/// Run a command as several processes (ranks) on this machine
///
/// Starts N ranks of `souk <command>` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
/// set, as torchrun does; for several machines, use torchrun. Standard output comes from rank 0; all
/// other output has the prefix [RANK]. If a rank fails, the others are stopped and its exit code is
/// returned (1 after a signal). Ctrl-C stops after the current step, a second one at once. Example:
///
///   souk launch --nproc 2 -- train --config configs/sft-market.toml --data market --out run
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct LaunchCommand {
    /// Number of ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: u16,
    /// Time limit; the job is stopped after it
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    timeout: Option<u64>,
    /// Command that each rank runs, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND ARGS")]
    command: Vec<OsString>,
}

/// Failure of a rank; its exit code becomes the launcher's.
#[derive(Debug)]
pub struct RankFailure {
    pub code: u8,
    message: String,
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RankFailure {}

struct Rank {
    number: usize,
    process: Child,
    /// Exit status; none while the rank runs.
    status: Option<ExitStatus>,
    readers: Vec<JoinHandle<()>>,
}

impl LaunchCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let is_forced = Arc::new(AtomicBool::new(false));
        let force = is_forced.clone();
        let stop = listen(move || force.store(true, Ordering::Relaxed))?;
        let end = self.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut job = Job(Vec::new());
        let port = free_port().context("no free port for the ranks to connect to")?;
        for number in 0..usize::from(self.nproc) {
            job.0.push(self.start(number, port, globals)?);
        }
        let outcome = loop {
            // checked first: a terminal sends Ctrl-C to the ranks as well, and their exit is then no failure
            if stop.load(Ordering::Relaxed) {
                break Err(anyhow::anyhow!("stopped by a signal: all ranks were stopped"));
            }
            if let Some(failed) = job.first_failure()? {
                break Err(failed.into());
            }
            if job.0.iter().all(|rank| rank.status.is_some()) {
                break Ok(());
            }
            if end.is_some_and(|end| Instant::now() > end) {
                let seconds = self.timeout.unwrap_or_default();
                break Err(anyhow::anyhow!("the job was not done after {seconds} s (--timeout) and was stopped"));
            }
            std::thread::sleep(POLL);
        };
        let grace = if stop.load(Ordering::Relaxed) { STOP_GRACE } else { FAILURE_GRACE };
        job.end(grace, &is_forced)?;
        outcome
    }

    fn start(&self, number: usize, port: u16, globals: &GlobalArgs) -> anyhow::Result<Rank> {
        let engine = std::env::current_exe().context("cannot find the path of this program")?;
        let mut command = Command::new(engine);
        command.args(&self.command).args(forwarded(globals));
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
        Ok(Rank { number, process, status: None, readers })
    }
}

/// Global flags given before `--`, to pass on to each rank.
fn forwarded(globals: &GlobalArgs) -> Vec<OsString> {
    let mut arguments = Vec::new();
    if let Some(config) = &globals.config {
        arguments.extend(["--config".into(), config.into()]);
    }
    for set in &globals.sets {
        arguments.extend(["--set".into(), set.into()]);
    }
    if globals.json {
        arguments.push("--json".into());
    }
    arguments
}

/// All ranks; killed when dropped.
struct Job(Vec<Rank>);

impl Job {
    /// First failure among the ranks that ended since the last call.
    fn first_failure(&mut self) -> anyhow::Result<Option<RankFailure>> {
        let mut first = None;
        for rank in self.0.iter_mut().filter(|rank| rank.status.is_none()) {
            rank.status = rank.process.try_wait()?;
            let failed = rank.status.filter(|status| !status.success());
            first = first.or(failed.map(|status| failure(rank.number, status)));
        }
        Ok(first)
    }

    /// Stops running ranks, by SIGTERM and then by SIGKILL, and waits for their output.
    fn end(&mut self, grace: Duration, is_forced: &AtomicBool) -> anyhow::Result<()> {
        for rank in self.0.iter_mut().filter(|rank| rank.status.is_none()) {
            let pid = Pid::from_raw(i32::try_from(rank.process.id())?);
            // not reaped yet, so the process id is still valid; it may have exited already
            let _ = kill(pid, Signal::SIGTERM);
        }
        let end = Instant::now() + grace;
        for rank in &mut self.0 {
            while rank.status.is_none() && Instant::now() < end && !is_forced.load(Ordering::Relaxed) {
                rank.status = rank.process.try_wait()?;
                std::thread::sleep(POLL.min(end.saturating_duration_since(Instant::now())));
            }
            if rank.status.is_none() {
                drop(rank.process.kill());
                rank.status = Some(rank.process.wait()?);
            }
            for reader in rank.readers.drain(..) {
                drop(reader.join());
            }
        }
        Ok(())
    }
}

/// Makes a rank die with its launcher, however that ended.
#[cfg(target_os = "linux")]
pub fn die_with_launcher() -> anyhow::Result<()> {
    let Some(launcher) = std::env::var(LAUNCHER).ok().and_then(|text| text.parse().ok()) else { return Ok(()) };
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("cannot request a signal at the launcher's end")?;
    if nix::unistd::getppid() != Pid::from_raw(launcher) {
        anyhow::bail!("the launcher has exited: start the job again");
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub fn die_with_launcher() -> anyhow::Result<()> {
    Ok(())
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in self.0.iter_mut().filter(|rank| rank.status.is_none()) {
            drop(rank.process.kill());
            drop(rank.process.wait());
        }
    }
}

fn failure(number: usize, status: ExitStatus) -> RankFailure {
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    let message = match (status.code(), signal) {
        (Some(code), _) => format!("rank {number} failed first, with exit code {code}; the others were stopped"),
        (None, Some(signal)) => {
            let name = Signal::try_from(signal).map_or_else(|_| signal.to_string(), |name| name.to_string());
            format!("rank {number} failed first, killed by {name}; the others were stopped")
        }
        (None, None) => format!("rank {number} failed first; the others were stopped"),
    };
    RankFailure { code: status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1), message }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Copies a rank's output to standard error, line by line, with the prefix `[RANK]`.
fn prefixed(number: usize, stream: impl Read + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = format!("[{number}] ").into_bytes();
        let prefix = line.len();
        while matches!(stream.by_ref().take(MAX_LINE).read_until(b'\n', &mut line), Ok(1..)) {
            if !line.ends_with(b"\n") {
                line.push(b'\n');
            }
            // write errors are ignored: the rank must not block on a closed standard error
            drop(stderr().lock().write_all(&line));
            line.truncate(prefix);
        }
    })
}
