//! Objectives: pure tensors in, loss out. Each file has an objective's settings, its formula with the paper's equation number, and the
//! tensor code for it. No objective knows about texts, devices, processes or optimizers; `train::algorithms` makes steps of them.

mod advantage;
mod distil;
mod dpo;
mod grace;
mod icr;
mod info_nce;
mod matryoshka;
mod next_token;
mod pairwise;
mod policy;
mod r_grpo;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::Tensor;

pub use self::advantage::{Advantages, Scaling, group_advantages};
pub use self::distil::{DistilSettings, DistilTargets};
pub use self::dpo::DpoSettings;
pub use self::grace::{ContrastiveRewards, Estimator, GraceSettings, Hard, RationaleVectors, Sides, WrittenTokens};
pub use self::icr::{IcrSettings, Penalty};
pub use self::info_nce::{InfoNceSettings, JudgedLevels};
pub use self::next_token::NextTokenSettings;
pub use self::pairwise::{Losses, MinedSettings, PairwiseSettings};
pub use self::policy::{clipped_surrogate, entropy, exact_kl, k3_kl, log_softmax};
pub use self::r_grpo::{CandidateWeights, RGrpoSettings, Support};
use souk_io::error::{Error, Result};

/// Stages of earlier versions, which lack a setting, can be resumed if it is 0.
pub(crate) fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

/// The same for one that is 1.
pub(crate) fn is_one(number: &usize) -> bool {
    *number == 1
}

/// Which objective, with its settings. The defaults of each are the vetted ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Objective {
    /// Supervised: InfoNCE with in-batch and global negatives.
    InfoNce(InfoNceSettings),
    /// Retrieval-GRPO.
    RGrpo(RGrpoSettings),
    /// A ranking loss on mined hard negatives.
    Pairwise(PairwiseSettings),
    /// DPO on mined hard negatives.
    Dpo(DpoSettings),
    /// Distillation of the ranking in a run.
    Distil(DistilSettings),
    /// GIRCSE: iterative contrastive refinement over soft tokens.
    Icr(IcrSettings),
    /// GRACE: rationales trained by contrastive rewards.
    Grace(GraceSettings),
    /// Language modelling of catalogue text.
    NextToken(NextTokenSettings),
}

impl Default for Objective {
    fn default() -> Self {
        Self::InfoNce(InfoNceSettings::default())
    }
}

/// Common interface of all objectives' settings.
pub trait ObjectiveSettings {
    /// Rejects settings that make no sense, for a model with vectors of so many dimensions.
    fn check(&self, dimensions: i64) -> Result<()>;

    /// Inputs that its steps need.
    fn needs(&self) -> Needs;
}

/// Inputs that an objective needs in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Items drawn from the whole catalogue for each batch.
    pub global_negatives: usize,
    /// The queries of all processes, not only this one's.
    pub all_queries: bool,
    /// The vectors after every soft token (GIRCSE).
    pub steps: bool,
    /// An encoder that writes a rationale before it encodes (GRACE).
    pub rationales: bool,
    /// The encoder's next-token probabilities.
    pub next_tokens: bool,
    /// Candidates of each query, with rewards.
    pub candidates: Candidates,
    /// Hits of each query in a run.
    pub hits: usize,
    /// The scores of the reference policy.
    pub reference: bool,
}

impl Needs {
    /// Whether the language-model head is used, for text or for soft tokens.
    pub fn writes(&self) -> bool {
        self.steps || self.rationales || self.next_tokens
    }
}

/// Source of an objective's judged candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Candidates {
    /// None: it trains on pairs.
    #[default]
    None,
    /// The policy retrieves so many for each query in each step.
    Retrieved(usize),
    /// The initial model retrieves them before the first step.
    Mined {
        /// Candidates judged for each query.
        judged: usize,
        /// Number of these that a step sees.
        shown: usize,
    },
}

/// Letters: b pairs of this process, m queries and n items of all processes, d dimensions, g candidates.
pub struct Vectors<'a> {
    /// `[b, d]`, or `[m, d]` if all queries are needed.
    pub queries: &'a Tensor,
    /// `[n, d]`, without duplicates.
    pub items: &'a Tensor,
    /// Number of vectors of each text, concatenated: `d` is the width of all of them.
    pub steps: i64,
}

/// Properties of this process's pairs.
pub struct PairTargets<'a> {
    /// `[b]`: their rows of `queries`.
    pub query: &'a Tensor,
    /// `[b]`: the rows of `items` that their shoppers chose.
    pub item: &'a Tensor,
    /// `[b, n]`: true where the query is known to have found the item, which then is no negative.
    pub known: &'a Tensor,
    /// `[m, b]`: true where another query is known to have found the pair's item. Only if all queries are needed.
    pub known_queries: Option<&'a Tensor>,
    /// `[b]`: weights.
    pub weight: &'a Tensor,
    /// The judged items of their queries.
    pub judged: Option<&'a JudgedTargets<'a>>,
    /// The same queries and items, by the encoder that decides which items are left out; none: the model itself.
    pub guide: Option<&'a Vectors<'a>>,
}

