//! Many processes through torch's own engine: a TCPStore, kept by rank 0 or by torchrun, a Gloo process group, and
//! NCCL's for tensors on CUDA where it is asked for. Takes a
//! place among the ranks; gives tensors over them. An operation that fails ends the job: the error names the rank at fault,
//! and every later call gives the same error.

use std::cell::RefCell;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use souk_native::{Network, ProcessGroup, Store};
use tch::Tensor;

use super::pulse::{Board, Pulse};
use super::{Backend, Collective, Place, Settings};
use souk_io::error::{Cause, Error, Result};

const POLL: Duration = Duration::from_millis(20);
/// What an exchange with the store may take when time is nearly over.
const LEAST: Duration = Duration::from_secs(1);

/// The fields are dropped in this order: connections to others first, the store last.
pub struct C10d {
    rank: usize,
    size: usize,
    group: RefCell<State>,
    pulse: Pulse,
    _store: Store,
    keeps_store: bool,
}

enum State {
    Open(ProcessGroup),
    Over(String),
}

impl C10d {
    /// Waits until all ranks are there; an error names those that have not come in time.
    pub fn connect(place: &Place, settings: &Settings) -> Result<Self> {
        let timeout = settings.timeout();
        let deadline = Instant::now() + timeout;
        let keeps_store = place.rank == 0 && place.restart.is_none();
        let store = open_store(place, keeps_store, deadline)?;
        let mut board = Board {
            store: open_store(place, false, deadline)?,
            prefix: format!("souk/{}", place.restart.unwrap_or(0)),
            rank: place.rank,
            names: Vec::new(),
            keeper: String::new(),
        };
        let present = meet(&board, place, deadline);
        if present.is_err() && keeps_store {
            // the others learn from the store who is missing
            sleep(POLL * 25);
        }
        board.names = present?;
        board.keeper = lost_store(place, &board.names[0]);
        let keys = board.prefix.clone();
        let pulse = Pulse::start(board, timeout)?;
        let network_name = std::env::var("GLOO_SOCKET_IFNAME").ok().filter(|name| !name.is_empty());
        let network = network(place, settings.interface.as_deref().or(network_name.as_deref()));
        let connected =
            ProcessGroup::connect(&store, &format!("{keys}/gloo"), (place.rank, place.size), network, timeout);
        let mut group = connected.map_err(|cause| {
            let why = pulse.verdict().unwrap_or_else(|| unreachable_by(network));
            upstream(why, cause)
        })?;
        if settings.backend == Backend::Nccl {
            let joined = group.join_nccl(&store, &format!("{keys}/nccl"), (place.rank, &nccl()?), timeout);
            joined.map_err(|cause| Error::config("collective.backend", "nccl cannot be joined").because(cause))?;
        }
        let group = RefCell::new(State::Open(group));
        Ok(Self { rank: place.rank, size: place.size, group, pulse, _store: store, keeps_store })
    }

    fn run<T>(&self, name: &str, call: impl FnOnce(&ProcessGroup) -> souk_native::Result<T>) -> Result<T> {
        let outcome = match &*self.group.borrow() {
            State::Open(group) => {
                self.pulse.begin(name);
                call(group)
            }
            State::Over(why) => return Err(upstream(format!("the job is over: {why}"), "an operation failed before")),
        };
        outcome.map_err(|cause| match cause {
            souk_native::Error::Argument { .. } => cause.into(),
            cause => self.end(name, cause),
        })
    }

