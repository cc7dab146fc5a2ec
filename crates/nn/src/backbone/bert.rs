//! BERT and what shares its computation (MiniLM, RetroMAE-style encoders): learned positions, post-norm layers,
//! bidirectional attention. Takes tokens, gives each token's hidden state; the pooler and task heads of a hub folder
//! are carried along untouched.

use souk_native::Activation;
use tch::{Device, Kind, Tensor};

use super::Pass;
use super::architecture::num_layers;
use super::attention::{Visibility, attend};
use super::fields::Fields;
use super::linear::{LayerNorm, Linear, LinearSpec, Projection, Then, activation_of, feed_forward};
use super::tokens::{Layout, Tokens};
use super::weights::{Init, Parameters};
use souk_io::error::Result;

/// The sizes of one BERT, from `config.json`.
#[derive(Clone, Debug)]
pub struct BertShape {
    pub vocab: i64,
    pub width: i64,
    pub layers: i64,
    pub heads: i64,
    pub inner: i64,
    pub positions: i64,
    pub(super) token_types: i64,
    activation: Activation,
    eps: f64,
    pub(super) dropout: f64,
    pub(super) attention_dropout: f64,
    init_std: f64,
}

impl BertShape {
    pub(super) fn read(fields: &Fields) -> Result<Self> {
        let name: String = fields.or("hidden_act", "gelu".into())?;
        let unknown = || fields.error("hidden_act", &format!("is `{name}`: Souk computes gelu, gelu_new, relu, silu"));
        let activation = activation_of(&name).ok_or_else(unknown)?;
        fields.only("position_embedding_type", "absolute")?;
        fields.only("is_decoder", false)?;
        let shape = Self {
            vocab: fields.count("vocab_size")?,
            width: fields.count("hidden_size")?,
            layers: num_layers(fields)?,
            heads: fields.count("num_attention_heads")?,
            inner: fields.count("intermediate_size")?,
            positions: fields.count("max_position_embeddings")?,
            token_types: fields.count_or("type_vocab_size", 2)?,
            activation,
            eps: fields.positive("layer_norm_eps", Some(1e-12))?,
            dropout: fields.or("hidden_dropout_prob", 0.1)?,
            attention_dropout: fields.or("attention_probs_dropout_prob", 0.1)?,
            init_std: fields.or("initializer_range", 0.02)?,
        };
        let even = shape.width % shape.heads == 0;
        fields.check("num_attention_heads", even, "must divide hidden_size")?;
        Ok(shape)
    }
}

pub struct Bert {
    shape: BertShape,
    words: Tensor,
    places: Tensor,
    types: Tensor,
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
    /// Tensors of a hub folder that belong to other heads.
    pub(super) const LEFTOVERS: [&str; 5] = ["pooler.", "cls.", "position_ids", "classifier.", "lm_head."];

    pub(super) fn build(shape: &BertShape, parameters: &mut Parameters) -> Result<Self> {
        let prefix = parameters.prefix(&["", "bert."], "embeddings.word_embeddings.weight")?;
        let at = format!("{prefix}embeddings");
        let std = Init::Normal(shape.init_std);
        let words = parameters.tensor(&format!("{at}.word_embeddings.weight"), &[shape.vocab, shape.width], std)?;
        let rows = [shape.positions, shape.width];
        let places = parameters.tensor(&format!("{at}.position_embeddings.weight"), &rows, std)?;
        let rows = [shape.token_types, shape.width];
        let types = parameters.tensor(&format!("{at}.token_type_embeddings.weight"), &rows, std)?;
        let norm = LayerNorm::build(&format!("{at}.LayerNorm"), shape.width, shape.eps, parameters)?;
        let layers = (0..shape.layers)
            .map(|i| Layer::build(&format!("{prefix}encoder.layer.{i}"), shape, parameters))
            .collect::<Result<_>>()?;
        Ok(Self { shape: shape.clone(), words, places, types, norm, layers })
    }

    /// Hidden states, shaped as the tokens with a width added.
    pub(super) fn forward(&self, tokens: &Tokens, pass: &Pass) -> Result<Tensor> {
        let mut x = self.embed(tokens)?;
        if pass.train {
            x = x.dropout(self.shape.dropout, true);
        }
        let plan = tokens.plan(Visibility { causal: false, window: None });
        let depth = self.layers.len().saturating_sub(pass.skip_layers);
        for layer in &self.layers[..depth] {
            let parts = layer.qkv.split(&x, pass.train)?;
            let heads = |x: &Tensor| x.unflatten(-1, [self.shape.heads, -1]);
            let (q, k, v) = (heads(&parts[0]), heads(&parts[1]), heads(&parts[2]));
            let dropout = if pass.train { self.shape.attention_dropout } else { 0.0 };
            let context = attend(&q, &k, &v, &plan, dropout)?;
            let seen = self.close(&layer.output, &context, (&x, &layer.attention_norm), pass)?;
            x = self.feed_forward(layer, &seen, pass)?;
        }
        Ok(x)
    }

    fn embed(&self, tokens: &Tokens) -> Result<Tensor> {
        // a single text is all of type 0
        let types = match &tokens.types {
            Some(types) => Tensor::embedding(&self.types, types, -1, false, false),
            None => self.types.get(0),
        };
        let plain = self.words.kind() == Kind::Float && self.words.device() == Device::Cpu && tokens.types.is_none();
        if plain && !self.words.requires_grad() && matches!(tokens.layout, Layout::Packed { .. }) {
            let LayerNorm { weight, bias, eps } = &self.norm;
            let (word, position, token_type) = (&self.words, &self.places, Some(&types));
            let tables = souk_native::Embeddings { word, position, token_type, weight, bias, eps: *eps };
            return Ok(souk_native::embed_norm(&tokens.ids, &tokens.positions, &tables)?);
        }
        let words = Tensor::embedding(&self.words, &tokens.ids, -1, false, false);
        let places = Tensor::embedding(&self.places, &tokens.positions, -1, false, false);
        // the order of the sum is the authors': bf16 shows it
        Ok(self.norm.forward(&(words + types + places)))
    }

    fn feed_forward(&self, layer: &Layer, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        if !pass.train {
            let maps = (&layer.widen, self.shape.activation, &layer.narrow);
            return feed_forward(maps, x, Then::AddNorm { residual: x, norm: &layer.norm });
        }
        let wide = layer.widen.apply(x, Then::Activation(self.shape.activation), true)?;
        self.close(&layer.narrow, &wide, (x, &layer.norm), pass)
    }

    /// Ends a sublayer: project, drop out, add the residual, normalise.
    fn close(&self, map: &Projection, x: &Tensor, onto: (&Tensor, &LayerNorm), pass: &Pass) -> Result<Tensor> {
        let (residual, norm) = onto;
        if !pass.train {
            return map.apply(x, Then::AddNorm { residual, norm }, false);
        }
        let y = map.apply(x, Then::Nothing, true)?.dropout(self.shape.dropout, true);
        Ok(norm.forward(&(y + residual)))
    }

    pub(super) fn projections(&mut self) -> impl Iterator<Item = &mut Projection> {
        self.layers.iter_mut().flat_map(|l| [&mut l.qkv, &mut l.output, &mut l.widen, &mut l.narrow])
    }
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
