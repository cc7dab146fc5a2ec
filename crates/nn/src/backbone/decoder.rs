//! Decoder for Qwen2/2.5, Qwen3, Llama 3, Mistral and Gemma 3: pre-norm layers, rotary positions, grouped-query attention, gated
//! feed-forward. With bidirectional attention, as in EmbeddingGemma, it is an encoder. The families differ only in `FAMILIES` and
//! in their `config.json`.

use serde_json::Value;
use souk_native::Activation;
use tch::{Device, Tensor};

use super::ForwardPass;
use super::attention::{Softmax, Visibility, attend};
use super::fields::{CAUSAL, Fields};
use super::kv::KvCache;
use super::linear::{Linear, LinearSpec, Matrix, PostOp, Projection, RmsNorm, RmsSettings, activate, activation_of};
use super::rope::{Angles, LayerRopes, Rope};
use super::tokens::Tokens;
use super::weights::{Init, Parameters};
use souk_io::error::{Error, Result};

/// Differences of a family from plain Llama that its `config.json` does not state.
pub(super) struct Family {
    pub model_type: &'static str,
    /// Start of its classes' names in transformers.
    class: &'static str,
    /// Bias on query, key and value; `None`: the field `attention_bias` decides, also for the output.
    qkv_bias: Option<bool>,
    /// Norm over each head of query and key.
    head_norm: bool,
    /// Layers with a sliding window.
    window: WindowRule,
    default_eps: f64,
    default_head: Option<i64>,
    /// Gemma's additions: scaled embeddings, norms that multiply by 1 + weight and also follow each sublayer, other rotations in
    /// layers with a sliding window.
    gemma: bool,
}

enum WindowRule {
    Never,
    Always,
    /// `use_sliding_window` turns it on, for layers from `max_window_layers`.
    Upper,
    /// All but every `sliding_window_pattern`-th layer.
    Pattern,
}

/// Prefix of the tensors in a model with a head.
pub(super) const PREFIX: &str = "model.";

pub(super) const FAMILIES: [Family; 5] = [
    Family {
        model_type: "qwen2",
        class: "Qwen2",
        qkv_bias: Some(true),
        head_norm: false,
        window: WindowRule::Upper,
        default_eps: 1e-6,
        default_head: None,
        gemma: false,
    },
    Family {
        model_type: "qwen3",
        class: "Qwen3",
        qkv_bias: None,
        head_norm: true,
        window: WindowRule::Upper,
        default_eps: 1e-6,
        default_head: Some(128),
        gemma: false,
    },
    Family {
        model_type: "llama",
        class: "Llama",
        qkv_bias: None,
        head_norm: false,
        window: WindowRule::Never,
        default_eps: 1e-6,
        default_head: None,
        gemma: false,
    },
    Family {
        model_type: "mistral",
        class: "Mistral",
        qkv_bias: Some(false),
        head_norm: false,
        window: WindowRule::Always,
        default_eps: 1e-6,
        default_head: None,
        gemma: false,
    },
    Family {
        model_type: "gemma3_text",
        class: "Gemma3Text",
        qkv_bias: None,
        head_norm: true,
        window: WindowRule::Pattern,
        default_eps: 1e-6,
        default_head: Some(256),
        gemma: true,
    },
];

/// Gemma's field for attention to later tokens, too.
const BIDIRECTIONAL: &str = "use_bidirectional_attention";
/// Fields of the rotations' bases of a Gemma before transformers 5, and their defaults.
const OLD_GEMMA_BASES: [(&str, f64); 2] = [("rope_theta", 1_000_000.0), ("rope_local_base_freq", 10_000.0)];

/// Sizes and settings of a decoder, from `config.json`.
#[derive(Clone, Debug)]
pub struct DecoderShape {
    pub(super) class: &'static str,
    pub vocab: i64,
    pub width: i64,
    pub heads: i64,
    pub kv_heads: i64,
    pub head: i64,
    pub inner: i64,
    pub positions: i64,
    /// Sliding window of each layer.
    pub windows: Vec<Option<i64>>,
    ropes: LayerRopes,
    norm: RmsSettings,
    pub(super) qkv_bias: bool,
    pub(super) output_bias: bool,
    pub(super) inner_bias: bool,
    pub(super) head_norm: bool,
    pub(super) gemma: bool,
    /// Factor of the scores; the root of the head's width divides them if not set.
    scale: Option<f64>,
    pub(super) tied: bool,
    pub(super) attention_dropout: f64,
    /// Whether each token attends only to itself and earlier ones.
    pub(super) causal: bool,
    activation: Activation,
    init_std: f64,
}

