//! Batched text generation with a decoder: greedy, or by sampling with temperature, top-k and top-p. Each prompt is read
//! once for all its continuations, and finished texts leave the batch.
//!
//! Sampled tokens depend on the seed, the text's index and the step, never on the rest of the batch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::{Backbone, ForwardPass, KvCache, Tokens};
use souk_io::error::{Error, Result};
use souk_io::splitmix::mix;

/// Sampling settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Maximum number of tokens per continuation, the end token included; set by the caller.
    #[serde(skip)]
    pub max_tokens: usize,
    /// Sampling temperature; 0: greedy.
    pub temperature: f64,
    /// Samples among the `top_k` most likely tokens; 0: among all.
    pub top_k: i64,
    /// Nucleus sampling: samples among the most likely tokens whose probabilities add up to `top_p`.
    pub top_p: f64,
    /// Random seed.
    pub seed: u64,
    /// Index of the first text, if the texts are part of a larger list.
    #[serde(skip)]
    pub first: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { max_tokens: 64, temperature: 1.0, top_k: 0, top_p: 1.0, seed: 1, first: 0 }
    }
}

/// Tokens generated after one text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Continuation {
    /// Token ids, with the end token if it was generated.
    pub ids: Vec<u32>,
    /// Log-probability of each token over the whole vocabulary, at the sampling temperature (1 if greedy).
    pub log_probs: Vec<f32>,
    pub ended: bool,
}

impl Sampling {
    /// Greedy decoding.
    pub fn greedy(max_tokens: usize) -> Self {
        Self { max_tokens, temperature: 0.0, ..Self::default() }
    }

    pub fn check(&self, place: &str) -> Result<()> {
        let invalid = |name: &str, problem: String| Err(Error::config(format!("{place}.{name}"), problem));
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return invalid("temperature", format!("is {}: set it to 0 (greedy) or more", self.temperature));
        }
        if self.top_k < 0 {
            return invalid("top_k", format!("is {}: set it to 0 (all) or more", self.top_k));
        }
        if self.top_p > 0.0 && self.top_p <= 1.0 {
            Ok(())
        } else {
            invalid("top_p", format!("is {}: set it above 0 and to at most 1", self.top_p))
        }
    }

    /// Generates `each` continuations of every text, those of one text next to each other, up to one of the tokens `ends`.
    pub fn run(&self, backbone: &Backbone, texts: &[&[u32]], each: usize, ends: &[u32]) -> Result<Vec<Continuation>> {
        let _guard = tch::no_grad_guard();
        let mut written = vec![Continuation::default(); texts.len() * each];
        let Some(mut active) = ActiveTexts::read(backbone, texts, each)? else { return Ok(written) };
        for step in 0..self.max_tokens {
            let (ids, log_probs) = self.choose(&active, step)?;
            let mut unfinished = Vec::with_capacity(active.indices.len());
            for (row, index) in active.indices.iter().enumerate() {
                let id = ids[row] as u32;
                let text = &mut written[*index];
                text.ids.push(id);
                text.log_probs.push(log_probs[row]);
                text.ended = ends.contains(&id);
                if !text.ended {
                    unfinished.push(row as i64);
                }
            }
            if unfinished.is_empty() || step + 1 == self.max_tokens {
                break;
            }
            active.advance(backbone, &ids, &unfinished)?;
        }
        Ok(written)
    }

    /// Chooses a token for every active text; returns ids and log-probabilities.
    fn choose(&self, active: &ActiveTexts, step: usize) -> Result<(Vec<i64>, Vec<f32>)> {
        let temperature = if self.temperature > 0.0 { self.temperature } else { 1.0 };
        let log_probs = (active.logits.to_kind(Kind::Float) / temperature).log_softmax(-1, Kind::Float);
        let ids = if self.temperature > 0.0 { self.draw(&log_probs, active, step) } else { log_probs.argmax(-1, true) };
        let chosen = log_probs.gather(1, &ids, false);
        let flat = |x: &Tensor| x.view([-1]).to_device(Device::Cpu);
        Ok((Vec::try_from(flat(&ids))?, Vec::try_from(flat(&chosen))?))
    }

    /// Samples token ids `[b, 1]` by inverse transform sampling.
    fn draw(&self, log_probs: &Tensor, active: &ActiveTexts, step: usize) -> Tensor {
        let uniforms = active.indices.iter().map(|index| uniform(self.seed, self.first + *index as u64, step as u64));
        let uniforms = Tensor::from_slice(&uniforms.collect::<Vec<f32>>()).unsqueeze(1).to_device(log_probs.device());
        let vocab = log_probs.size()[1];
        let is_unrestricted = self.top_p >= 1.0 && (self.top_k == 0 || self.top_k >= vocab);
        if is_unrestricted {
            return inverse_cdf(&uniforms, &log_probs.exp());
        }
        let top_k = if self.top_k == 0 { vocab } else { self.top_k.min(vocab) };
        let (weights, ids) = log_probs.exp().topk(top_k, -1, true, true);
        // drops tokens whose predecessors already reach top_p; the first always stays
        let before = weights.cumsum(-1, Kind::Float) - &weights;
        let weights = weights.masked_fill(&before.ge(self.top_p), 0.0);
        ids.gather(1, &inverse_cdf(&uniforms, &weights), false)
    }
}

