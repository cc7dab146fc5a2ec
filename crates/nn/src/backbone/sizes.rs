//! Sizes of an architecture as plain numbers, for counting parameters, operations and bytes. Never builds a tensor.

use super::architecture::{Architecture, Shape};
use super::bert::BertShape;
use super::decoder::DecoderShape;
use super::modernbert::ModernBertShape;

/// Sizes of a model's layers and embeddings.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Pre-norm layers with rotary positions and a gated feed-forward, as decoders have; else BERT's.
    pub pre_norm: bool,
    /// Name of the layers.
    layers: &'static str,
    pub width: u64,
    pub inner: u64,
    pub heads: u64,
    pub kv_heads: u64,
    /// Width of one head.
    pub head: u64,
    pub vocab: u64,
    /// Rows of the position and token-type embeddings.
    pub other_rows: u64,
    /// Entries of a relative attention bias, the same in all layers.
    pub relative_bias: u64,
    /// Sliding window of each layer.
    pub windows: Vec<Option<u64>>,
    /// Linear layers of each transformer layer.
    pub maps: Vec<LinearShape>,
    /// Parameters of the norms of one layer, and of those outside the layers.
    pub norms: u64,
    pub other_norms: u64,
    /// Whether query and key are normalised per head.
    pub head_norm: bool,
    /// Whether norms also follow attention and feed-forward.
    pub post_norm: bool,
    /// Whether the language-model head has its own matrix, which an encoder never uses.
    pub untied: bool,
}

/// Name and sizes of one linear layer.
#[derive(Clone, Debug)]
pub struct LinearShape {
    /// Name below the transformer layer's.
    pub name: &'static str,
    /// Linear layers of one group share their input.
    pub group: usize,
    pub inputs: u64,
    pub outputs: u64,
    pub bias: bool,
}

impl LinearShape {
    pub fn entries(&self) -> u64 {
        self.inputs * self.outputs + if self.bias { self.outputs } else { 0 }
    }
}

impl Architecture {
    pub fn sizes(&self) -> Sizes {
        match &self.shape {
            Shape::Bert(shape) => of_bert(shape),
            Shape::ModernBert(shape) => of_modernbert(shape),
            Shape::Decoder(shape) => of_decoder(shape),
        }
    }
}

impl Sizes {
    pub fn num_layers(&self) -> u64 {
        self.windows.len() as u64
    }

    /// Hub name of a linear layer, without the prefix that differs between folders.
    pub fn name(&self, layer: usize, map: &LinearShape) -> String {
        format!("{}.{layer}.{}", self.layers, map.name)
    }

    /// Parameters of all tensors, without an untied language-model head.
    pub fn num_parameters(&self) -> u64 {
        let layer = self.maps.iter().map(LinearShape::entries).sum::<u64>() + self.norms;
        let embeddings = (self.vocab + self.other_rows) * self.width;
        embeddings + self.relative_bias + self.num_layers() * layer + self.other_norms
    }
}

fn of_bert(shape: &BertShape) -> Sizes {
    let [width, inner, heads] = [shape.width, shape.inner, shape.heads].map(i64::unsigned_abs);
    let map = |name, group, inputs, outputs| LinearShape { name, group, inputs, outputs, bias: true };
    let names = &shape.family.names;
    Sizes {
        pre_norm: false,
        layers: "encoder.layer",
        width,
        inner,
        heads,
        kv_heads: heads,
        head: width / heads,
        vocab: shape.vocab.unsigned_abs(),
        other_rows: (shape.position_rows + shape.token_types).unsigned_abs(),
        relative_bias: (shape.bias_rows * shape.heads).unsigned_abs(),
        windows: vec![None; shape.layers as usize],
        maps: vec![
            map(names.query, 0, width, width),
            map(names.key, 0, width, width),
            map(names.value, 0, width, width),
            map(names.output, 1, width, width),
            map("intermediate.dense", 2, width, inner),
            map("output.dense", 3, inner, width),
        ],
        norms: 4 * width,
        other_norms: 2 * width,
        head_norm: false,
        post_norm: false,
        untied: false,
    }
}

