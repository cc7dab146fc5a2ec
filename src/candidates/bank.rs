//! The vectors of a whole catalogue, to find a query's nearest items in. Takes vectors in the order of the catalogue,
//! gives rows. Exact: one product and its highest entries, block by block.

use tch::{Kind, Tensor};

use super::top;
use crate::error::{Error, Result};

/// Scores that are looked at together.
const BLOCK: i64 = 1 << 24;

pub struct Bank {
    /// `[n, d]`, of unit length.
    vectors: Tensor,
}

impl Bank {
    /// Of `[n, d]`, one row for each item of the catalogue.
    pub fn build(vectors: Tensor) -> Result<Self> {
        match vectors.size()[..] {
            [rows, _] if rows > 0 => Ok(Self { vectors }),
            ref size => Err(Error::input(format!("a bank is of items' vectors, not of shape {size:?}"))),
        }
    }

    /// The rows `[b, k]` nearest to each of `queries` `[b, d]`, nearest first.
    pub fn nearest(&self, queries: &Tensor, k: usize) -> Tensor {
        let _guard = tch::no_grad_guard();
        let block = (BLOCK / self.vectors.size()[0]).max(1);
        let found: Vec<Tensor> =
            queries.split(block, 0).iter().map(|some| top(&some.matmul(&self.vectors.tr()), k)).collect();
        match found.is_empty() {
            true => Tensor::zeros([0, k as i64], (Kind::Int64, queries.device())),
            false => Tensor::cat(&found, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn the_nearest_rows_are_those_of_the_whole_product() {
        tch::manual_seed(3);
        let vectors = Tensor::randn([50, 8], (Kind::Float, Device::Cpu));
        let queries = Tensor::randn([7, 8], (Kind::Float, Device::Cpu));
        let bank = Bank::build(vectors.shallow_clone()).unwrap();
        assert_eq!(bank.nearest(&queries, 5), top(&queries.matmul(&vectors.tr()), 5));
        assert_eq!(bank.nearest(&queries.narrow(0, 0, 0), 5).size(), [0, 5]);
        assert!(Bank::build(Tensor::zeros([0, 8], (Kind::Float, Device::Cpu))).is_err());
    }
}