/// Indices `[b, 1]` where `uniforms [b, 1]` fall in the unnormalised `weights [b, n]`.
fn inverse_cdf(uniforms: &Tensor, weights: &Tensor) -> Tensor {
    let sums = weights.cumsum(-1, Kind::Float);
    let last = sums.narrow(1, sums.size()[1] - 1, 1);
    let index = (uniforms * &last).searchsorted(&sums, false, true, "right", None::<&Tensor>);
    // rounding may put the index behind the last positive weight
    let end = weights.gt(0.0).to_kind(Kind::Int64).cumsum(-1, Kind::Int64).argmax(-1, true);
    index.minimum(&end)
}

/// Uniform number in [0, 1) for a seed, text index and step (SplitMix64).
fn uniform(seed: u64, index: u64, step: u64) -> f32 {
    (mix(seed ^ mix(index ^ mix(step))) >> 40) as f32 / (1_u64 << 24) as f32
}

/// Unfinished texts of a batch.
struct ActiveTexts {
    /// Index of each text's continuation in the result.
    indices: Vec<usize>,
    cache: KvCache,
    /// Next-token logits, `[b, vocab]`.
    logits: Tensor,
}

impl ActiveTexts {
    /// Reads every text once; `None` if there is nothing to generate.
    fn read(backbone: &Backbone, texts: &[&[u32]], each: usize) -> Result<Option<Self>> {
        if texts.is_empty() || each == 0 {
            return Ok(None);
        }
        let device = backbone.device()?;
        let mut cache = KvCache::default();
        let tokens = Tokens::packed(texts, device)?;
        let ends = tokens.ends()?;
        let pass = ForwardPass { cache: Some(&mut cache), rows: Some(&ends), ..ForwardPass::default() };
        let mut logits = backbone.logits(&backbone.forward(&tokens, pass)?)?;
        if each > 1 {
            let rows = Tensor::arange(texts.len() as i64, (Kind::Int64, device)).repeat_interleave_self_int(
                each as i64,
                None,
                None,
            );
            (cache, logits) = (cache.select(&rows), logits.index_select(0, &rows));
        }
        Ok(Some(Self { indices: (0..texts.len() * each).collect(), cache, logits }))
    }

    /// Reads the chosen tokens of the unfinished rows and drops the others.
    fn advance(&mut self, backbone: &Backbone, ids: &[i64], unfinished: &[i64]) -> Result<()> {
        let device = self.logits.device();
        if unfinished.len() < self.indices.len() {
            self.indices = unfinished.iter().map(|row| self.indices[*row as usize]).collect();
            self.cache = self.cache.select(&Tensor::from_slice(unfinished).to_device(device));
        }
        let ids: Vec<i64> = unfinished.iter().map(|row| ids[*row as usize]).collect();
        let ids = Tensor::from_slice(&ids).unsqueeze(1).to_device(device);
        let mask = ids.ones_like();
        let pass = ForwardPass { cache: Some(&mut self.cache), ..ForwardPass::default() };
        let states = backbone.forward(&Tokens::masked(ids, mask), pass)?;
        self.logits = backbone.logits(&states.select(1, 0))?;
        Ok(())
    }
}