impl DecoderShape {
    pub(super) fn read(family: &Family, fields: &Fields) -> Result<Self> {
        let (field, usual) =
            if family.gemma { ("hidden_activation", "gelu_pytorch_tanh") } else { ("hidden_act", "silu") };
        let name: String = fields.or(field, usual.into())?;
        let unknown = || fields.error(field, &format!("is `{name}`: use silu, gelu, gelu_new or relu"));
        let activation = activation_of(&name).ok_or_else(unknown)?;
        fields.expect("pretraining_tp", 1)?;
        fields.expect("use_mrope", false)?;
        let (width, heads) = (fields.count("hidden_size")?, fields.count("num_attention_heads")?);
        let head = fields.count_or("head_dim", family.default_head.unwrap_or(width / heads))?;
        let kv_heads = fields.count_or("num_key_value_heads", heads)?;
        fields.check("num_key_value_heads", heads % kv_heads == 0, "must divide num_attention_heads")?;
        fields.check("head_dim", head > 0 && head % 2 == 0, "must be even, for rotary positions")?;
        let scale = if family.gemma { Some(read_scale(fields)?) } else { None };
        let positions = fields.count("max_position_embeddings")?;
        let named_bias = fields.or("attention_bias", false)?;
        Ok(Self {
            class: family.class,
            vocab: fields.count("vocab_size")?,
            causal: family.is_causal(fields)?,
            inner: fields.count("intermediate_size")?,
            positions,
            windows: windows(family, fields)?,
            ropes: if family.gemma {
                Rope::read_by_layer(fields, positions, OLD_GEMMA_BASES)?
            } else {
                LayerRopes::same(Rope::read(fields, positions)?)
            },
            norm: RmsSettings {
                eps: fields.positive("rms_norm_eps", Some(family.default_eps))?,
                plus_one: family.gemma,
            },
            qkv_bias: family.qkv_bias.unwrap_or(named_bias),
            output_bias: family.qkv_bias.is_none() && named_bias,
            inner_bias: fields.or("mlp_bias", false)?,
            head_norm: family.head_norm,
            gemma: family.gemma,
            scale,
            tied: fields.or("tie_word_embeddings", family.gemma)?,
            attention_dropout: fields.or("attention_dropout", 0.0)?,
            init_std: fields.or("initializer_range", 0.02)?,
            width,
            heads,
            kv_heads,
            head,
            activation,
        })
    }

    /// Field of `config.json` that sets whether attention is causal, and its value.
    pub(super) fn causal_field(&self, causal: bool) -> (&'static str, bool) {
        if self.gemma { (BIDIRECTIONAL, !causal) } else { (CAUSAL, causal) }
    }
}

impl Family {
    fn is_causal(&self, fields: &Fields) -> Result<bool> {
        if self.gemma { fields.or(BIDIRECTIONAL, false).map(|both: bool| !both) } else { fields.or(CAUSAL, true) }
    }
}

/// Reads a Gemma's factor of the scores, and the settings that only other Gemmas have.
fn read_scale(fields: &Fields) -> Result<f64> {
    for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
        fields.expect(field, Value::Null)?;
    }
    Ok(1.0 / fields.positive("query_pre_attn_scalar", Some(256.0))?.sqrt())
}

/// Sliding window of each layer, by the rules of transformers; `layer_types` must agree if present.
fn windows(family: &Family, fields: &Fields) -> Result<Vec<Option<i64>>> {
    let layers = fields.num_layers()?;
    // an absent field is not null: transformers then uses its default
    let size: Option<i64> = if fields.has("sliding_window") { fields.get("sliding_window")? } else { Some(4096) };
    fields.check("sliding_window", size.is_none_or(|w| w > 0), "must be positive")?;
    // Gemma's field holds the width of the whole window then
    let size = if family.gemma && !family.is_causal(fields)? { size.map(|w| w / 2 + 1) } else { size };
    let on: bool = fields.or("use_sliding_window", false)?;
    let from: i64 = fields.or("max_window_layers", 28)?;
    let every = if family.gemma { fields.count_or("sliding_window_pattern", 6)? } else { 1 };
    let full = fields.full_layers(layers)?;
    let slides = |layer: i64| match (&family.window, &full) {
        (WindowRule::Never, _) => false,
        (WindowRule::Upper, _) if !on => false,
        (_, Some(full)) => !full[layer as usize],
        (WindowRule::Upper, None) => layer >= from,
        (WindowRule::Always, None) => true,
        (WindowRule::Pattern, None) => (layer + 1) % every != 0,
    };
    Ok((0..layers).map(|layer| size.filter(|_| slides(layer))).collect())
}

pub struct Decoder {
    shape: DecoderShape,
    embeddings: Matrix,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: LmHead,
}

/// Language-model head: hidden states to next-token logits.
enum LmHead {
    /// Shares the matrix of the token embeddings.
    Tied,
    Untied(Matrix),
    /// Missing: the folder was saved without one.
    Missing,
}

