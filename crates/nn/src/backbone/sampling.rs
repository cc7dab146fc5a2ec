//! Goes on writing where texts end: a decoder's next tokens, drawn or greedily, many texts at a time. Each text is read once
//! however often it is continued, and one that has ended costs nothing more.
//!
//! What is drawn for a text depends on the seed, the text's place and the step, not on what else is in the batch.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::{Backbone, Cache, Pass, Tokens};
use souk_io::error::{Error, Result};

/// How a next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Tokens of one continuation, the closing one included: who asks for them says how many.
    #[serde(skip)]
    pub max_tokens: usize,
    /// 0: always the likeliest.
    pub temperature: f64,
    /// Only among so many of the likeliest; 0: among all.
    pub top_k: i64,
    /// Only among the likeliest that have this share together.
    pub top_p: f64,
    pub seed: u64,
    /// The place of the first text, where these are some of many.
    #[serde(skip)]
    pub first: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { max_tokens: 64, temperature: 1.0, top_k: 0, top_p: 1.0, seed: 1, first: 0 }
    }
}

/// What was written after one text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Continuation {
    /// The closing token at its end, if it came to that.
    pub ids: Vec<u32>,
    /// Of each token, among all words, at the temperature that it was drawn with; greedily at 1.
    pub log_probs: Vec<f32>,
    pub ended: bool,
}

impl Sampling {
    /// The likeliest continuation.
    pub fn greedy(max_tokens: usize) -> Self {
        Self { max_tokens, temperature: 0.0, ..Self::default() }
    }

    pub fn check(&self, place: &str) -> Result<()> {
        let wrong = |name: &str, problem: String| Err(Error::config(format!("{place}.{name}"), problem));
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return wrong("temperature", format!("is {}: say 0 (the likeliest) or more", self.temperature));
        }
        if self.top_k < 0 {
            return wrong("top_k", format!("is {}: say 0 (all) or more", self.top_k));
        }
        match self.top_p > 0.0 && self.top_p <= 1.0 {
            true => Ok(()),
            false => wrong("top_p", format!("is {}: say a share above 0, at most 1", self.top_p)),
        }
    }

    /// `each` continuations of every text, those of one text side by side, until one of the tokens `ends`.
    pub fn run(&self, backbone: &Backbone, texts: &[&[u32]], each: usize, ends: &[u32]) -> Result<Vec<Continuation>> {
        let _guard = tch::no_grad_guard();
        let mut written = vec![Continuation::default(); texts.len() * each];
        let Some(mut open) = Open::read(backbone, texts, each)? else { return Ok(written) };
        for step in 0..self.max_tokens {
            let (ids, log_probs) = self.choose(&open, step)?;
            let mut going = Vec::with_capacity(open.places.len());
            for (row, place) in open.places.iter().enumerate() {
                let id = ids[row] as u32;
                let text = &mut written[*place];
                text.ids.push(id);
                text.log_probs.push(log_probs[row]);
                text.ended = ends.contains(&id);
                if !text.ended {
                    going.push(row as i64);
                }
            }
            if going.is_empty() || step + 1 == self.max_tokens {
                break;
            }
            open.go_on(backbone, &ids, &going)?;
        }
        Ok(written)
    }

    /// A token for every open text, and its log-probability.
    fn choose(&self, open: &Open, step: usize) -> Result<(Vec<i64>, Vec<f32>)> {
        let temperature = if self.temperature > 0.0 { self.temperature } else { 1.0 };
        let log_probs = (open.logits.to_kind(Kind::Float) / temperature).log_softmax(-1, Kind::Float);
        let ids = match self.temperature > 0.0 {
            false => log_probs.argmax(-1, true),
            true => self.draw(&log_probs, open, step),
        };
        let chosen = log_probs.gather(1, &ids, false);
        let flat = |x: &Tensor| x.view([-1]).to_device(Device::Cpu);
        Ok((Vec::try_from(flat(&ids))?, Vec::try_from(flat(&chosen))?))
    }

    /// `[b, 1]`: where a number between 0 and 1 falls among the shares, one after the other.
    fn draw(&self, log_probs: &Tensor, open: &Open, step: usize) -> Tensor {
        let dice = open.places.iter().map(|place| unit(self.seed, self.first + *place as u64, step as u64));
        let dice = Tensor::from_slice(&dice.collect::<Vec<f32>>()).unsqueeze(1).to_device(log_probs.device());
        let vocab = log_probs.size()[1];
        let whole = self.top_p >= 1.0 && (self.top_k == 0 || self.top_k >= vocab);
        if whole {
            return place_of(&dice, &log_probs.exp());
        }
        let most = if self.top_k == 0 { vocab } else { self.top_k.min(vocab) };
        let (shares, ids) = log_probs.exp().topk(most, -1, true, true);
        // what comes before reaches the share already; the first always stays
        let before = shares.cumsum(-1, Kind::Float) - &shares;
        let shares = shares.masked_fill(&before.ge(self.top_p), 0.0);
        ids.gather(1, &place_of(&dice, &shares), false)
    }
}