/// The judged items of this process's queries, j of each; queries that have fewer have columns without a meaning.
pub struct JudgedTargets<'a> {
    /// `[b, j]`: rows of `items`.
    pub places: &'a Tensor,
    /// `[b, j]`: gains of their levels, 0 where there is no item.
    pub gains: &'a Tensor,
    /// `[b, j]`: whether there is an item.
    pub known: &'a Tensor,
}

/// The judged candidates of this process's queries. The columns of the p prefixes of a vector stand one after another.
pub struct Group<'a> {
    /// `[b, g]`: rows of `items`.
    pub candidates: &'a Tensor,
    /// `[b, g]`; any number where it is not known.
    pub reward: &'a Tensor,
    /// `[b, g]`: whether there is a reward.
    pub known: &'a Tensor,
    /// The components of the reward that have a weight.
    pub components: &'a [Component],
    /// `[b, p·g]`: log-probabilities under the policy that retrieved them; none: those of the present policy.
    pub old: Option<&'a Tensor>,
    /// `[b, p·n]`: scores of the reference policy.
    pub reference: Option<&'a Tensor>,
}

/// A component of the rewards.
pub struct Component {
    /// Its weight in the fused reward.
    pub weight: f64,
    /// `[b, g]`
    pub value: Tensor,
}

/// The sum of the losses of this process's queries, and statistics of the policy.
pub struct GroupLoss {
    /// The sum.
    pub loss: Tensor,
    /// Statistics, not differentiated.
    pub tally: Tally,
}

/// Sums over a process's queries or candidates; those of several processes add up, except the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Number of groups.
    pub groups: f64,
    /// Groups without gradient: fewer than two known rewards, or no spread.
    pub flat: f64,
    /// KL divergence from the reference, summed over groups.
    pub kl: f64,
    /// Entropy of the policy, summed over groups.
    pub entropy: f64,
    /// Candidates with a reward, and those of them that were clipped.
    pub known: f64,
    /// Clipped candidates.
    pub clipped: f64,
    /// Sum of log ratios to the old policy.
    pub log_ratio: f64,
    /// Largest absolute log ratio.
    pub log_ratio_max: f64,
}

impl Objective {
    fn settings(&self) -> &dyn ObjectiveSettings {
        match self {
            Self::InfoNce(settings) => settings,
            Self::RGrpo(settings) => settings,
            Self::Pairwise(settings) => settings,
            Self::Dpo(settings) => settings,
            Self::Distil(settings) => settings,
            Self::Icr(settings) => settings,
            Self::Grace(settings) => settings,
            Self::NextToken(settings) => settings,
        }
    }

    /// Rejects settings that make no sense, for a model with vectors of so many dimensions.
    pub fn check(&self, dimensions: i64) -> Result<()> {
        self.settings().check(dimensions)
    }

    /// Inputs that its steps need.
    pub fn needs(&self) -> Needs {
        self.settings().needs()
    }

    /// Name of the encoder that decides which items are no negatives, if it is not the one that learns.
    pub fn guide(&self) -> Option<&str> {
        match self {
            Self::InfoNce(settings) => settings.guide.as_deref(),
            _ => None,
        }
    }

    /// The prefixes of a vector that the loss is averaged over; none: the whole vector.
    pub fn prefixes(&self) -> &[i64] {
        match self {
            Self::InfoNce(settings) => &settings.dimensions,
            Self::RGrpo(settings) => &settings.dimensions,
            Self::Distil(settings) => &settings.dimensions,
            _ => &[],
        }
    }
}

/// Cosine similarities of queries and items, `[b, n]` for each prefix.
pub fn prefix_cosines(prefixes: &[i64], queries: &Tensor, items: &Tensor) -> Vec<Tensor> {
    let whole = [queries.size()[1]];
    let widths = if prefixes.is_empty() { &whole } else { prefixes };
    widths.iter().map(|n| cosines(&queries.narrow(1, 0, *n), &items.narrow(1, 0, *n))).collect()
}

/// Cosine similarities `[b, n]` of queries and items.
pub fn cosines(queries: &Tensor, items: &Tensor) -> Tensor {
    matryoshka::unit(queries).matmul(&matryoshka::unit(items).tr())
}

/// An error unless a setting is a number above 0.
fn positive(name: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::config(format!("objective.{name}"), format!("is {value}: set it to more than 0")))
}