struct Layer {
    window: Option<i64>,
    input_norm: RmsNorm,
    qkv: Projection,
    head_norms: Option<(RmsNorm, RmsNorm)>,
    output: Projection,
    /// Norm after the attention; Gemma only.
    output_norm: Option<RmsNorm>,
    inner_norm: RmsNorm,
    /// Norm after the feed-forward; Gemma only.
    down_norm: Option<RmsNorm>,
    gate_up: Projection,
    down: Projection,
}

impl Decoder {
    pub(super) const LEFTOVERS: [&str; 3] = ["lm_head.", "rotary_emb.inv_freq", "score."];

    pub(super) fn build(shape: &DecoderShape, parameters: &mut Parameters) -> Result<Self> {
        let prefix = parameters.prefix(&[PREFIX, ""], "embed_tokens.weight")?;
        let (std, rows) = (Init::Normal(shape.init_std), [shape.vocab, shape.width]);
        let embeddings = parameters.tensor(&format!("{prefix}embed_tokens.weight"), &rows, std)?;
        let layers = shape
            .windows
            .iter()
            .enumerate()
            .map(|(i, &window)| Layer::build(&format!("{prefix}layers.{i}"), window, shape, parameters))
            .collect::<Result<_>>()?;
        let norm = RmsNorm::build(&format!("{prefix}norm"), shape.width, shape.norm, parameters)?;
        let head = if shape.tied {
            LmHead::Tied
        } else if parameters.has("lm_head.weight") {
            LmHead::Untied(Matrix::of(parameters.tensor("lm_head.weight", &rows, std)?))
        } else {
            LmHead::Missing
        };
        Ok(Self { shape: shape.clone(), embeddings: Matrix::of(embeddings), layers, norm, head })
    }

    /// Hidden states, shaped as the tokens plus a width. With a cache, the tokens continue the cached ones.
    pub(super) fn forward(&self, tokens: &Tokens, pass: &mut ForwardPass) -> Result<Tensor> {
        let step = pass.cache.as_deref_mut().map(|cache| cache.extend(tokens)).transpose()?.flatten();
        let tokens = step.as_ref().unwrap_or(tokens);
        let plan = |window| tokens.plan(Visibility { causal: self.shape.causal, window });
        let full = plan(None);
        let sliding = self.shape.windows.iter().flatten().next().map(|&w| plan(Some(w)));
        let dropout = if pass.train { self.shape.attention_dropout } else { 0.0 };
        let softmax = Softmax { scale: self.shape.scale, dropout };
        let mut x = pass.input_embeddings.map_or_else(|| self.embed(&tokens.ids), Tensor::shallow_clone);
        let angles = |rope: &Rope| rope.angles(&tokens.positions, self.shape.head, x.kind());
        let full_angles = angles(&self.shape.ropes.full);
        let sliding_angles =
            (self.shape.ropes.sliding != self.shape.ropes.full).then(|| angles(&self.shape.ropes.sliding));
        let depth = self.layers.len().saturating_sub(pass.skip_layers);
        for (i, layer) in self.layers[..depth].iter().enumerate() {
            let cache = pass.cache.as_deref_mut().map(|cache| (cache, i));
            let slides = layer.window.is_some();
            let plan = if slides { sliding.as_ref().unwrap_or(&full) } else { &full };
            let angles = if slides { sliding_angles.as_ref().unwrap_or(&full_angles) } else { &full_angles };
            let context = HeadContext { shape: &self.shape, angles, train: pass.train };
            let (q, k, v) = layer.heads(&layer.input_norm.forward(&x), &context, cache)?;
            let context = attend(&q, &k, &v, plan, softmax)?;
            let [context, kept] = [context, x].map(|x| pass.needed_rows(x, i, depth));
            let output = layer.output.apply(&context, PostOp::Nothing, pass.train)?;
            x = &kept + normed(layer.output_norm.as_ref(), output);
            let inner = layer.gate_up.split(&layer.inner_norm.forward(&x), pass.train)?;
            let inner = activate(&inner[0], self.shape.activation) * &inner[1];
            x = &x + normed(layer.down_norm.as_ref(), layer.down.apply(&inner, PostOp::Nothing, pass.train)?);
        }
        Ok(if pass.skip_layers == 0 { self.norm.forward(&x) } else { x })
    }

    pub(super) fn device(&self) -> Device {
        self.embeddings.exact().device()
    }

    pub(super) fn embed(&self, ids: &Tensor) -> Tensor {
        self.scaled(Tensor::embedding(self.embeddings.exact(), ids, -1, false, false))
    }

    pub(super) fn embed_soft(&self, probabilities: &Tensor) -> Tensor {
        self.scaled(probabilities.matmul(&self.embeddings.factor()))
    }

