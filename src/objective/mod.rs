//! Rules of learning: pure tensors in, loss out. An objective says what it needs, and the step brings it; no objective
//! knows about texts, devices, processes or optimizers.

mod info_nce;
mod matryoshka;

use serde::{Deserialize, Serialize};
use tch::Tensor;

pub use self::info_nce::InfoNce;
use crate::error::Result;

/// Which rule, and how it is set. The defaults of each are the vetted ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Objective {
    InfoNce(InfoNce),
}

impl Default for Objective {
    fn default() -> Self {
        Self::InfoNce(InfoNce::default())
    }
}

/// What an objective wants to see in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Items drawn from the whole catalogue, in a step of all processes.
    pub global_negatives: usize,
    /// The queries of all processes, not only this one's.
    pub all_queries: bool,
}

/// Letters: b pairs of this process, m queries and n items of all processes, d entries of a vector.
pub struct Vectors<'a> {
    /// `[b, d]`, or `[m, d]` where all queries are needed.
    pub queries: &'a Tensor,
    /// `[n, d]`, each item once.
    pub items: &'a Tensor,
}

/// What is known about the pairs of this process.
pub struct Pairs<'a> {
    /// `[b]`: the rows of `queries` that are this process's.
    pub query: &'a Tensor,
    /// `[b]`: the rows of `items` that their shoppers chose.
    pub item: &'a Tensor,
    /// `[b, n]`, true where the query is known to have found that item as well: no negative.
    pub known: &'a Tensor,
    /// `[m, b]`, true where another query is known to have found the pair's item; only where all queries are needed.
    pub known_queries: Option<&'a Tensor>,
    /// `[b]`: what each pair counts.
    pub weight: &'a Tensor,
}

impl Objective {
    /// Refuses settings that cannot be meant, for a model whose vectors have so many entries.
    pub fn check(&self, dimensions: i64) -> Result<()> {
        match self {
            Self::InfoNce(rule) => rule.check(dimensions),
        }
    }

    pub fn needs(&self) -> Needs {
        match self {
            Self::InfoNce(rule) => rule.needs(),
        }
    }

    /// The weighted sum of this process's losses; divided by the weight of all pairs it is the mean.
    pub fn loss(&self, vectors: &Vectors, pairs: &Pairs) -> Tensor {
        match self {
            Self::InfoNce(rule) => rule.loss(vectors, pairs),
        }
    }
}
