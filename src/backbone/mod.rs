//! Tokens to hidden states. A folder of the hub (`config.json`, weights) becomes a `Backbone`: BERT, or a decoder of
//! one of the families in `decoder`. Takes ids, never text; gives states, never vectors (that is `encoder`).

mod attention;
mod bert;
mod decoder;
pub mod fields;
pub mod hub;
mod kv;
mod linear;
pub mod lora;
mod rope;
pub mod tokenizer;
mod tokens;
pub mod weights;

use std::path::Path;

use serde_json::Value;
use tch::Tensor;

use self::bert::{Bert, BertShape};
use self::decoder::{Decoder, DecoderShape, FAMILIES};
use self::fields::Fields;
pub use self::kv::Cache;
use self::linear::Projection;
pub use self::linear::{Linear, Precision};
pub use self::tokens::{Layout, Padding, Tokens};
use self::weights::Parameters;
use crate::error::{Error, Result};

/// Fields of any hub `config.json` that do not change what the forward pass computes.
const HARMLESS: [&str; 58] = [
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "_attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "classifier_dropout",
    "cls_token_id",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "mask_token_id",
    "max_length",
    "max_window_layers",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_cache",
];

/// What a `config.json` describes.
#[derive(Clone, Debug)]
pub struct Architecture {
    shape: Shape,
    /// The file as it was read, to be saved again.
    json: Value,
}

#[derive(Clone, Debug)]
enum Shape {
    Bert(BertShape),
    Decoder(DecoderShape),
}

impl Architecture {
    /// Reads a hub `config.json`; `ignored` lists fields the user vouches for.
    pub fn open(path: &Path, ignored: &[String]) -> Result<Self> {
        let text = std::fs::read(path).map_err(Error::store(path, "read it"))?;
        let json =
            serde_json::from_slice(&text).map_err(|e| Error::config(path.display(), "not valid JSON").because(e))?;
        Self::read(json, &path.display().to_string(), ignored)
    }

    /// Reads the same from memory; `place` names it in errors.
    pub fn read(json: Value, place: &str, ignored: &[String]) -> Result<Self> {
        let fields = Fields::new(place.into(), json.clone())?;
        let model_type: String = fields.need("model_type")?;
        for (field, neutral) in [
            ("is_encoder_decoder", Value::from(false)),
            ("chunk_size_feed_forward", 0.into()),
            ("pruned_heads", serde_json::json!({})),
            ("tie_encoder_decoder", false.into()),
        ] {
            fields.only(field, neutral)?;
        }
        let shape = match FAMILIES.iter().find(|family| family.model_type == model_type) {
            Some(family) => Shape::Decoder(DecoderShape::read(family, &fields)?),
            None if model_type == "bert" => {
                fields.only("tie_word_embeddings", true).or_else(|_| fields.only("tie_word_embeddings", false))?;
                Shape::Bert(BertShape::read(&fields)?)
            }
            None => {
                let known: Vec<&str> = FAMILIES.iter().map(|family| family.model_type).collect();
                let problem = format!("is `{model_type}`: Souk computes bert, {}", known.join(", "));
                return Err(fields.error("model_type", &problem));
            }
        };
        fields.finish(&HARMLESS, ignored)?;
        Ok(Self { shape, json })
    }

    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Width of a hidden state.
    pub fn width(&self) -> i64 {
        match &self.shape {
            Shape::Bert(shape) => shape.width,
            Shape::Decoder(shape) => shape.width,
        }
    }

    /// The longest text the model has positions for.
    pub fn max_tokens(&self) -> usize {
        let positions = match &self.shape {
            Shape::Bert(shape) => shape.positions,
            Shape::Decoder(shape) => shape.positions,
        };
        usize::try_from(positions).unwrap_or(usize::MAX)
    }

    /// Ids must be below this.
    pub fn vocab(&self) -> usize {
        let vocab = match &self.shape {
            Shape::Bert(shape) => shape.vocab,
            Shape::Decoder(shape) => shape.vocab,
        };
        usize::try_from(vocab).unwrap_or(usize::MAX)
    }

    pub fn is_decoder(&self) -> bool {
        matches!(self.shape, Shape::Decoder(_))
    }
}

/// How one forward pass is to run; the default is the plain pass of an encoder.
#[derive(Default)]
pub struct Pass<'a> {
    /// `None`: as the architecture was trained (BERT bidirectional, decoders causal).
    pub causal: Option<bool>,
    /// Layers left out at the top; with 1, the states are the penultimate layer's.
    pub skip_layers: usize,
    /// Turns dropout on.
    pub train: bool,
    pub cache: Option<&'a mut Cache>,
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
        let (body, leftovers) = match &architecture.shape {
            Shape::Bert(shape) => (Body::Bert(Bert::build(shape, parameters)?), &Bert::LEFTOVERS[..]),
            Shape::Decoder(shape) => (Body::Decoder(Decoder::build(shape, parameters)?), &Decoder::LEFTOVERS[..]),
        };
        parameters.check_leftovers(leftovers)?;
        Ok(Self { body })
    }

    /// Hidden states: `[t, d]` for packed tokens, `[b, l, d]` for padded ones.
    pub fn forward(&self, tokens: &Tokens, mut pass: Pass) -> Result<Tensor> {
        match &self.body {
            Body::Bert(_) if pass.cache.is_some() => Err(Error::input("BERT reads a text at once: it has no cache")),
            Body::Bert(bert) => bert.forward(tokens, &pass),
            Body::Decoder(decoder) => decoder.forward(tokens, &mut pass),
        }
    }

    /// Next-token scores for hidden states; only decoders have them.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        match &self.body {
            Body::Bert(_) => Err(Error::config("config.json", "BERT has no next token: use a decoder")),
            Body::Decoder(decoder) => decoder.logits(hidden),
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