fn of_modernbert(shape: &ModernBertShape) -> Sizes {
    let [width, inner, heads] = [shape.width, shape.inner, shape.heads].map(i64::unsigned_abs);
    let map = |name, group, inputs, outputs, bias| LinearShape { name, group, inputs, outputs, bias };
    let norm = if shape.norm_bias { 2 * width } else { width };
    Sizes {
        pre_norm: true,
        layers: "layers",
        width,
        inner,
        heads,
        kv_heads: heads,
        head: width / heads,
        vocab: shape.vocab.unsigned_abs(),
        other_rows: 0,
        relative_bias: 0,
        windows: shape.windows.iter().map(|window| window.map(i64::unsigned_abs)).collect(),
        maps: vec![
            map("attn.Wqkv", 0, width, 3 * width, shape.attention_bias),
            map("attn.Wo", 1, width, width, shape.attention_bias),
            map("mlp.Wi", 2, width, 2 * inner, shape.inner_bias),
            map("mlp.Wo", 3, inner, width, shape.inner_bias),
        ],
        norms: 2 * norm,
        // of the embeddings and at the end, but the first layer has only one
        other_norms: norm,
        head_norm: false,
        post_norm: false,
        untied: false,
    }
}

fn of_decoder(shape: &DecoderShape) -> Sizes {
    let [width, inner, heads] = [shape.width, shape.inner, shape.heads].map(i64::unsigned_abs);
    let [kv_heads, head] = [shape.kv_heads, shape.head].map(i64::unsigned_abs);
    let (queries, keys) = (heads * head, kv_heads * head);
    let map = |name, group, (inputs, outputs): (u64, u64), bias| LinearShape { name, group, inputs, outputs, bias };
    Sizes {
        pre_norm: true,
        layers: "layers",
        width,
        inner,
        heads,
        kv_heads,
        head,
        vocab: shape.vocab.unsigned_abs(),
        other_rows: 0,
        relative_bias: 0,
        windows: shape.windows.iter().map(|window| window.map(i64::unsigned_abs)).collect(),
        maps: vec![
            map("self_attn.q_proj", 0, (width, queries), shape.qkv_bias),
            map("self_attn.k_proj", 0, (width, keys), shape.qkv_bias),
            map("self_attn.v_proj", 0, (width, keys), shape.qkv_bias),
            map("self_attn.o_proj", 1, (queries, width), shape.output_bias),
            map("mlp.gate_proj", 2, (width, inner), shape.inner_bias),
            map("mlp.up_proj", 2, (width, inner), shape.inner_bias),
            map("mlp.down_proj", 3, (inner, width), shape.inner_bias),
        ],
        norms: width * if shape.gemma { 4 } else { 2 } + if shape.head_norm { 2 * head } else { 0 },
        other_norms: width,
        head_norm: shape.head_norm,
        post_norm: shape.gemma,
        untied: !shape.tied,
    }
}

#[cfg(test)]
mod tests {

    use tch::{Device, Kind};

    use super::*;
    use crate::backbone::Backbone;
    use crate::backbone::weights::Parameters;

    /// Every golden architecture, built from a seed, has the counted number of parameters under the same names.
    #[test]
    fn counts_equal_the_built_model() {
        let golden = souk_testing::golden("");
        let mut compared = 0;
        let encoders =
            ["bert", "bert_mlm", "roberta", "xlm_roberta", "mpnet", "modernbert", "modernbert_mlm", "minilm"];
        let decoders = ["llama", "llama3", "mistral", "qwen2", "qwen2_window", "qwen3", "gemma3", "gemma3_embedding"];
        for folder in encoders.into_iter().chain(decoders) {
            let path = golden.join(folder).join("config.json");
            if !path.exists() {
                continue;
            }
            let architecture = Architecture::open(&path, &[]).unwrap();
            let mut parameters = Parameters::seeded(1, Device::Cpu, Kind::Float);
            Backbone::build(&architecture, &mut parameters).unwrap();
            let built: usize = parameters.named().values().map(tch::Tensor::numel).sum();
            let sizes = architecture.sizes();
            let head = if sizes.untied { sizes.vocab * sizes.width } else { 0 };
            assert_eq!(sizes.num_parameters() + head, built as u64, "{folder}");
            for layer in 0..sizes.windows.len() {
                for map in &sizes.maps {
                    let name = format!("{}.weight", sizes.name(layer, map));
                    let found = parameters.named().iter().find(|(full, _)| full.ends_with(&name));
                    let shape = [map.outputs as i64, map.inputs as i64];
                    assert!(found.is_some_and(|(_, tensor)| tensor.size() == shape), "{folder}: {name}");
                }
            }
            compared += 1;
        }
        assert!(compared >= 7, "only {compared} golden folders were found");
    }
}
