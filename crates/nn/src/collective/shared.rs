//! A collective shared by several stages, one after the other: connecting again for each stage would need new key names in
//! a store that outlives the stages.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::Tensor;

use super::{Collective, CollectiveSettings, open};
use souk_io::error::Result;

#[derive(Clone)]
pub struct SharedCollective {
    rank: usize,
    size: usize,
    inner: Arc<Mutex<Box<dyn Collective>>>,
}

impl SharedCollective {
    pub fn open(settings: &CollectiveSettings) -> Result<Self> {
        let inner = open(settings)?;
        Ok(Self { rank: inner.rank(), size: inner.size(), inner: Arc::new(Mutex::new(inner)) })
    }

    /// Locks without contention: only one stage trains at a time.
    fn lock(&self) -> MutexGuard<'_, Box<dyn Collective>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collective for SharedCollective {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        self.lock().all_gather(x)
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<()> {
        self.lock().all_reduce(x)
    }

    fn reduce_scatter(&self, x: &Tensor) -> Result<Tensor> {
        self.lock().reduce_scatter(x)
    }

    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()> {
        self.lock().broadcast(x, root)
    }

    fn barrier(&self) -> Result<()> {
        self.lock().barrier()
    }

    fn check(&self) -> Result<()> {
        self.lock().check()
    }
}
