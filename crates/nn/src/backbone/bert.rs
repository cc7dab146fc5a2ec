//! BERT and its variants: learned positions, post-norm layers, bidirectional attention. MiniLM and RetroMAE-style encoders are
//! BERT itself; RoBERTa, XLM-RoBERTa and MPNet differ only in `FAMILIES` and in their `config.json`. Takes tokens, returns each
//! token's hidden state; the pooler and task heads of a hub folder are kept unchanged.

use souk_native::Activation;
use tch::{Device, Kind, Tensor};

use super::ForwardPass;
use super::attention::{Softmax, Visibility, attend, attend_joined};
use super::fields::{CAUSAL, Fields};
use super::linear::{AddNorm, LayerNorm, Linear, LinearSpec, PostOp, Projection, activation_of, feed_forward};
use super::tokens::{Layout, Tokens};
use super::weights::{Init, Parameters};
use souk_io::error::{Error, Result};

/// Differences of a family from BERT that its `config.json` does not state.
#[derive(Debug)]
pub(super) struct Family {
    pub model_type: &'static str,
    /// Start of its classes' names in transformers.
    pub class: &'static str,
    /// Prefix of the tensors in a model with a head.
    pub prefix: &'static str,
    first_position: FirstPosition,
    has_token_types: bool,
    /// Whether the scores of attention have a bias by distance, the same in all layers.
    has_relative_bias: bool,
    pub names: LayerNames,
}

/// Row of the position embeddings that the first token takes.
#[derive(Debug)]
enum FirstPosition {
    Zero,
    /// The row after the padding token's id, as in fairseq.
    AfterPadding,
    /// The same, whatever the padding token is.
    Two,
}

/// Names of a layer's linear layers and norm that differ between the families.
#[derive(Debug)]
pub(super) struct LayerNames {
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub output: &'static str,
    attention_norm: &'static str,
}

const BERT_NAMES: LayerNames = LayerNames {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
};
const MPNET_NAMES: LayerNames = LayerNames {
    query: "attention.attn.q",
    key: "attention.attn.k",
    value: "attention.attn.v",
    output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
};

pub(super) const FAMILIES: [Family; 4] = [
    Family {
        model_type: "bert",
        class: "Bert",
        prefix: "bert.",
        first_position: FirstPosition::Zero,
        has_token_types: true,
        has_relative_bias: false,
        names: BERT_NAMES,
    },
    Family {
        model_type: "roberta",
        class: "Roberta",
        prefix: "roberta.",
        first_position: FirstPosition::AfterPadding,
        has_token_types: true,
        has_relative_bias: false,
        names: BERT_NAMES,
    },
    Family {
        model_type: "xlm-roberta",
        class: "XLMRoberta",
        prefix: "roberta.",
        first_position: FirstPosition::AfterPadding,
        has_token_types: true,
        has_relative_bias: false,
        names: BERT_NAMES,
    },
    Family {
        model_type: "mpnet",
        class: "MPNet",
        prefix: "mpnet.",
        first_position: FirstPosition::Two,
        has_token_types: false,
        has_relative_bias: true,
        names: MPNET_NAMES,
    },
];

