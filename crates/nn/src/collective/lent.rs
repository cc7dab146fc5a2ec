//! One connection between ranks that several stages use, one after the other: to connect anew each time would take new names in
//! a store that outlives them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::Tensor;

use super::{Collective, Settings, open};
use souk_io::error::Result;

#[derive(Clone)]
pub struct Lent {
    rank: usize,
    size: usize,
    held: Arc<Mutex<Box<dyn Collective>>>,
}

impl Lent {
    pub fn open(settings: &Settings) -> Result<Self> {
        let held = open(settings)?;
        Ok(Self { rank: held.rank(), size: held.size(), held: Arc::new(Mutex::new(held)) })
    }

    /// One stage trains at a time, so nobody waits here.
    fn held(&self) -> MutexGuard<'_, Box<dyn Collective>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collective for Lent {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        self.held().all_gather(x)
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<()> {
        self.held().all_reduce(x)
    }

    fn reduce_scatter(&self, x: &Tensor) -> Result<Tensor> {
        self.held().reduce_scatter(x)
    }

    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()> {
        self.held().broadcast(x, root)
    }

    fn barrier(&self) -> Result<()> {
        self.held().barrier()
    }

    fn check(&self) -> Result<()> {
        self.held().check()
    }
}
