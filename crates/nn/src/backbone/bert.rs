//! BERT and its variants: learned positions, post-norm layers, bidirectional attention. MiniLM and RetroMAE-style encoders are
//! BERT itself; RoBERTa and XLM-RoBERTa differ only in `FAMILIES` and in their `config.json`. Takes tokens, returns each token's
//! hidden state; the pooler and task heads of a hub folder are kept unchanged.

use souk_native::Activation;
use tch::{Device, Kind, Tensor};

use super::ForwardPass;
use super::attention::{Visibility, attend, attend_joined};
use super::fields::{CAUSAL, Fields};
use super::linear::{LayerNorm, Linear, LinearSpec, PostOp, Projection, activation_of, feed_forward};
use super::tokens::{Layout, Tokens};
use super::weights::{Init, Parameters};
use souk_io::error::Result;

/// Differences of a family from BERT that its `config.json` does not state.
#[derive(Debug)]
pub(super) struct Family {
    pub model_type: &'static str,
    /// Start of its classes' names in transformers.
    pub class: &'static str,
    /// Prefix of the tensors in a model with a head.
    pub prefix: &'static str,
    /// Whether the first token's position is the padding token's id plus 1, as in fairseq, instead of 0.
    positions_after_padding: bool,
}

pub(super) const FAMILIES: [Family; 3] = [
    Family { model_type: "bert", class: "Bert", prefix: "bert.", positions_after_padding: false },
    Family { model_type: "roberta", class: "Roberta", prefix: "roberta.", positions_after_padding: true },
    Family { model_type: "xlm-roberta", class: "XLMRoberta", prefix: "roberta.", positions_after_padding: true },
];

/// Padding token of RoBERTa and XLM-RoBERTa.
const USUAL_PADDING: i64 = 1;

/// Sizes and settings of a BERT, from `config.json`.
#[derive(Clone, Debug)]
pub struct BertShape {
    pub(super) family: &'static Family,
    pub vocab: i64,
    pub width: i64,
    pub layers: i64,
    pub heads: i64,
    pub inner: i64,
    /// Rows of the position embeddings.
    pub(super) position_rows: i64,
    /// Row of the first token's position.
    first_position: i64,
    pub(super) token_types: i64,
    activation: Activation,
    eps: f64,
    pub(super) dropout: f64,
    pub(super) attention_dropout: f64,
    init_std: f64,
}

impl BertShape {
    pub(super) fn read(family: &'static Family, fields: &Fields) -> Result<Self> {
        let name: String = fields.or("hidden_act", "gelu".into())?;
        let unknown = || fields.error("hidden_act", &format!("is `{name}`: use gelu, gelu_new, relu or silu"));
        let activation = activation_of(&name).ok_or_else(unknown)?;
        fields.expect("position_embedding_type", "absolute")?;
        fields.expect("is_decoder", false)?;
        fields.expect(CAUSAL, false)?;
        fields.expect("tie_word_embeddings", true).or_else(|_| fields.expect("tie_word_embeddings", false))?;
        let shape = Self {
            family,
            vocab: fields.count("vocab_size")?,
            width: fields.count("hidden_size")?,
            layers: fields.num_layers()?,
            heads: fields.count("num_attention_heads")?,
            inner: fields.count("intermediate_size")?,
            position_rows: fields.count("max_position_embeddings")?,
            first_position: if family.positions_after_padding {
                fields.or("pad_token_id", USUAL_PADDING)?.saturating_add(1)
            } else {
                0
            },
            token_types: fields.count_or("type_vocab_size", 2)?,
            activation,
            eps: fields.positive("layer_norm_eps", Some(1e-12))?,
            dropout: fields.or("hidden_dropout_prob", 0.1)?,
            attention_dropout: fields.or("attention_probs_dropout_prob", 0.1)?,
            init_std: fields.or("initializer_range", 0.02)?,
        };
        let even = shape.width % shape.heads == 0;
        fields.check("num_attention_heads", even, "must divide hidden_size")?;
        let has_positions = (0..shape.position_rows).contains(&shape.first_position);
        fields.check(
            "pad_token_id",
            has_positions,
            "must be below max_position_embeddings, because positions start after it",
        )?;
        Ok(shape)
    }

    /// Maximum number of tokens.
    pub(super) fn positions(&self) -> i64 {
        self.position_rows - self.first_position
    }
}

pub struct Bert {
    shape: BertShape,
    word_embeddings: Tensor,
    position_embeddings: Tensor,
    type_embeddings: Tensor,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

struct Layer {
    qkv: Projection,
    output: Projection,
    attention_norm: LayerNorm,
    widen: Projection,
    narrow: Projection,
    norm: LayerNorm,
}

impl Bert {
    /// Name parts of unused tensors in a hub folder: pooler and task heads.
    pub(super) const LEFTOVERS: [&str; 5] = ["pooler.", "cls.", "position_ids", "classifier.", "lm_head."];

    pub(super) fn build(shape: &BertShape, parameters: &mut Parameters) -> Result<Self> {
        let prefix = parameters.prefix(&["", shape.family.prefix], "embeddings.word_embeddings.weight")?;
        let at = format!("{prefix}embeddings");
        let std = Init::Normal(shape.init_std);
        let rows = [shape.vocab, shape.width];
        let word_embeddings = parameters.tensor(&format!("{at}.word_embeddings.weight"), &rows, std)?;
        let rows = [shape.position_rows, shape.width];
        let position_embeddings = parameters.tensor(&format!("{at}.position_embeddings.weight"), &rows, std)?;
        let rows = [shape.token_types, shape.width];
        let type_embeddings = parameters.tensor(&format!("{at}.token_type_embeddings.weight"), &rows, std)?;
        let norm = LayerNorm::build(&format!("{at}.LayerNorm"), shape.width, shape.eps, parameters)?;
        let layers = (0..shape.layers)
            .map(|i| Layer::build(&format!("{prefix}encoder.layer.{i}"), shape, parameters))
            .collect::<Result<_>>()?;
        Ok(Self { shape: shape.clone(), word_embeddings, position_embeddings, type_embeddings, norm, layers })
    }