/// Padding token of RoBERTa and XLM-RoBERTa.
const USUAL_PADDING: i64 = 1;
/// Rows of MPNet's relative attention bias: half of them for keys before the query, half for keys after it.
const NUM_BUCKETS: i64 = 32;
/// Distance from which all keys share one row.
const MAX_DISTANCE: f64 = 128.0;

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
    /// 0 without token types.
    pub(super) token_types: i64,
    /// Rows of the relative attention bias.
    pub(super) bias_rows: i64,
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
        if family.has_relative_bias {
            // transformers uses this number whatever the field says
            fields.expect("relative_attention_num_buckets", NUM_BUCKETS)?;
        }
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
            first_position: match family.first_position {
                FirstPosition::Zero => 0,
                FirstPosition::AfterPadding => fields.or("pad_token_id", USUAL_PADDING)?.saturating_add(1),
                FirstPosition::Two => 2,
            },
            token_types: if family.has_token_types { fields.count_or("type_vocab_size", 2)? } else { 0 },
            bias_rows: if family.has_relative_bias { NUM_BUCKETS } else { 0 },
            activation,
            eps: fields.positive("layer_norm_eps", Some(1e-12))?,
            dropout: fields.or("hidden_dropout_prob", 0.1)?,
            attention_dropout: fields.or("attention_probs_dropout_prob", 0.1)?,
            init_std: fields.or("initializer_range", 0.02)?,
        };
        let even = shape.width % shape.heads == 0;
        fields.check("num_attention_heads", even, "must divide hidden_size")?;
        let has_positions = (0..shape.position_rows).contains(&shape.first_position);
        let problem = "is too small: positions start after the padding token (pad_token_id)";
        fields.check("max_position_embeddings", has_positions, problem)?;
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
    type_embeddings: Option<Tensor>,
    relative_bias: Option<Tensor>,
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
        let type_embeddings = match shape.token_types {
            0 => None,
            types => {
                let name = format!("{at}.token_type_embeddings.weight");
                Some(parameters.tensor(&name, &[types, shape.width], std)?)
            }
        };
        let relative_bias = match shape.bias_rows {
            0 => None,
            rows => {
                let name = format!("{prefix}encoder.relative_attention_bias.weight");
                Some(parameters.tensor(&name, &[rows, shape.heads], std)?)
            }
        };
        let norm = LayerNorm::build(&format!("{at}.LayerNorm"), shape.width, shape.eps, parameters)?;
        let layers = (0..shape.layers)
            .map(|i| Layer::build(&format!("{prefix}encoder.layer.{i}"), shape, parameters))
            .collect::<Result<_>>()?;
        let shape = shape.clone();
        Ok(Self { shape, word_embeddings, position_embeddings, type_embeddings, relative_bias, norm, layers })
    }

    /// Hidden states, shaped as the tokens plus a width.
    pub(super) fn forward(&self, tokens: &Tokens, pass: &ForwardPass) -> Result<Tensor> {
        let mut x = self.embed(tokens)?;
        let dropout = if pass.train { self.shape.dropout } else { 0.0 };
        x = x.dropout(dropout, pass.train);
        let mut plan = tokens.plan(Visibility { causal: false, window: None });
        if let Some(rows) = &self.relative_bias {
            plan = plan.with_bias(&bias_by_distance(rows, tokens.longest()));
        }
        let depth = self.layers.len().saturating_sub(pass.skip_layers);
        for (at, layer) in self.layers[..depth].iter().enumerate() {
            let softmax = Softmax::plain(if pass.train { self.shape.attention_dropout } else { 0.0 });
            let context = match layer.qkv.joined(&x)? {
                Some(qkv) => attend_joined(&qkv, self.shape.heads, &plan, softmax)?,
                None => {
                    let parts = layer.qkv.split(&x, pass.train)?;
                    let heads = |x: &Tensor| x.unflatten(-1, [self.shape.heads, -1]);
                    attend(&heads(&parts[0]), &heads(&parts[1]), &heads(&parts[2]), &plan, softmax)?
                }
            };
            let [context, kept] = [context, x].map(|x| pass.needed_rows(x, at, depth));
            let end = AddNorm { dropout, residual: &kept, norm: &layer.attention_norm };
            let attended = layer.output.apply(&context, PostOp::AddNorm(end), pass.train)?;
            let end = AddNorm { dropout, residual: &attended, norm: &layer.norm };
            let inner = [&layer.widen, &layer.narrow];
            x = feed_forward(inner, self.shape.activation, &attended, end, pass.train)?;
        }
        Ok(x)
    }

    fn embed(&self, tokens: &Tokens) -> Result<Tensor> {
        // all tokens of a single text have type 0
        let types = match (&self.type_embeddings, &tokens.types) {
            (Some(table), Some(types)) => Some(Tensor::embedding(table, types, -1, false, false)),
            (Some(table), None) => Some(table.get(0)),
            (None, Some(_)) => return Err(Error::input("this model has no token types, but gets some")),
            (None, None) => None,
        };
        // taken anew for each pass: in training, gradients flow through it to the whole table
        let position_table = self.position_embeddings.narrow(0, self.shape.first_position, self.shape.positions());
        let table = &self.word_embeddings;
        let has_kernel = table.kind() == Kind::Float && table.device() == Device::Cpu && tokens.types.is_none();
        if has_kernel && !table.requires_grad() && matches!(tokens.layout, Layout::Packed { .. }) {
            let LayerNorm { weight, bias, eps } = &self.norm;
            let (word, position, token_type) = (table, &position_table, types.as_ref());
            let tables = souk_native::Embeddings { word, position, token_type, weight, bias, eps: *eps };
            return Ok(souk_native::embed_norm(&tokens.ids, &tokens.positions, &tables)?);
        }
        let words = Tensor::embedding(table, &tokens.ids, -1, false, false);
        let positions = Tensor::embedding(&position_table, &tokens.positions, -1, false, false);
        // same order of summation as the original: it matters in bf16
        let typed = match types {
            Some(types) => words + types,
            None => words,
        };
        Ok(self.norm.forward(&(typed + positions)))
    }

    pub(super) fn projections(&mut self) -> impl Iterator<Item = &mut Projection> {
        self.layers.iter_mut().flat_map(|l| [&mut l.qkv, &mut l.output, &mut l.widen, &mut l.narrow])
    }
}