/// `[b, 1]`: where `dice [b, 1]` falls in `shares [b, n]`, whatever their sum.
fn place_of(dice: &Tensor, shares: &Tensor) -> Tensor {
    let sums = shares.cumsum(-1, Kind::Float);
    let last = sums.narrow(1, sums.size()[1] - 1, 1);
    let place = (dice * &last).searchsorted(&sums, false, true, "right", None::<&Tensor>);
    // by rounding it may fall behind the last that has a share
    let end = shares.gt(0.0).to_kind(Kind::Int64).cumsum(-1, Kind::Int64).argmax(-1, true);
    place.minimum(&end)
}

/// From 0 up to, not including, 1: a fixed number for a place (SplitMix64).
fn unit(seed: u64, place: u64, step: u64) -> f32 {
    let mix = |mut bits: u64| {
        bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    };
    (mix(seed ^ mix(place ^ mix(step))) >> 40) as f32 / (1_u64 << 24) as f32
}

/// The texts that have not ended.
struct Open {
    /// Where each is in what is written.
    places: Vec<usize>,
    cache: Cache,
    /// Of each one's next token, `[b, vocab]`.
    logits: Tensor,
}

impl Open {
    /// Reads every text once; `None` where nothing is to be written.
    fn read(backbone: &Backbone, texts: &[&[u32]], each: usize) -> Result<Option<Self>> {
        if texts.is_empty() || each == 0 {
            return Ok(None);
        }
        let device = backbone.device()?;
        let mut cache = Cache::default();
        let tokens = Tokens::packed(texts, device)?;
        let states = backbone.forward(&tokens, Pass { cache: Some(&mut cache), ..Pass::default() })?;
        let mut logits = backbone.logits(&states.index_select(0, &tokens.ends()?))?;
        if each > 1 {
            let rows = Tensor::arange(texts.len() as i64, (Kind::Int64, device)).repeat_interleave_self_int(
                each as i64,
                None,
                None,
            );
            (cache, logits) = (cache.of(&rows), logits.index_select(0, &rows));
        }
        Ok(Some(Self { places: (0..texts.len() * each).collect(), cache, logits }))
    }

    /// Reads what was chosen, of the texts that go on.
    fn go_on(&mut self, backbone: &Backbone, ids: &[i64], going: &[i64]) -> Result<()> {
        let device = self.logits.device();
        if going.len() < self.places.len() {
            self.places = going.iter().map(|row| self.places[*row as usize]).collect();
            self.cache = self.cache.of(&Tensor::from_slice(going).to_device(device));
        }
        let ids: Vec<i64> = going.iter().map(|row| ids[*row as usize]).collect();
        let ids = Tensor::from_slice(&ids).unsqueeze(1).to_device(device);
        let mask = ids.ones_like();
        let pass = Pass { cache: Some(&mut self.cache), ..Pass::default() };
        let states = backbone.forward(&Tokens::masked(ids, mask), pass)?;
        self.logits = backbone.logits(&states.select(1, 0))?;
        Ok(())
    }
}
