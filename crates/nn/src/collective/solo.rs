//! Collective of one process: every operation is the identity and copies nothing.

use tch::Tensor;

use super::Collective;
use souk_io::error::{Error, Result};

pub struct Solo;

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.detach().f_unsqueeze(0)?)
    }

    fn all_reduce(&self, _: &mut Tensor) -> Result<()> {
        Ok(())
    }

    fn reduce_scatter(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.detach())
    }

    fn broadcast(&self, _: &mut Tensor, root: usize) -> Result<()> {
        match root {
            0 => Ok(()),
            _ => Err(Error::input(format!("cannot broadcast from rank {root}: there is only rank 0"))),
        }
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}
