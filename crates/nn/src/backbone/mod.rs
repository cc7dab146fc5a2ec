//! Tokens to hidden states. A folder of the hub (`config.json`, weights) becomes a `Backbone`: BERT, or a decoder of
//! one of the families in `decoder`. Takes ids, never text; gives states, never vectors (that is `encoder`).

mod architecture;
mod attention;
mod bert;
pub mod chat;
mod decoder;
pub mod fields;
pub mod hub;
mod kv;
mod linear;
pub mod lora;
mod rope;
mod sampling;
mod sizes;
pub mod tokenizer;
mod tokens;
pub mod weights;

use tch::{Device, Tensor};

pub use self::architecture::Architecture;
use self::architecture::Shape;
use self::bert::Bert;
use self::decoder::Decoder;
pub use self::kv::Cache;
use self::linear::Projection;
pub use self::linear::{Linear, Precision};
pub use self::sampling::{Continuation, Sampling};
pub use self::sizes::{Map, Sizes};
pub use self::tokens::{Layout, Padding, Tokens};
use self::weights::Parameters;
use souk_io::error::{Error, Result};

/// How one forward pass is to run; the default is the plain pass of an encoder.
#[derive(Default)]
pub struct Pass<'a> {
    /// Layers left out at the top; with 1, the states are the penultimate layer's.
    pub skip_layers: usize,
    /// Turns dropout on.
    pub train: bool,
    pub cache: Option<&'a mut Cache>,
    /// What stands for the tokens instead of their own words, `[b, l, d]`; the ids then say nothing.
    pub words: Option<&'a Tensor>,
}

pub struct Backbone {
    body: Body,
}

enum Body {
    Bert(Bert),
    Decoder(Decoder),
}

impl Backbone {
    /// Takes the architecture's tensors out of `parameters`; refuses weights that do not fit.
    pub fn build(architecture: &Architecture, parameters: &mut Parameters) -> Result<Self> {
        Self::build_beside(architecture, parameters, &[])
    }

    /// As `build`, where tensors whose name contains one of `others` may stand beside: of layers that were cut off, of a head.
    pub fn build_beside(architecture: &Architecture, parameters: &mut Parameters, others: &[String]) -> Result<Self> {
        let (body, leftovers) = match &architecture.shape {
            Shape::Bert(shape) => (Body::Bert(Bert::build(shape, parameters)?), &Bert::LEFTOVERS[..]),
            Shape::Decoder(shape) => (Body::Decoder(Decoder::build(shape, parameters)?), &Decoder::LEFTOVERS[..]),
        };
        let expected: Vec<&str> = leftovers.iter().copied().chain(others.iter().map(String::as_str)).collect();
        parameters.check_leftovers(&expected)?;
        Ok(Self { body })
    }

    /// Hidden states: `[t, d]` for packed tokens, `[b, l, d]` for padded ones.
    pub fn forward(&self, tokens: &Tokens, mut pass: Pass) -> Result<Tensor> {
        match &self.body {
            Body::Bert(_) if pass.words.is_some() => Err(Error::input("BERT takes words, not mixtures of them")),
            Body::Bert(_) if pass.cache.is_some() => Err(Error::input("BERT reads a text at once: it has no cache")),
            Body::Bert(bert) => bert.forward(tokens, &pass),
            Body::Decoder(decoder) => decoder.forward(tokens, &mut pass),
        }
    }

    /// Next-token scores for hidden states; only decoders have them.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.decoder()?.logits(hidden)
    }

    /// What stands for tokens before the first layer: `ids [..]` to `[.., d]`.
    pub fn words(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(self.decoder()?.words(ids))
    }

    /// Mixtures `[.., d]` of all words, by the shares `[.., vocab]` that each has in them.
    pub fn mixtures(&self, shares: &Tensor) -> Result<Tensor> {
        Ok(self.decoder()?.mixtures(shares))
    }

    /// Refuses a model that has no scores for a next token, and one that would see what it is asked for.
    pub fn check_writes(&self) -> Result<()> {
        let decoder = self.decoder()?;
        if !decoder.is_causal() {
            let problem = "is false: with attention in both directions nothing can be written behind a text";
            return Err(Error::config("encoder.causal (`is_causal` of the model's config.json)", problem));
        }
        decoder.check_writes()
    }

    /// Where it runs.
    pub fn device(&self) -> Result<Device> {
        Ok(self.decoder()?.device())
    }

    fn decoder(&self) -> Result<&Decoder> {
        match &self.body {
            Body::Bert(_) => Err(Error::config("config.json", "BERT has no next token: use a decoder")),
            Body::Decoder(decoder) => Ok(decoder),
        }
    }

    /// Packs every linear map for fast inference on the CPU; the backbone can no longer be trained.
    pub fn freeze(&mut self, precision: Precision) -> Result<()> {
        self.projections().into_iter().try_for_each(|projection| projection.freeze(precision))
    }

    /// Every linear map inside the layers: what a low-rank adapter can attach to.
    pub(super) fn linears(&mut self) -> Vec<&mut Linear> {
        self.projections().into_iter().flat_map(|projection| projection.parts_mut()).collect()
    }

    fn projections(&mut self) -> Vec<&mut Projection> {
        match &mut self.body {
            Body::Bert(bert) => bert.projections().collect(),
            Body::Decoder(decoder) => decoder.projections().collect(),
        }
    }
}
