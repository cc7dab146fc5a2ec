//! Collective over processes with torch's c10d: a TCPStore, kept by rank 0 or by torchrun, a Gloo process group, and
//! optionally an NCCL one for CUDA tensors. A failed operation ends the job: the error names the rank at fault, and every
//! later call returns the same error.

use std::cell::RefCell;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use souk_native::{GroupPosition, Network, ProcessGroup, Store};
use tch::Tensor;

use super::heartbeat::{Heartbeat, StatusBoard};
use super::{Backend, Collective, CollectiveSettings, Rendezvous};
use souk_io::error::{Cause, Error, Result};

const POLL: Duration = Duration::from_millis(20);
/// Minimum timeout of a request to the store, even close to the deadline.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);

/// c10d process group. Field order matters: connections are dropped first, the store last.
pub struct C10d {
    rank: usize,
    size: usize,
    group: RefCell<State>,
    heartbeat: Heartbeat,
    _store: Store,
    keeps_store: bool,
}

enum State {
    Open(ProcessGroup),
    Over(String),
}

impl C10d {
    /// Waits for all ranks; the error names those that are missing at the timeout.
    pub fn connect(rendezvous: &Rendezvous, settings: &CollectiveSettings) -> Result<Self> {
        let &Rendezvous { rank, size, restart, .. } = rendezvous;
        let timeout = settings.timeout();
        let deadline = Instant::now() + timeout;
        let keeps_store = rank == 0 && restart.is_none();
        let store = open_store(rendezvous, keeps_store, deadline)?;
        let mut board = StatusBoard {
            store: open_store(rendezvous, false, deadline)?,
            prefix: format!("souk/{}", restart.unwrap_or(0)),
            rank,
            names: Vec::new(),
            keeper: String::new(),
        };
        let names = wait_for_ranks(&board, rendezvous, deadline);
        if names.is_err() && keeps_store {
            // keeps the store up until the others have read who is missing
            sleep(POLL * 25);
        }
        board.names = names?;
        board.keeper = lost_store(rendezvous, &board.names[0]);
        let keys = board.prefix.clone();
        let heartbeat = Heartbeat::start(board, timeout)?;
        let network_name = std::env::var("GLOO_SOCKET_IFNAME").ok().filter(|name| !name.is_empty());
        let network = network(rendezvous, settings.interface.as_deref().or(network_name.as_deref()));
        let connected =
            ProcessGroup::connect(&store, &format!("{keys}/gloo"), GroupPosition { rank, size }, network, timeout);
        let mut group = connected.map_err(|cause| {
            let why = heartbeat.verdict().unwrap_or_else(|| unreachable_by(network));
            upstream(why, cause)
        })?;
        if settings.backend == Backend::Nccl {
            let joined = group.join_nccl(&store, &format!("{keys}/nccl"), &nccl()?, timeout);
            joined.map_err(|cause| {
                Error::config("collective.backend", "cannot join the nccl process group").because(cause)
            })?;
        }
        let group = RefCell::new(State::Open(group));
        Ok(Self { rank, size, group, heartbeat, _store: store, keeps_store })
    }

    fn run<T>(&self, name: &str, call: impl FnOnce(&ProcessGroup) -> souk_native::NativeResult<T>) -> Result<T> {
        let outcome = match &*self.group.borrow() {
            State::Open(group) => {
                self.heartbeat.begin(name);
                call(group)
            }
            State::Over(why) => return Err(upstream(format!("the job is over: {why}"), "an operation failed before")),
        };
        outcome.map_err(|cause| match cause {
            souk_native::NativeError::Argument { .. } => cause.into(),
            cause => self.end(name, cause),
        })
    }

    fn end(&self, name: &str, cause: souk_native::NativeError) -> Error {
        // closing the connections first makes the operations of the other ranks fail, which may wait for this one
        self.group.replace(State::Over(String::new()));
        let why = self.heartbeat.verdict();
        let why =
            why.unwrap_or_else(|| format!("{name} failed on rank {}, but no rank is known to be lost", self.rank));
        if self.keeps_store {
            sleep(self.heartbeat.grace_period());
        }
        self.group.replace(State::Over(why.clone()));
        upstream(why, cause)
    }
}

impl Collective for C10d {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.f_contiguous()?;
        self.run("all_gather", |group| group.all_gather(&x))
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<()> {
        in_place(x, |x| self.run("all_reduce", |group| group.all_reduce(x)))
    }

    fn reduce_scatter(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.f_contiguous()?;
        self.run("reduce_scatter", |group| group.reduce_scatter(&x))
    }

    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()> {
        in_place(x, |x| self.run("broadcast", |group| group.broadcast(x, root)))
    }

    fn barrier(&self) -> Result<()> {
        self.run("barrier", ProcessGroup::barrier)
    }

    fn check(&self) -> Result<()> {
        let over = |why| upstream(why, "no operation was under way");
        self.heartbeat.known_verdict().map_or(Ok(()), |why| Err(over(why)))
    }
}