    /// Hidden states, shaped as the tokens plus a width.
    pub(super) fn forward(&self, tokens: &Tokens, pass: &ForwardPass) -> Result<Tensor> {
        let mut x = self.embed(tokens)?;
        if pass.train {
            x = x.dropout(self.shape.dropout, true);
        }
        let plan = tokens.plan(Visibility { causal: false, window: None });
        let depth = self.layers.len().saturating_sub(pass.skip_layers);
        for (at, layer) in self.layers[..depth].iter().enumerate() {
            let dropout = if pass.train { self.shape.attention_dropout } else { 0.0 };
            let context = match layer.qkv.joined(&x)? {
                Some(qkv) => attend_joined(&qkv, self.shape.heads, &plan, dropout)?,
                None => {
                    let parts = layer.qkv.split(&x, pass.train)?;
                    let heads = |x: &Tensor| x.unflatten(-1, [self.shape.heads, -1]);
                    attend(&heads(&parts[0]), &heads(&parts[1]), &heads(&parts[2]), &plan, dropout)?
                }
            };
            let [context, kept] = [context, x].map(|x| pass.needed_rows(x, at, depth));
            let residual = AddNorm { residual: &kept, norm: &layer.attention_norm };
            let attended = self.finish_sublayer(&layer.output, &context, &residual, pass)?;
            x = self.feed_forward(layer, &attended, pass)?;
        }
        Ok(x)
    }

    fn embed(&self, tokens: &Tokens) -> Result<Tensor> {
        // all tokens of a single text have type 0
        let types = match &tokens.types {
            Some(types) => Tensor::embedding(&self.type_embeddings, types, -1, false, false),
            None => self.type_embeddings.get(0),
        };
        // taken anew for each pass: in training, gradients flow through it to the whole table
        let position_table = self.position_embeddings.narrow(0, self.shape.first_position, self.shape.positions());
        let table = &self.word_embeddings;
        let has_kernel = table.kind() == Kind::Float && table.device() == Device::Cpu && tokens.types.is_none();
        if has_kernel && !table.requires_grad() && matches!(tokens.layout, Layout::Packed { .. }) {
            let LayerNorm { weight, bias, eps } = &self.norm;
            let (word, position, token_type) = (table, &position_table, Some(&types));
            let tables = souk_native::Embeddings { word, position, token_type, weight, bias, eps: *eps };
            return Ok(souk_native::embed_norm(&tokens.ids, &tokens.positions, &tables)?);
        }
        let words = Tensor::embedding(table, &tokens.ids, -1, false, false);
        let positions = Tensor::embedding(&position_table, &tokens.positions, -1, false, false);
        // same order of summation as the original: it matters in bf16
        Ok(self.norm.forward(&(words + types + positions)))
    }

    fn feed_forward(&self, layer: &Layer, x: &Tensor, pass: &ForwardPass) -> Result<Tensor> {
        if !pass.train {
            let post_op = PostOp::AddNorm { residual: x, norm: &layer.norm };
            return feed_forward(&layer.widen, self.shape.activation, &layer.narrow, x, post_op);
        }
        let wide = layer.widen.apply(x, PostOp::Activation(self.shape.activation), true)?;
        self.finish_sublayer(&layer.narrow, &wide, &AddNorm { residual: x, norm: &layer.norm }, pass)
    }

    /// Ends a sublayer: projection, dropout, residual, norm.
    fn finish_sublayer(&self, map: &Projection, x: &Tensor, add: &AddNorm, pass: &ForwardPass) -> Result<Tensor> {
        let AddNorm { residual, norm } = *add;
        if !pass.train {
            return map.apply(x, PostOp::AddNorm { residual, norm }, false);
        }
        let y = map.apply(x, PostOp::Nothing, true)?.dropout(self.shape.dropout, true);
        Ok(norm.forward(&(y + residual)))
    }

    pub(super) fn projections(&mut self) -> impl Iterator<Item = &mut Projection> {
        self.layers.iter_mut().flat_map(|l| [&mut l.qkv, &mut l.output, &mut l.widen, &mut l.narrow])
    }
}

/// Residual and norm at the end of a sublayer.
struct AddNorm<'a> {
    residual: &'a Tensor,
    norm: &'a LayerNorm,
}

impl Layer {
    fn build(at: &str, shape: &BertShape, parameters: &mut Parameters) -> Result<Self> {
        let mut linear = |name: &str, inputs, outputs| {
            let name = &format!("{at}.{name}");
            Linear::build(LinearSpec { name, inputs, outputs, bias: true, std: shape.init_std }, parameters)
        };
        let (width, inner) = (shape.width, shape.inner);
        let qkv = ["query", "key", "value"]
            .iter()
            .map(|part| linear(&format!("attention.self.{part}"), width, width))
            .collect::<Result<_>>()?;
        let output = linear("attention.output.dense", width, width)?;
        let widen = linear("intermediate.dense", width, inner)?;
        let narrow = linear("output.dense", inner, width)?;
        let mut norm = |name: &str| LayerNorm::build(&format!("{at}.{name}"), width, shape.eps, parameters);
        Ok(Self {
            attention_norm: norm("attention.output.LayerNorm")?,
            norm: norm("output.LayerNorm")?,
            qkv: Projection::of(qkv),
            output: Projection::of(vec![output]),
            widen: Projection::of(vec![widen]),
            narrow: Projection::of(vec![narrow]),
        })
    }
}
