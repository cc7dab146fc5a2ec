//! GIRCSE (eq. 2 to 6): the model appends soft tokens to the text, and the vector is the mean of their hidden states.
//!
//! ```text
//! s_k = softmax(W h_last + b)    e_k = s_kᵀ E    z_k = mean of the states of the first k soft tokens
//! ```
//!
//! Takes texts as tokens, returns `z_1..z_K`. Every step is differentiable. Never samples: the same text gives the same
//! vectors.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::backbone::{Backbone, ForwardPass, KvCache, Layout, Padding, Tokens};
use souk_io::error::{Error, Result};

/// Settings of the soft tokens. Shape letters: b texts, l tokens of the longest, k soft tokens, d width, v vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Refine {
    /// K: number of soft tokens; may be higher than in training. Default: the folder's, or 5.
    pub steps: Option<usize>,
    /// Uses a KV cache, so that a soft token costs one token (default: true). Without it, the text is read again for each soft
    /// token, with the same vectors.
    #[serde(skip_serializing)]
    pub cached: Option<bool>,
}

/// Upper bound of the soft tokens.
const MAX_STEPS: usize = 256;

const DEFAULT_STEPS: usize = 5;

impl Refine {
    /// Fills unset fields from other settings.
    pub(super) fn or(self, other: Option<Self>) -> Self {
        let other = other.unwrap_or_default();
        Self { steps: self.steps.or(other.steps), cached: self.cached.or(other.cached) }
    }

    pub fn num_steps(self) -> usize {
        self.steps.unwrap_or(DEFAULT_STEPS)
    }

    pub(super) fn check(self, backbone: &Backbone) -> Result<()> {
        match self.num_steps() {
            1..=MAX_STEPS => backbone.check_generates(),
            steps => Err(Error::config(
                "encoder.refine.steps",
                format!("is {steps}: set it to 1 to {MAX_STEPS} soft tokens"),
            )),
        }
    }

    /// Computes `z_1..z_K` as `[b, k, d]`, in f32.
    pub(super) fn vectors(self, backbone: &Backbone, texts: &[&[u32]], train: bool) -> Result<Tensor> {
        let states = if self.cached.unwrap_or(true) {
            self.cached(backbone, texts, train)
        } else {
            self.uncached(backbone, texts, train)
        }?;
        let states = states.to_kind(Kind::Float);
        let counts = Tensor::arange_start(1, self.num_steps() as i64 + 1, (Kind::Float, states.device()));
        Ok(states.cumsum(1, Kind::Float) / counts.view([1, -1, 1]))
    }

    /// Hidden states of the soft tokens, `[b, k, d]`, with a KV cache.
    fn cached(self, backbone: &Backbone, texts: &[&[u32]], train: bool) -> Result<Tensor> {
        let tokens = Tokens::packed(texts, backbone.device()?)?;
        let mut cache = KvCache::default();
        let ends = tokens.ends()?;
        let pass = ForwardPass { train, cache: Some(&mut cache), rows: Some(&ends), ..ForwardPass::default() };
        let mut last = backbone.forward(&tokens, pass)?;
        let mut states = Vec::with_capacity(self.num_steps());
        for _ in 0..self.num_steps() {
            let soft = soft_embedding(backbone, &last)?;
            let pass =
                ForwardPass { train, cache: Some(&mut cache), input_embeddings: Some(&soft), ..ForwardPass::default() };
            last = backbone.forward(&soft_tokens(&soft), pass)?.select(1, 0);
            states.push(last.shallow_clone());
        }
        Ok(Tensor::stack(&states, 1))
    }

    /// As `cached`, but reads the whole text again at every step.
    fn uncached(self, backbone: &Backbone, texts: &[&[u32]], train: bool) -> Result<Tensor> {
        let tokens = Tokens::padded(texts, 0, Padding::Left, backbone.device()?)?;
        let Layout::Padded { mask } = &tokens.layout else {
            return Err(Error::input("soft tokens without a KV cache need padded texts"));
        };
        let mut embeddings = backbone.embed(&tokens.ids)?;
        let mut mask = mask.shallow_clone();
        let mut states = backbone.forward(&tokens, ForwardPass { train, ..ForwardPass::default() })?;
        for _ in 0..self.num_steps() {
            let soft = soft_embedding(backbone, &states.select(1, -1))?;
            let next = soft_tokens(&soft);
            embeddings = Tensor::cat(&[embeddings, soft], 1);
            mask = Tensor::cat(&[mask, next.ids.ones_like().to_kind(Kind::Bool)], 1);
            let ids = mask.zeros_like().to_kind(Kind::Int64);
            let pass = ForwardPass { train, input_embeddings: Some(&embeddings), ..ForwardPass::default() };
            states = backbone.forward(&Tokens::masked(ids, mask.shallow_clone()), pass)?;
        }
        let steps = self.num_steps() as i64;
        Ok(states.narrow(1, states.size()[1] - steps, steps))
    }
}

/// Computes `e_k` `[b, 1, d]` from the hidden state `[b, d]` of the token before.
fn soft_embedding(backbone: &Backbone, last: &Tensor) -> Result<Tensor> {
    let probabilities = backbone.logits(last)?.softmax(-1, Kind::Float).to_kind(last.kind());
    // under autocast a matrix product is bf16, but embeddings are not
    Ok(backbone.embed_soft(&probabilities)?.to_kind(last.kind()).unsqueeze(1))
}

/// One token per text with a placeholder id: the input embeddings replace it.
fn soft_tokens(embedding: &Tensor) -> Tokens {
    let ids = Tensor::zeros([embedding.size()[0], 1], (Kind::Int64, embedding.device()));
    let mask = ids.ones_like();
    Tokens::masked(ids, mask)
}