/// Relative attention bias `[h, 2 n - 1]` by key position minus query position, from `1 - n` to `n - 1`, of its `rows [r, h]`.
/// Near keys have a row for each distance, far ones share rows by the logarithm of their distance.
fn bias_by_distance(rows: &Tensor, longest: i64) -> Tensor {
    let distance = Tensor::arange_start(1 - longest, longest, (Kind::Int64, Device::Cpu));
    let (apart, side) = (distance.abs(), NUM_BUCKETS / 2);
    let near = side / 2;
    // the same operations in f32 as in training: they decide which row a distance at an edge has
    let scaled = (apart.clamp_min(1).to_kind(Kind::Float) / near).log() / (MAX_DISTANCE / near as f64).ln();
    let far = ((scaled * (side - near)).to_kind(Kind::Int64) + near).clamp_max(side - 1);
    let places = apart.where_self(&apart.lt(near), &far) + distance.gt(0).to_kind(Kind::Int64) * side;
    rows.index_select(0, &places.to_device(rows.device())).tr().contiguous()
}

impl Layer {
    fn build(at: &str, shape: &BertShape, parameters: &mut Parameters) -> Result<Self> {
        let mut linear = |name: &str, inputs, outputs| {
            let name = &format!("{at}.{name}");
            Linear::build(LinearSpec { name, inputs, outputs, bias: true, std: shape.init_std }, parameters)
        };
        let (width, inner) = (shape.width, shape.inner);
        let names = &shape.family.names;
        let qkv = [names.query, names.key, names.value]
            .iter()
            .map(|name| linear(name, width, width))
            .collect::<Result<_>>()?;
        let output = linear(names.output, width, width)?;
        let widen = linear("intermediate.dense", width, inner)?;
        let narrow = linear("output.dense", inner, width)?;
        let mut norm = |name: &str| LayerNorm::build(&format!("{at}.{name}"), width, shape.eps, parameters);
        Ok(Self {
            attention_norm: norm(names.attention_norm)?,
            norm: norm("output.LayerNorm")?,
            qkv: Projection::of(qkv),
            output: Projection::of(vec![output]),
            widen: Projection::of(vec![widen]),
            narrow: Projection::of(vec![narrow]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that transformers' `relative_position_bucket` gives.
    #[test]
    fn far_keys_share_a_bias() {
        let rows = Tensor::arange(NUM_BUCKETS, (Kind::Float, Device::Cpu)).unsqueeze(1);
        let bias = bias_by_distance(&rows, 501);
        assert_eq!(bias.size(), [1, 1001]);
        let of = |distance: i64| bias.double_value(&[0, distance + 500]);
        let before = [(-500, 15), (-128, 15), (-64, 14), (-32, 12), (-16, 10), (-9, 8), (-8, 8), (-7, 7), (-1, 1)];
        let after = [(0, 0), (1, 17), (7, 23), (8, 24), (12, 25), (16, 26), (64, 30), (90, 30), (91, 31), (500, 31)];
        for (distance, row) in before.into_iter().chain(after) {
            assert_eq!(of(distance), f64::from(row), "distance {distance}");
        }
    }
}
