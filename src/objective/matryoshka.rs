//! Matryoshka representation learning: a loss averaged over normalised prefixes of the vectors, so that truncated vectors still
//! rank well (Kusupati et al. 2022; Retrieval-GRPO, section 4.1.2).

use tch::{Kind, Tensor};

use souk_io::error::{Error, Result};

/// Prefixes must be unique and not longer than the vector.
pub fn check(prefixes: &[i64], dimensions: i64) -> Result<()> {
    let mut sorted = prefixes.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != prefixes.len() || prefixes.iter().any(|n| !(1..=dimensions).contains(n)) {
        let problem = format!("is {prefixes:?}: use different numbers from 1 to {dimensions}, the entries of a vector");
        return Err(Error::config("objective.dimensions", problem));
    }
    Ok(())
}

/// Mean of `loss` over the prefixes, or over the whole vectors if there are none.
pub fn mean(prefixes: &[i64], whole: [&Tensor; 2], loss: impl Fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
    let of = |n: i64| {
        let [queries, items] = whole.map(|vectors| unit(&vectors.narrow(1, 0, n)));
        loss(&queries, &items)
    };
    match prefixes {
        [] => of(whole[0].size()[1]),
        [first, rest @ ..] => rest.iter().fold(of(*first), |sum, n| sum + of(*n)) / prefixes.len() as f64,
    }
}

/// Like PyTorch's `normalize`: a zero vector stays zero.
pub fn unit(vectors: &Tensor) -> Tensor {
    souk_nn::encoder::unit(&vectors.to_kind(Kind::Float))
}