/// Loads CUDA and returns the path of the library with the NCCL process group.
pub(super) fn nccl() -> Result<PathBuf> {
    let invalid = |problem: String| Error::config("collective.backend", problem);
    souk_native::load_cuda().map_err(|cause| {
        let hint = "set it to \"gloo\", or point LIBTORCH or LIBTORCH_USE_PYTORCH=1 to a libtorch with CUDA";
        invalid(format!("nccl: this libtorch has no CUDA; {hint}")).because(cause)
    })?;
    let program =
        std::env::current_exe().map_err(|e| invalid("nccl: cannot find this program's folder".into()).because(e))?;
    let library = program.with_file_name("libsouk_nccl.so");
    if library.exists() {
        Ok(library)
    } else {
        Err(invalid(format!("nccl: {} is missing: run `make nccl`", library.display())))
    }
}

/// Runs an in-place operation on a contiguous copy if the tensor is not contiguous itself, and writes the copy back.
fn in_place(x: &mut Tensor, call: impl FnOnce(&mut Tensor) -> Result<()>) -> Result<()> {
    if x.is_contiguous() {
        return call(x);
    }
    let mut contiguous = x.detach().f_contiguous()?;
    call(&mut contiguous)?;
    x.detach().f_copy_(&contiguous)?;
    Ok(())
}

fn open_store(rendezvous: &Rendezvous, serve: bool, deadline: Instant) -> Result<Store> {
    let Rendezvous { rank, address, port, .. } = rendezvous;
    let left = || deadline.saturating_duration_since(Instant::now()).max(MIN_TIMEOUT);
    if serve {
        return Store::open(address, *port, true, left()).map_err(|cause| {
            let problem = format!("rank 0 cannot listen at {address}:{port}: set it to a free port of this machine");
            Error::config("MASTER_PORT", problem).because(cause)
        });
    }
    let absent = |cause: Cause| {
        let problem = format!(
            "rank {rank} finds no rank 0 at {address}:{port} (MASTER_ADDR and MASTER_PORT): rank 0 did not start in time, \
             or the variables differ between ranks"
        );
        upstream(problem, cause)
    };
    // c10d's own wait for the server may take twice its timeout
    while let Err(cause) = probe(address, *port, left()) {
        if Instant::now() > deadline {
            return Err(absent(cause.into()));
        }
        sleep(POLL * 5);
    }
    Store::open(address, *port, false, left()).map_err(|cause| absent(cause.into()))
}

/// Checks that a server listens on the port.
fn probe(address: &str, port: u16, limit: Duration) -> std::io::Result<()> {
    let mut outcome = Err(std::io::Error::other("the host name has no address"));
    for address in (address, port).to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, limit).map(drop);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Registers this rank and waits for all others; returns their names.
fn wait_for_ranks(board: &StatusBoard, rendezvous: &Rendezvous, deadline: Instant) -> Result<Vec<String>> {
    let lost = |cause: Error| upstream(lost_store(rendezvous, "rank 0"), cause);
    let &Rendezvous { rank, size, .. } = rendezvous;
    let me = format!("rank {rank} ({}, pid {})", host(), std::process::id());
    let registered = board.set_if_absent(&format!("who/{rank}"), &me).map_err(lost)?;
    if registered != me {
        let problem = format!("{me} is a duplicate of {registered}: give each process its own rank");
        return Err(Error::config("RANK", problem));
    }
    let mut names = vec![None; size];
    loop {
        for (rank, name) in names.iter_mut().enumerate().filter(|(_, name)| name.is_none()) {
            *name = board.get(&format!("who/{rank}")).map_err(lost)?;
        }
        let missing: Vec<String> =
            names.iter().enumerate().filter(|(_, n)| n.is_none()).map(|(rank, _)| rank.to_string()).collect();
        if missing.is_empty() {
            return Ok(names.into_iter().flatten().collect());
        }
        let mut verdict = board.get("verdict").map_err(lost)?;
        if Instant::now() > deadline {
            let plural = if missing.len() == 1 { "rank" } else { "ranks" };
            let own = format!("{plural} {} of {size} did not start in time", missing.join(", "));
            verdict = Some(board.set_if_absent("verdict", &own).unwrap_or(own));
        }
        if let Some(verdict) = verdict {
            return Err(upstream(verdict, "collective.timeout_seconds sets how long a rank waits"));
        }
        sleep(POLL);
    }
}

fn lost_store(rendezvous: &Rendezvous, rank_0: &str) -> String {
    let Rendezvous { address, port, restart, .. } = rendezvous;
    match restart {
        None => format!("{rank_0} is gone: its store at {address}:{port} does not answer"),
        Some(_) => format!("torchrun's store at {address}:{port} does not answer"),
    }
}

fn network<'a>(rendezvous: &'a Rendezvous, interface: Option<&'a str>) -> Network<'a> {
    let address = &rendezvous.address;
    let is_loopback = address == "localhost" || address == "::1" || address.starts_with("127.");
    match interface {
        Some(name) => Network::Interface(name),
        None if is_loopback => Network::Address(address),
        None => Network::Default,
    }
}

fn unreachable_by(network: Network) -> String {
    let way = match network {
        Network::Default => "the address of this machine's host name".to_owned(),
        Network::Interface(name) => format!("the interface {name}"),
        Network::Address(name) => format!("the address {name}"),
    };
    format!("the ranks cannot reach each other over {way}: set collective.interface")
}

fn host() -> String {
    let file = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = file.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    if name.trim().is_empty() { "host unknown".to_owned() } else { name.trim().to_owned() }
}

/// Error of a job that has lost a rank; never retryable, since the job is over.
fn upstream(problem: String, cause: impl Into<Cause>) -> Error {
    Error::Upstream { service: "collective".into(), problem, retryable: false, source: None }.because(cause)
}
