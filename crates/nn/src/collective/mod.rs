//! Several processes that train as one: each is a rank of `size()`, all call the same operations in the same order. Gives
//! tensors exchanged over ranks; [`open`] finds out from the environment whether there are others. Never records gradients
//! and never hangs: what cannot be done is an error that names the rank at fault, and ends the job.

mod c10d;
mod lent;
mod place;
mod pulse;
mod rows;
mod solo;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tch::Tensor;

pub use self::c10d::C10d;
pub use self::lent::Lent;
pub use self::place::Place;
pub use self::rows::{Rows, gather_bytes, gather_json, gather_rows, return_rows};
pub use self::solo::Solo;
use souk_io::error::{Error, Result};

/// A month; longer is no time to wait.
const MAX_SECONDS: u64 = 30 * 24 * 3600;

/// What ranks can do together. A call returns when this rank's part is done; tensors may lie on any device.
pub trait Collective: Send {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// Every rank's tensor, by rank: `[size, ...]`. Shape and kind are the same on all ranks; [`gather_rows`] is for rows
    /// that differ.
    fn all_gather(&self, x: &Tensor) -> Result<Tensor>;
    /// The sum over ranks, in place.
    fn all_reduce(&self, x: &mut Tensor) -> Result<()>;
    /// Of `x` `[size * n, ...]`, summed over ranks, the rows `[n, ...]` of this rank.
    fn reduce_scatter(&self, x: &Tensor) -> Result<Tensor>;
    /// The root's tensor, on all ranks in place.
    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()>;
    /// Returns when all ranks have come here.
    fn barrier(&self) -> Result<()>;
    /// An error where this rank knows that the job is over, though it takes part in nothing just now. Asks nobody.
    fn check(&self) -> Result<()>;
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `gloo`; tensors on CUDA then go through the host. With `nccl` they do not; each process needs a GPU of its own.
    pub backend: Backend,
    /// How long a rank waits for the others before it ends with an error.
    pub timeout_seconds: u64,
    /// The network interface that the others reach this machine by, such as `eth0`; else GLOO_SOCKET_IFNAME, else the one
    /// that leads to MASTER_ADDR on one machine, else what the machine's name resolves to.
    pub interface: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    Gloo,
    Nccl,
}

impl Default for Settings {
    fn default() -> Self {
        // An evaluation or a checkpoint on one rank, while the others wait, may take minutes.
        Self { backend: Backend::Gloo, timeout_seconds: 600, interface: None }
    }
}

impl Settings {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }
}

/// The ranks that torchrun's variables speak of, all of them connected; without the variables this process alone.
pub fn open(settings: &Settings) -> Result<Box<dyn Collective>> {
    if !(1..=MAX_SECONDS).contains(&settings.timeout_seconds) {
        let problem = format!("is {}: say 1 to {MAX_SECONDS}", settings.timeout_seconds);
        return Err(Error::config("collective.timeout_seconds", problem));
    }
    if settings.backend == Backend::Nccl {
        c10d::nccl()?;
    }
    match Place::from_environment()? {
        Some(place) if place.size > 1 => Ok(Box::new(C10d::connect(&place, settings)?)),
        _ => Ok(Box::new(Solo)),
    }
}
