//! GIRCSE (eq. 2 to 6): after the text the model goes on by soft tokens, and these are what it is known by.
//!
//! ```text
//! s_k = softmax(W h_last + b)    e_k = s_kᵀ E    z_k = mean of the states of the first k soft tokens
//! ```
//!
//! Takes texts as tokens, gives `z_1..z_K`. Every step is differentiable. Never samples: the same text gives the same
//! vectors.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::backbone::{Backbone, Cache, Layout, Padding, Pass, Tokens};
use souk_io::error::{Error, Result};

/// Letters: b texts, l tokens of the longest, k soft tokens, d width, v words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Refine {
    /// K: soft tokens after the text; more of them than in training is allowed, and meant. By default what the folder says, or 5.
    pub steps: Option<usize>,
    /// Keeps what was read, so that a soft token costs one token: the default. Without, the text is read again for each, and the
    /// vectors are the same.
    #[serde(skip_serializing)]
    pub cached: Option<bool>,
}

/// More soft tokens than anybody will want: a larger number is a mistake.
const MAX_STEPS: usize = 256;

const USUAL_STEPS: usize = 5;

impl Refine {
    /// What is said, and what was said before where nothing is.
    pub(super) fn over(self, before: Option<Self>) -> Self {
        let before = before.unwrap_or_default();
        Self { steps: self.steps.or(before.steps), cached: self.cached.or(before.cached) }
    }

    pub fn num_steps(self) -> usize {
        self.steps.unwrap_or(USUAL_STEPS)
    }

    pub(super) fn check(self, backbone: &Backbone) -> Result<()> {
        match self.num_steps() {
            1..=MAX_STEPS => backbone.check_writes(),
            steps => {
                Err(Error::config("encoder.refine.steps", format!("is {steps}: say 1 to {MAX_STEPS} soft tokens")))
            }
        }
    }

    /// `z_1..z_K` as `[b, k, d]`, in f32.
    pub(super) fn vectors(self, backbone: &Backbone, texts: &[&[u32]], train: bool) -> Result<Tensor> {
        let states = if self.cached.unwrap_or(true) {
            self.cached(backbone, texts, train)
        } else {
            self.read_again(backbone, texts, train)
        }?;
        let states = states.to_kind(Kind::Float);
        let counts = Tensor::arange_start(1, self.num_steps() as i64 + 1, (Kind::Float, states.device()));
        Ok(states.cumsum(1, Kind::Float) / counts.view([1, -1, 1]))
    }

    /// The states of the soft tokens, `[b, k, d]`.
    fn cached(self, backbone: &Backbone, texts: &[&[u32]], train: bool) -> Result<Tensor> {
        let tokens = Tokens::packed(texts, backbone.device()?)?;
        let mut cache = Cache::default();
        let read = backbone.forward(&tokens, Pass { train, cache: Some(&mut cache), ..Pass::default() })?;
        let mut last = read.index_select(0, &tokens.ends()?);
        let mut states = Vec::with_capacity(self.num_steps());
        for _ in 0..self.num_steps() {
            let word = soft_word(backbone, &last)?;
            let pass = Pass { train, cache: Some(&mut cache), words: Some(&word), ..Pass::default() };
            last = backbone.forward(&soft_tokens(&word), pass)?.select(1, 0);
            states.push(last.shallow_clone());
        }
        Ok(Tensor::stack(&states, 1))
    }

    /// As `cached`, from the text alone at every step.
    fn read_again(self, backbone: &Backbone, texts: &[&[u32]], train: bool) -> Result<Tensor> {
        let tokens = Tokens::padded(texts, 0, Padding::Left, backbone.device()?)?;
        let Layout::Padded { mask } = &tokens.layout else {
            return Err(Error::input("soft tokens that are read again follow padded texts"));
        };
        let mut words = backbone.words(&tokens.ids)?;
        let mut mask = mask.shallow_clone();
        let mut states = backbone.forward(&tokens, Pass { train, ..Pass::default() })?;
        for _ in 0..self.num_steps() {
            let word = soft_word(backbone, &states.select(1, -1))?;
            let more = soft_tokens(&word);
            words = Tensor::cat(&[words, word], 1);
            mask = Tensor::cat(&[mask, more.ids.ones_like().to_kind(Kind::Bool)], 1);
            let ids = mask.zeros_like().to_kind(Kind::Int64);
            let pass = Pass { train, words: Some(&words), ..Pass::default() };
            states = backbone.forward(&Tokens::masked(ids, mask.shallow_clone()), pass)?;
        }
        let steps = self.num_steps() as i64;
        Ok(states.narrow(1, states.size()[1] - steps, steps))
    }
}

/// `e_k` `[b, 1, d]` for the state `[b, d]` of the token before.
fn soft_word(backbone: &Backbone, last: &Tensor) -> Result<Tensor> {
    let shares = backbone.logits(last)?.softmax(-1, Kind::Float).to_kind(last.kind());
    // under autocast a product is bf16, and words are not
    Ok(backbone.mixtures(&shares)?.to_kind(last.kind()).unsqueeze(1))
}

/// One token for each text, whose ids say nothing.
fn soft_tokens(word: &Tensor) -> Tokens {
    let ids = Tensor::zeros([word.size()[0], 1], (Kind::Int64, word.device()));
    let mask = ids.ones_like();
    Tokens::masked(ids, mask)
}