    fn end(&self, name: &str, cause: souk_native::Error) -> Error {
        // Closing the connections first tells the others, who may wait for this rank.
        self.group.replace(State::Over(String::new()));
        let why = self.pulse.verdict();
        let why =
            why.unwrap_or_else(|| format!("{name} failed on rank {}, and no rank is known to be lost", self.rank));
        if self.keeps_store {
            sleep(self.pulse.patience());
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
        self.pulse.heard().map_or(Ok(()), |why| Err(over(why)))
    }
}

/// The library that has NCCL's group, once CUDA is loaded.
pub(super) fn nccl() -> Result<PathBuf> {
    let refused = |problem: String| Error::config("collective.backend", problem);
    souk_native::load_cuda().map_err(|cause| {
        let hint = "set it to \"gloo\", or point LIBTORCH or LIBTORCH_USE_PYTORCH=1 to a libtorch that has CUDA";
        refused(format!("nccl: this libtorch has no CUDA; {hint}")).because(cause)
    })?;
    let program =
        std::env::current_exe().map_err(|e| refused("nccl: where this program lies is not known".into()).because(e))?;
    let library = program.with_file_name("libsouk_nccl.so");
    match library.exists() {
        true => Ok(library),
        false => Err(refused(format!("nccl: {} is missing: `make nccl` compiles it", library.display()))),
    }
}

/// On the tensor itself where its memory is in order, else on a copy that is written back.
fn in_place(x: &mut Tensor, call: impl FnOnce(&mut Tensor) -> Result<()>) -> Result<()> {
    if x.is_contiguous() {
        return call(x);
    }
    let mut ordered = x.detach().f_contiguous()?;
    call(&mut ordered)?;
    x.detach().f_copy_(&ordered)?;
    Ok(())
}

fn open_store(place: &Place, serve: bool, deadline: Instant) -> Result<Store> {
    let Place { rank, address, port, .. } = place;
    let left = || deadline.saturating_duration_since(Instant::now()).max(LEAST);
    if serve {
        return Store::open(address, *port, true, left()).map_err(|cause| {
            let problem = format!("rank 0 cannot listen at {address}:{port}: set it to a free port of this machine");
            Error::config("MASTER_PORT", problem).because(cause)
        });
    }
    let absent = |cause: Cause| {
        let problem = format!(
            "rank {rank} finds no rank 0 at {address}:{port}, where MASTER_ADDR and MASTER_PORT say that it is: it has not \
             come in time, or the variables differ between ranks"
        );
        upstream(problem, cause)
    };
    // c10d's own wait for the server may take twice as long as it is told
    while let Err(cause) = reach(address, *port, left()) {
        if Instant::now() > deadline {
            return Err(absent(cause.into()));
        }
        sleep(POLL * 5);
    }
    Store::open(address, *port, false, left()).map_err(|cause| absent(cause.into()))
}

/// Whether anyone listens there.
fn reach(address: &str, port: u16, limit: Duration) -> std::io::Result<()> {
    let mut outcome = Err(std::io::Error::other("the name has no address"));
    for address in (address, port).to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, limit).map(drop);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Says that this rank is here and waits for all others; gives their names.
fn meet(board: &Board, place: &Place, deadline: Instant) -> Result<Vec<String>> {
    let lost = |cause: Error| upstream(lost_store(place, "rank 0"), cause);
    let me = format!("rank {} ({}, pid {})", place.rank, host(), std::process::id());
    let holder = board.claim(&format!("who/{}", place.rank), &me).map_err(lost)?;
    if holder != me {
        let problem = format!("{me} is here twice, the other is {holder}: give each process its own number");
        return Err(Error::config("RANK", problem));
    }
    let mut names = vec![None; place.size];
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
            let own = format!("{plural} {} of {} did not come in time", missing.join(", "), place.size);
            verdict = Some(board.claim("verdict", &own).unwrap_or(own));
        }
        if let Some(verdict) = verdict {
            return Err(upstream(verdict, "see collective.timeout_seconds for how long a rank waits"));
        }
        sleep(POLL);
    }
}

fn lost_store(place: &Place, rank_0: &str) -> String {
    let Place { address, port, restart, .. } = place;
    match restart {
        None => format!("{rank_0} is gone: the store that it kept at {address}:{port} does not answer"),
        Some(_) => format!("the store that torchrun kept at {address}:{port} does not answer"),
    }
}

fn network<'a>(place: &'a Place, interface: Option<&'a str>) -> Network<'a> {
    let loopback = place.address == "localhost" || place.address == "::1" || place.address.starts_with("127.");
    match interface {
        Some(name) => Network::Interface(name),
        None if loopback => Network::Address(&place.address),
        None => Network::Default,
    }
}

fn unreachable_by(network: Network) -> String {
    let way = match network {
        Network::Default => "the address that this machine's name resolves to".to_owned(),
        Network::Interface(name) => format!("the interface {name}"),
        Network::Address(name) => format!("the address {name}"),
    };
    format!("the ranks do not reach each other by {way}: name the interface in collective.interface")
}

fn host() -> String {
    let file = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = file.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    if name.trim().is_empty() { "host unknown".to_owned() } else { name.trim().to_owned() }
}

/// A job that has lost a rank is over: nothing is to be tried again within it.
fn upstream(problem: String, cause: impl Into<Cause>) -> Error {
    Error::Upstream { service: "collective".into(), problem, retryable: false, source: None }.because(cause)
}
