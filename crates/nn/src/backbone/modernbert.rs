//! ModernBERT: pre-norm layers without biases, rotary positions, gated feed-forward. Some layers attend to the whole text, the
//! others to a window around each token, with another base of the rotation. Takes tokens, returns each token's hidden state; the
//! task heads of a hub folder are kept unchanged.

use serde_json::Value;
use souk_native::Activation;
use tch::Tensor;

use super::ForwardPass;
use super::attention::{AttentionPlan, Softmax, Visibility, attend};
use super::fields::{CAUSAL, Fields};
use super::linear::{LayerNorm, Linear, LinearSpec, PostOp, Projection, activate, activation_of};
use super::rope::{Angles, LayerRopes, Rope};
use super::tokens::Tokens;
use super::weights::{Init, Parameters};
use souk_io::error::Result;

pub(super) const MODEL_TYPE: &str = "modernbert";
/// Start of its classes' names in transformers.
pub(super) const CLASS: &str = "ModernBert";
/// Prefix of the tensors in a model with a head.
pub(super) const PREFIX: &str = "model.";

/// Fields of the rotations' bases before transformers 5, and their defaults.
const OLD_BASES: [(&str, f64); 2] = [("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0)];

/// Sizes and settings of a ModernBERT, from `config.json`.
#[derive(Clone, Debug)]
pub struct ModernBertShape {
    pub vocab: i64,
    pub width: i64,
    pub heads: i64,
    pub inner: i64,
    pub positions: i64,
    /// Sliding window of each layer.
    pub windows: Vec<Option<i64>>,
    ropes: LayerRopes,
    eps: f64,
    pub(super) norm_bias: bool,
    pub(super) attention_bias: bool,
    pub(super) inner_bias: bool,
    activation: Activation,
    embedding_dropout: f64,
    pub(super) attention_dropout: f64,
    inner_dropout: f64,
    init_std: f64,
}

impl ModernBertShape {
    pub(super) fn read(fields: &Fields) -> Result<Self> {
        let name: String = fields.or("hidden_activation", "gelu".into())?;
        let unknown = || fields.error("hidden_activation", &format!("is `{name}`: use gelu, gelu_new, relu or silu"));
        let activation = activation_of(&name).ok_or_else(unknown)?;
        fields.expect("position_embedding_type", "absolute")?;
        fields.expect(CAUSAL, false)?;
        fields.expect("rope_scaling", Value::Null)?;
        fields.expect("tie_word_embeddings", true).or_else(|_| fields.expect("tie_word_embeddings", false))?;
        // published configurations have it, but the model reads `norm_eps` only
        fields.get::<Value>("layer_norm_eps")?;
        let (width, heads) = (fields.count("hidden_size")?, fields.count("num_attention_heads")?);
        fields.check("num_attention_heads", width % heads == 0, "must divide hidden_size")?;
        fields.check(
            "num_attention_heads",
            width / heads % 2 == 0,
            "must give heads of an even size, for rotary positions",
        )?;
        let positions = fields.count_or("max_position_embeddings", 8192)?;
        Ok(Self {
            vocab: fields.count("vocab_size")?,
            inner: fields.count("intermediate_size")?,
            windows: windows(fields)?,
            ropes: Rope::read_by_layer(fields, positions, OLD_BASES)?,
            eps: fields.positive("norm_eps", Some(1e-5))?,
            norm_bias: fields.or("norm_bias", false)?,
            attention_bias: fields.or("attention_bias", false)?,
            inner_bias: fields.or("mlp_bias", false)?,
            embedding_dropout: fields.or("embedding_dropout", 0.0)?,
            attention_dropout: fields.or("attention_dropout", 0.0)?,
            inner_dropout: fields.or("mlp_dropout", 0.0)?,
            init_std: fields.or("initializer_range", 0.02)?,
            width,
            heads,
            positions,
            activation,
        })
    }
}

/// Sliding window of each layer: `layer_types` (transformers 5), or every n-th layer without one (before).
fn windows(fields: &Fields) -> Result<Vec<Option<i64>>> {
    let layers = fields.num_layers()?;
    // a token sees as far as half the number, inclusive
    let window = fields.count_or("local_attention", 128)? / 2 + 1;
    let every = fields.count_or("global_attn_every_n_layers", 3)?;
    let full = fields.full_layers(layers)?;
    let is_full = |layer: i64| full.as_ref().map_or(layer % every == 0, |full| full[layer as usize]);
    Ok((0..layers).map(|layer| Some(window).filter(|_| !is_full(layer))).collect())
}

pub struct ModernBert {
    shape: ModernBertShape,
    embeddings: Tensor,
    embedding_norm: LayerNorm,
    layers: Vec<Layer>,
    norm: LayerNorm,
}

struct Layer {
    window: Option<i64>,
    /// None in the first layer: its input is normalised with the embeddings.
    attention_norm: Option<LayerNorm>,
    qkv: Projection,
    output: Projection,
    inner_norm: LayerNorm,
    /// The part that is activated, then the one that multiplies it.
    widen: Projection,
    narrow: Projection,
}

/// Shared by all layers of one kind.
struct LayerContext<'a> {
    plan: AttentionPlan<'a>,
    angles: Angles,
}

impl ModernBert {
    /// Name parts of unused tensors in a hub folder: task heads.
    pub(super) const LEFTOVERS: [&str; 3] = ["head.", "decoder.", "classifier."];

    pub(super) fn build(shape: &ModernBertShape, parameters: &mut Parameters) -> Result<Self> {
        let prefix = parameters.prefix(&["", PREFIX], "embeddings.tok_embeddings.weight")?;
        let (rows, std) = ([shape.vocab, shape.width], Init::Normal(shape.init_std));
        let embeddings = parameters.tensor(&format!("{prefix}embeddings.tok_embeddings.weight"), &rows, std)?;
        let embedding_norm = shape.norm(&format!("{prefix}embeddings.norm"), parameters)?;
        let layers = (0..shape.windows.len())
            .map(|at| Layer::build(&format!("{prefix}layers.{at}"), at, shape, parameters))
            .collect::<Result<_>>()?;
        let norm = shape.norm(&format!("{prefix}final_norm"), parameters)?;
        Ok(Self { shape: shape.clone(), embeddings, embedding_norm, layers, norm })
    }

    /// Hidden states, shaped as the tokens plus a width.
    pub(super) fn forward(&self, tokens: &Tokens, pass: &ForwardPass) -> Result<Tensor> {
        let embedded = Tensor::embedding(&self.embeddings, &tokens.ids, -1, false, false);
        let mut x = dropped(self.embedding_norm.forward(&embedded), self.shape.embedding_dropout, pass);
        let head = self.shape.width / self.shape.heads;
        let context = |window, rope: &Rope| LayerContext {
            plan: tokens.plan(Visibility { causal: false, window }),
            angles: rope.angles(&tokens.positions, head, x.kind()),
        };
        let full = context(None, &self.shape.ropes.full);
        let sliding = self.shape.windows.iter().flatten().next().map(|&w| context(Some(w), &self.shape.ropes.sliding));
        let depth = self.layers.len().saturating_sub(pass.skip_layers);
        for (at, layer) in self.layers[..depth].iter().enumerate() {
            let shared = if layer.window.is_some() { sliding.as_ref().unwrap_or(&full) } else { &full };
            let attended = layer.attend(&x, &self.shape, shared, pass)?;
            let [attended, kept] = [attended, x].map(|x| pass.needed_rows(x, at, depth));
            let output = layer.output.apply(&attended, PostOp::Nothing, pass.train)?;
            x = kept + dropped(output, self.shape.attention_dropout, pass);
            x = &x + layer.feed_forward(&x, &self.shape, pass)?;
        }
        Ok(if pass.skip_layers == 0 { self.norm.forward(&x) } else { x })
    }

    pub(super) fn projections(&mut self) -> impl Iterator<Item = &mut Projection> {
        self.layers.iter_mut().flat_map(|l| [&mut l.qkv, &mut l.output, &mut l.widen, &mut l.narrow])
    }
}

fn dropped(x: Tensor, dropout: f64, pass: &ForwardPass) -> Tensor {
    if pass.train { x.dropout(dropout, true) } else { x }
}

impl ModernBertShape {
    fn norm(&self, name: &str, parameters: &mut Parameters) -> Result<LayerNorm> {
        if self.norm_bias {
            LayerNorm::build(name, self.width, self.eps, parameters)
        } else {
            LayerNorm::build_unbiased(name, self.width, self.eps, parameters)
        }
    }
}

impl Layer {
    fn build(at: &str, layer: usize, shape: &ModernBertShape, parameters: &mut Parameters) -> Result<Self> {
        let (width, inner, std) = (shape.width, shape.inner, shape.init_std);
        let mut linear = |name: &str, inputs, outputs, bias| -> Result<Projection> {
            let name = &format!("{at}.{name}");
            let linear = Linear::build(LinearSpec { name, inputs, outputs, bias, std }, parameters)?;
            Ok(Projection::of(vec![linear]))
        };
        let (qkv, output) = (
            linear("attn.Wqkv", width, 3 * width, shape.attention_bias)?,
            linear("attn.Wo", width, width, shape.attention_bias)?,
        );
        let (widen, narrow) =
            (linear("mlp.Wi", width, 2 * inner, shape.inner_bias)?, linear("mlp.Wo", inner, width, shape.inner_bias)?);
        let mut norm = |name: &str| shape.norm(&format!("{at}.{name}"), parameters);
        let attention_norm = if layer == 0 { None } else { Some(norm("attn_norm")?) };
        Ok(Self {
            window: shape.windows[layer],
            attention_norm,
            inner_norm: norm("mlp_norm")?,
            qkv,
            output,
            widen,
            narrow,
        })
    }

    /// Attention, before the projection of its output.
    fn attend(&self, x: &Tensor, shape: &ModernBertShape, shared: &LayerContext, pass: &ForwardPass) -> Result<Tensor> {
        let inputs = self.attention_norm.as_ref().map_or_else(|| x.shallow_clone(), |norm| norm.forward(x));
        let parts = self.qkv.apply(&inputs, PostOp::Nothing, pass.train)?.chunk(3, -1);
        let [q, k, v] = [0, 1, 2].map(|part| parts[part].unflatten(-1, [shape.heads, -1]));
        let softmax = Softmax::plain(if pass.train { shape.attention_dropout } else { 0.0 });
        let [q, k] = [q, k].map(|x| shared.angles.rotate_exactly(&x));
        attend(&q, &k, &v, &shared.plan, softmax)
    }

    fn feed_forward(&self, x: &Tensor, shape: &ModernBertShape, pass: &ForwardPass) -> Result<Tensor> {
        let inner = self.widen.apply(&self.inner_norm.forward(x), PostOp::Nothing, pass.train)?.chunk(2, -1);
        let inner = dropped(activate(&inner[0], shape.activation) * &inner[1], shape.inner_dropout, pass);
        self.narrow.apply(&inner, PostOp::Nothing, pass.train)
    }
}