    /// Multiplies embeddings by the root of their width in a Gemma, rounded as its weights are.
    fn scaled(&self, embeddings: Tensor) -> Tensor {
        if !self.shape.gemma {
            return embeddings;
        }
        let factor = Tensor::from((self.shape.width as f64).sqrt()).to_kind(self.embeddings.exact().kind());
        embeddings * factor.to_device(self.device())
    }

    /// Next-token logits `[.., vocab]` for hidden states.
    pub(super) fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(hidden.linear::<&Tensor>(&self.head_matrix()?.factor(), None))
    }

    pub(super) fn is_causal(&self) -> bool {
        self.shape.causal
    }

    fn head_matrix(&self) -> Result<&Matrix> {
        match &self.head {
            LmHead::Tied => Ok(&self.embeddings),
            LmHead::Untied(matrix) => Ok(matrix),
            LmHead::Missing => {
                let problem = "the model was saved without a language-model head: it cannot generate";
                Err(Error::config("config.json", problem))
            }
        }
    }

    pub(super) fn check_generates(&self) -> Result<()> {
        self.head_matrix().map(drop)
    }

    pub(super) fn projections(&mut self) -> impl Iterator<Item = &mut Projection> {
        self.layers.iter_mut().flat_map(|l| [&mut l.qkv, &mut l.output, &mut l.gate_up, &mut l.down])
    }
}

fn normed(norm: Option<&RmsNorm>, x: Tensor) -> Tensor {
    match norm {
        Some(norm) => norm.forward(&x),
        None => x,
    }
}

/// Inputs of a layer's attention heads that are the same for all layers.
struct HeadContext<'a> {
    shape: &'a DecoderShape,
    angles: &'a Angles,
    train: bool,
}

impl Layer {
    fn build(at: &str, window: Option<i64>, shape: &DecoderShape, parameters: &mut Parameters) -> Result<Self> {
        let (width, inner, std) = (shape.width, shape.inner, shape.init_std);
        let (queries, keys) = (shape.heads * shape.head, shape.kv_heads * shape.head);
        let mut linear = |name: &str, inputs, outputs, bias| {
            let name = &format!("{at}.{name}");
            Linear::build(LinearSpec { name, inputs, outputs, bias, std }, parameters)
        };
        let qkv = vec![
            linear("self_attn.q_proj", width, queries, shape.qkv_bias)?,
            linear("self_attn.k_proj", width, keys, shape.qkv_bias)?,
            linear("self_attn.v_proj", width, keys, shape.qkv_bias)?,
        ];
        let output = linear("self_attn.o_proj", queries, width, shape.output_bias)?;
        let gate_up = vec![
            linear("mlp.gate_proj", width, inner, shape.inner_bias)?,
            linear("mlp.up_proj", width, inner, shape.inner_bias)?,
        ];
        let down = linear("mlp.down_proj", inner, width, shape.inner_bias)?;
        let mut norm = |name: &str, size| RmsNorm::build(&format!("{at}.{name}"), size, shape.norm, parameters);
        let head_norms = if shape.head_norm {
            Some((norm("self_attn.q_norm", shape.head)?, norm("self_attn.k_norm", shape.head)?))
        } else {
            None
        };
        let after_attention = norm("post_attention_layernorm", width)?;
        let (output_norm, inner_norm, down_norm) = if shape.gemma {
            let (inner, down) = (norm("pre_feedforward_layernorm", width)?, norm("post_feedforward_layernorm", width)?);
            (Some(after_attention), inner, Some(down))
        } else {
            (None, after_attention, None)
        };
        Ok(Self {
            window,
            head_norms,
            input_norm: norm("input_layernorm", width)?,
            output_norm,
            inner_norm,
            down_norm,
            qkv: Projection::of(qkv),
            output: Projection::of(vec![output]),
            gate_up: Projection::of(gate_up),
            down: Projection::of(vec![down]),
        })
    }

    /// Query, key and value by head, rotated by position; cached keys and values come before the new ones. `cache` is the
    /// KV cache with this layer's index.
    fn heads(
        &self,
        x: &Tensor,
        context: &HeadContext,
        cache: Option<(&mut KvCache, usize)>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let parts = self.qkv.split(x, context.train)?;
        let heads = |x: &Tensor| x.unflatten(-1, [-1, context.shape.head]);
        let (mut q, mut k, v) = (heads(&parts[0]), heads(&parts[1]), heads(&parts[2]));
        if let Some((query_norm, key_norm)) = &self.head_norms {
            (q, k) = (query_norm.forward(&q), key_norm.forward(&k));
        }
        let (q, k) = (context.angles.rotate(&q), context.angles.rotate(&k));
        match cache {
            Some((cache, layer)) => {
                let (k, v) = cache.append(layer, k, v);
                Ok((q, k, v))
            }
            None => Ok((q, k, v)),
        }
    }
}
