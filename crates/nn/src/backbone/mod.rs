//! Token ids to hidden states. Builds a `Backbone` from a hub folder (`config.json`, weights): an encoder of one of the families
//! in `bert`, a ModernBERT, or a decoder of one of those in `decoder`. Never takes text and never returns vectors (see `encoder`).

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
mod modernbert;
mod rope;
mod sampling;
mod sizes;
pub mod tokenizer;
mod tokens;
pub mod weights;

use tch::{Device, Tensor};

use self::architecture::Shape;
pub use self::architecture::{Architecture, ClassNames};
use self::bert::Bert;
use self::decoder::Decoder;
pub use self::kv::KvCache;
use self::linear::Projection;
pub use self::linear::{Linear, Precision};
use self::modernbert::ModernBert;
pub use self::sampling::{Continuation, Sampling};
pub use self::sizes::{LinearShape, Sizes};
pub use self::tokens::{Layout, Padding, Tokens};
use self::weights::Parameters;
use souk_io::error::{Error, Result};

/// Options of one forward pass; the default is inference on the token ids with all layers.
#[derive(Default)]
pub struct ForwardPass<'a> {
    /// Layers skipped at the top; with 1, the states are the penultimate layer's.
    pub skip_layers: usize,
    /// Enables dropout.
    pub train: bool,
    /// Indices of the packed tokens whose states are returned, `[b]`; none: of all tokens. The last layer computes only these
    /// after its attention, because from there on a state depends on no other token.
    pub rows: Option<&'a Tensor>,
    pub cache: Option<&'a mut KvCache>,
    /// Input embeddings `[b, l, d]` that replace the embeddings of the token ids.
    pub input_embeddings: Option<&'a Tensor>,
}

impl ForwardPass<'_> {
    /// The rows of `x` that layer `at` of `depth` goes on with after its attention.
    fn needed_rows(&self, x: Tensor, at: usize, depth: usize) -> Tensor {
        match self.rows {
            Some(rows) if at + 1 == depth => x.index_select(0, rows),
            _ => x,
        }
    }
}

pub struct Backbone {
    body: Body,
}

enum Body {
    Bert(Bert),
    ModernBert(ModernBert),
    Decoder(Decoder),
}

impl Backbone {
    /// Builds the architecture from `parameters`; unknown or mismatched tensors are errors.
    pub fn build(architecture: &Architecture, parameters: &mut Parameters) -> Result<Self> {
        Self::build_beside(architecture, parameters, &[])
    }

    /// As `build`, but ignores tensors whose name contains one of `others`, such as removed layers or a task head.
    pub fn build_beside(architecture: &Architecture, parameters: &mut Parameters, others: &[String]) -> Result<Self> {
        let (body, leftovers) = match &architecture.shape {
            Shape::Bert(shape) => (Body::Bert(Bert::build(shape, parameters)?), &Bert::LEFTOVERS[..]),
            Shape::ModernBert(shape) => {
                (Body::ModernBert(ModernBert::build(shape, parameters)?), &ModernBert::LEFTOVERS[..])
            }
            Shape::Decoder(shape) => (Body::Decoder(Decoder::build(shape, parameters)?), &Decoder::LEFTOVERS[..]),
        };
        let expected: Vec<&str> = leftovers.iter().copied().chain(others.iter().map(String::as_str)).collect();
        parameters.check_leftovers(&expected)?;
        Ok(Self { body })
    }

    /// Hidden states: `[t, d]` for packed tokens, or `[b, d]` for `pass.rows` of them; `[b, l, d]` for padded ones.
    pub fn forward(&self, tokens: &Tokens, mut pass: ForwardPass) -> Result<Tensor> {
        if pass.rows.is_some() && !matches!(tokens.layout, Layout::Packed { .. }) {
            return Err(Error::input("rows can be chosen of packed tokens only, not of padded ones"));
        }
        match &self.body {
            Body::Bert(_) | Body::ModernBert(_) if pass.input_embeddings.is_some() => {
                Err(Error::input("an encoder takes token ids, not input embeddings: use a decoder"))
            }
            Body::Bert(_) | Body::ModernBert(_) if pass.cache.is_some() => {
                Err(Error::input("an encoder has no KV cache: use a decoder"))
            }
            Body::Bert(bert) => bert.forward(tokens, &pass),
            Body::ModernBert(bert) => bert.forward(tokens, &pass),
            Body::Decoder(decoder) => decoder.forward(tokens, &mut pass),
        }
    }

    /// Next-token logits for hidden states; decoders only.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.decoder()?.logits(hidden)
    }

    /// Token embeddings: `ids [..]` to `[.., d]`; decoders only.
    pub fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(self.decoder()?.embed(ids))
    }

    /// Soft-token embeddings `[.., d]`: averages of all token embeddings, weighted by `probabilities [.., vocab]`.
    pub fn embed_soft(&self, probabilities: &Tensor) -> Result<Tensor> {
        Ok(self.decoder()?.embed_soft(probabilities))
    }

    /// Returns an error unless the model can generate: it needs causal attention and a language-model head.
    pub fn check_generates(&self) -> Result<()> {
        let decoder = self.decoder()?;
        if !decoder.is_causal() {
            let problem = "is false: a model with bidirectional attention cannot generate; set it to true";
            return Err(Error::config("encoder.causal (`is_causal` of the model's config.json)", problem));
        }
        decoder.check_generates()
    }

    /// Device of the weights; decoders only.
    pub fn device(&self) -> Result<Device> {
        Ok(self.decoder()?.device())
    }

    fn decoder(&self) -> Result<&Decoder> {
        match &self.body {
            Body::Decoder(decoder) => Ok(decoder),
            _ => Err(Error::config("config.json", "an encoder cannot generate: use a decoder")),
        }
    }

    /// Packs every linear layer for fast CPU inference; the backbone can no longer be trained.
    pub fn freeze(&mut self, precision: Precision) -> Result<()> {
        self.projections().into_iter().try_for_each(|projection| projection.freeze(precision))
    }

    /// All linear layers that a low-rank adapter can attach to.
    pub(super) fn linears(&mut self) -> Vec<&mut Linear> {
        self.projections().into_iter().flat_map(|projection| projection.parts_mut()).collect()
    }

    fn projections(&mut self) -> Vec<&mut Projection> {
        match &mut self.body {
            Body::Bert(bert) => bert.projections().collect(),
            Body::ModernBert(bert) => bert.projections().collect(),
            Body::Decoder(decoder) => decoder.projections().collect(),
        }
    }
}
