//! Rules of learning: pure tensors in, loss out. An objective says what it needs, and the step brings it; no objective
//! knows about texts, devices, processes or optimizers. Some learn from pairs, some from groups of judged candidates.

mod advantage;
mod dpo;
mod grace;
mod icr;
mod info_nce;
mod matryoshka;
mod next_token;
mod pairwise;
mod r_grpo;
mod surrogate;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use tch::Tensor;

pub use self::advantage::{Advantages, Scaling};
pub use self::dpo::Dpo;
pub use self::grace::{Estimator, Grace, Hard, Sides, Written};
pub use self::icr::Icr;
pub use self::info_nce::InfoNce;
pub use self::next_token::NextToken;
pub use self::pairwise::Pairwise;
pub use self::r_grpo::{Kl, RGrpo, Support};
use crate::error::{Error, Result};

/// Which rule, and how it is set. The defaults of each are the vetted ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Objective {
    InfoNce(InfoNce),
    RGrpo(RGrpo),
    Pairwise(Pairwise),
    Dpo(Dpo),
    Icr(Icr),
    Grace(Grace),
    NextToken(NextToken),
}

impl Default for Objective {
    fn default() -> Self {
        Self::InfoNce(InfoNce::default())
    }
}

/// What an objective wants to see in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Items drawn from the whole catalogue, in a step of all processes.
    pub global_negatives: usize,
    /// The queries of all processes, not only this one's.
    pub all_queries: bool,
    /// The vectors of every step of an encoder that refines them.
    pub steps: bool,
    /// An encoder that writes of a text before it encodes it.
    pub rationales: bool,
    /// The encoder's scores of what comes next in a text.
    pub next_tokens: bool,
    /// Candidates of each query, with rewards.
    pub candidates: Candidates,
    /// The scores that the model of the beginning gives.
    pub reference: bool,
}

impl Needs {
    /// Scores of next tokens, as a number or as a share in a soft token.
    pub fn writes(&self) -> bool {
        self.steps || self.rationales || self.next_tokens
    }
}

/// Where an objective's judged candidates come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Candidates {
    /// It learns from pairs.
    #[default]
    None,
    /// So many as the policy of each step retrieves.
    Retrieved(usize),
    /// Of what the model of the beginning found, `judged` of each query; a step sees `shown` of them.
    Mined { judged: usize, shown: usize },
}

/// Letters: b pairs of this process, m queries and n items of all processes, d entries of a vector, g candidates.
pub struct Vectors<'a> {
    /// `[b, d]`, or `[m, d]` where all queries are needed.
    pub queries: &'a Tensor,
    /// `[n, d]`, each item once.
    pub items: &'a Tensor,
    /// So many vectors of each text, one after the other: `d` is the width of all of them.
    pub steps: i64,
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

/// The judged candidates of this process's queries.
pub struct Group<'a> {
    /// `[b, g]`: their rows of `items`.
    pub candidates: &'a Tensor,
    /// `[b, g]`; anything where it is not known.
    pub reward: &'a Tensor,
    /// `[b, g]`: whether there is a reward.
    pub known: &'a Tensor,
    /// `[b, g]`: the log-probabilities under which they were retrieved; none: those of now.
    pub old: Option<&'a Tensor>,
    /// `[b, n]`: the scores that the reference gives.
    pub reference: Option<&'a Tensor>,
}

/// The sum of a process's losses, and what it says about the policy.
pub struct Corrected {
    pub loss: Tensor,
    pub tally: Tally,
}

/// Sums over a process's queries or candidates; those of several processes add up, but for the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    pub groups: f64,
    /// Groups that teach nothing: fewer than two rewards, or no difference between them.
    pub flat: f64,
    pub kl: f64,
    pub entropy: f64,
    /// Candidates that have a reward, and those of them where the clip decided.
    pub known: f64,
    pub clipped: f64,
    pub log_ratio: f64,
    pub log_ratio_max: f64,
}

impl Objective {
    /// Refuses settings that cannot be meant, for a model whose vectors have so many entries.
    pub fn check(&self, dimensions: i64) -> Result<()> {
        match self {
            Self::InfoNce(rule) => rule.check(dimensions),
            Self::RGrpo(rule) => rule.check(),
            Self::Pairwise(rule) => rule.check(),
            Self::Dpo(rule) => rule.check(),
            Self::Icr(rule) => rule.check(),
            Self::Grace(rule) => rule.check(),
            Self::NextToken(rule) => rule.check(),
        }
    }

    pub fn needs(&self) -> Needs {
        match self {
            Self::InfoNce(rule) => rule.needs(),
            Self::RGrpo(rule) => Needs {
                global_negatives: rule.global_negatives,
                candidates: Candidates::Retrieved(rule.group),
                reference: rule.beta > 0.0,
                ..Needs::default()
            },
            Self::Pairwise(rule) => Needs { candidates: rule.mined.candidates(), ..Needs::default() },
            Self::Dpo(rule) => Needs { candidates: rule.mined.candidates(), reference: true, ..Needs::default() },
            Self::Icr(rule) => rule.needs(),
            Self::Grace(rule) => rule.needs(),
            Self::NextToken(rule) => rule.needs(),
        }
    }

    /// The prefixes of a vector that the loss is averaged over; none: the whole vector.
    pub fn prefixes(&self) -> &[i64] {
        match self {
            Self::InfoNce(rule) => &rule.dimensions,
            _ => &[],
        }
    }

    /// The weighted sum of this process's losses, of a rule that learns from pairs; divided by the weight of all pairs it
    /// is the mean.
    pub fn loss(&self, vectors: &Vectors, pairs: &Pairs) -> Result<Tensor> {
        match self {
            Self::InfoNce(rule) => Ok(rule.loss(vectors, pairs)),
            Self::Icr(rule) => Ok(rule.loss(vectors, pairs, vectors.steps)),
            _ => Err(Error::input("this objective does not learn from pairs")),
        }
    }

    /// The sum of this process's losses, of a rule that learns from groups; divided by the number of all queries it is the
    /// mean.
    pub fn correct(&self, vectors: &Vectors, group: &Group) -> Result<Corrected> {
        match self {
            Self::RGrpo(rule) => Ok(rule.loss(vectors.queries, vectors.items, group)),
            Self::Pairwise(rule) => Ok(rule.loss(vectors.queries, vectors.items, group)),
            Self::Dpo(rule) => rule.loss(vectors.queries, vectors.items, group),
            _ => Err(Error::input("this objective does not learn from judged groups")),
        }
    }
}

/// The cosines `[b, n]` of queries and items.
pub fn cosines(queries: &Tensor, items: &Tensor) -> Tensor {
    matryoshka::unit(queries).matmul(&matryoshka::unit(items).tr())
}

/// Refuses a setting that must be a number above 0.
fn positive(name: &str, value: f64) -> Result<()> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(Error::config(format!("objective.{name}"), format!("is {value}: say more than 0"))),
    }
}
