//! Collective operations over the processes of a training job: each process is a rank of `size()`, and all ranks call the
//! same operations in the same order. [`open`] reads from the environment whether there are other ranks. Never records
//! gradients and never hangs: a failed operation is an error that names the rank at fault, and ends the job.

mod c10d;
mod heartbeat;
mod rendezvous;
mod rows;
mod shared;
mod solo;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::Tensor;

pub use self::c10d::C10d;
pub use self::rendezvous::Rendezvous;
pub use self::rows::{Rows, gather_bytes, gather_json, gather_rows, return_rows};
pub use self::shared::SharedCollective;
pub use self::solo::Solo;
use souk_io::error::{Error, Result};

/// Upper bound of the timeout: a month.
const MAX_SECONDS: u64 = 30 * 24 * 3600;

/// Collective operations. A call returns when this rank's part is done; tensors may be on any device.
pub trait Collective: Send {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// Tensors of all ranks, by rank: `[size, ...]`. Shape and kind must be the same on all ranks; [`gather_rows`] takes
    /// different numbers of rows.
    fn all_gather(&self, x: &Tensor) -> Result<Tensor>;
    /// Sums over ranks, in place.
    fn all_reduce(&self, x: &mut Tensor) -> Result<()>;
    /// Sums `x` `[size * n, ...]` over ranks and returns this rank's rows `[n, ...]`.
    fn reduce_scatter(&self, x: &Tensor) -> Result<Tensor>;
    /// Copies the root's tensor to all ranks, in place.
    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()>;
    /// Waits until all ranks have called it.
    fn barrier(&self) -> Result<()>;
    /// Returns an error if this rank knows that the job is over, between operations. Asks nobody.
    fn check(&self) -> Result<()>;
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CollectiveSettings {
    /// `gloo` or `nccl`. Gloo copies CUDA tensors through the host; NCCL needs one GPU per process.
    pub backend: Backend,
    /// Seconds that a rank waits for the others before it fails.
    pub timeout_seconds: u64,
    /// Network interface by which the others reach this machine, such as `eth0`. Default: GLOO_SOCKET_IFNAME, then the
    /// loopback interface if MASTER_ADDR is one, then the address that the host name resolves to.
    pub interface: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// TCP, on any device.
    Gloo,
    /// Between GPUs.
    Nccl,
}

impl Default for CollectiveSettings {
    fn default() -> Self {
        // An evaluation or a checkpoint on one rank, while the others wait, may take minutes.
        Self { backend: Backend::Gloo, timeout_seconds: 600, interface: None }
    }
}

impl CollectiveSettings {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }
}

/// Connects the ranks named by torchrun's environment variables; without the variables, this process is alone.
pub fn open(settings: &CollectiveSettings) -> Result<Box<dyn Collective>> {
    if !(1..=MAX_SECONDS).contains(&settings.timeout_seconds) {
        let problem = format!("is {}: set it to 1 to {MAX_SECONDS}", settings.timeout_seconds);
        return Err(Error::config("collective.timeout_seconds", problem));
    }
    if settings.backend == Backend::Nccl {
        c10d::nccl()?;
    }
    match Rendezvous::from_environment()? {
        Some(rendezvous) if rendezvous.size > 1 => Ok(Box::new(C10d::connect(&rendezvous, settings)?)),
        _ => Ok(Box::new(Solo)),
    }
}
