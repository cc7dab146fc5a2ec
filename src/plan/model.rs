//! Cost of one pass through a model: operations, bytes moved, bytes kept for the backward pass. It follows `backbone` and what
//! libtorch's autograd saves, tensor by tensor.

use super::load::Chunk;
use souk_nn::backbone::LinearShape;
use souk_nn::backbone::lora::Lora;
use souk_nn::encoder::Outline;

/// Cost of a forward and a backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassCost {
    /// Operations of matrix products.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Operations that the host launches.
    pub starts: f64,
}

pub struct ModelCost<'a> {
    outline: &'a Outline,
    lora: Option<&'a Lora>,
    /// Whether activations are in bf16. On a CPU our own products round their factors, and everything between them stays in f32.
    bf16: bool,
    dropout: bool,
    /// Attention with dropout uses another kernel.
    gpu: bool,
    pub parameters: f64,
    pub trained: f64,
}

/// Operations of one layer, and of one length within it, as libtorch launches them.
const STARTS_BERT: f64 = 16.0;
const STARTS_PRE_NORM: f64 = 40.0;
const STARTS_LENGTH: f64 = 14.0;

impl<'a> ModelCost<'a> {
    pub fn new(outline: &'a Outline, lora: Option<&'a Lora>, bf16: bool, dropout: bool, gpu: bool) -> Self {
        let sizes = &outline.sizes;
        let dense: u64 = outline.dense.iter().map(|(i, o, bias)| i * o + if *bias { *o } else { 0 }).sum();
        let vocabulary = if outline.vocabulary { sizes.vocab * sizes.width } else { 0 };
        let mut model = Self { outline, lora, bf16: bf16 && gpu, dropout, gpu, parameters: 0.0, trained: 0.0 };
        let adapters = model.adapters(|lora, map| lora.rank as f64 * (map.inputs + map.outputs) as f64);
        model.parameters = (sizes.num_parameters() + dense + vocabulary) as f64 + adapters;
        model.trained = if lora.is_some() { adapters } else { model.parameters - vocabulary as f64 };
        model
    }

    /// Sum of `of` over all linear maps with an adapter.
    fn adapters(&self, of: impl Fn(&Lora, &LinearShape) -> f64) -> f64 {
        let Some(lora) = self.lora else { return 0.0 };
        let sizes = &self.outline.sizes;
        let layers = 0..sizes.windows.len();
        let of_layer = |layer: usize| {
            sizes.maps.iter().filter(|map| lora.matches(&sizes.name(layer, map))).map(|map| of(lora, map)).sum::<f64>()
        };
        layers.map(of_layer).sum()
    }

    fn depth(&self) -> f64 {
        (self.outline.sizes.num_layers() - self.outline.skip_layers) as f64
    }

    /// Elements of the matrices that every token is multiplied by.
    fn matrices(&self) -> f64 {
        self.depth() * self.outline.sizes.maps.iter().map(|map| (map.inputs * map.outputs) as f64).sum::<f64>()
    }

    /// Bytes per number in a product.
    fn low(&self) -> f64 {
        if self.bf16 { 2.0 } else { 4.0 }
    }

    fn embeddings(&self) -> f64 {
        (self.outline.sizes.vocab * self.outline.sizes.width) as f64
    }

    pub fn forward(&self, chunk: &Chunk) -> PassCost {
        let sizes = &self.outline.sizes;
        let adapters =
            2.0 * chunk.tokens * self.adapters(|lora, map| (lora.rank as u64 * (map.inputs + map.outputs)) as f64);
        let dense: f64 = self.outline.dense.iter().map(|(i, o, _)| 2.0 * chunk.texts * (i * o) as f64).sum();
        let attention = 4.0 * (sizes.heads * sizes.head) as f64 * chunk.seen;
        let casts = if self.bf16 { 6.0 } else { 0.0 };
        let starts = if sizes.pre_norm { STARTS_PRE_NORM } else { STARTS_BERT } + if self.bf16 { 7.0 } else { 0.0 };
        PassCost {
            flops: 2.0 * chunk.tokens * self.matrices() + attention + adapters + dense,
            bytes: chunk.tokens * self.depth() * self.moved() + self.matrices() * (self.low() + casts),
            starts: self.depth() * (starts + STARTS_LENGTH * chunk.lengths),
        }
    }

    pub fn backward(&self, chunk: &Chunk) -> PassCost {
        let sizes = &self.outline.sizes;
        let adapters =
            4.0 * chunk.tokens * self.adapters(|lora, map| (lora.rank as u64 * (map.inputs + map.outputs)) as f64);
        let dense: f64 = self.outline.dense.iter().map(|(i, o, _)| 4.0 * chunk.texts * (i * o) as f64).sum();
        // the backward pass recomputes scores from queries and keys
        let attention = 10.0 * (sizes.heads * sizes.head) as f64 * chunk.seen;
        let full = self.lora.is_none();
        let products = if full { 4.0 } else { 2.0 } * chunk.tokens * self.matrices();
        let casts = if self.bf16 { 6.0 } else { 0.0 };
        // gradients of matrices are written, then accumulated; the gradient of the embedding is as large as its table
        let gradients =
            if full { self.matrices() * (self.low() + casts + 12.0) + 16.0 * self.embeddings() } else { 0.0 };
        let pass = self.forward(chunk);
        PassCost {
            flops: products + attention + adapters + dense,
            bytes: 2.0 * chunk.tokens * self.depth() * self.moved() + self.matrices() * self.low() + gradients,
            starts: 2.0 * pass.starts,
        }
    }

    /// Bytes moved per token and layer in the forward pass.
    fn moved(&self) -> f64 {
        let sizes = &self.outline.sizes;
        let [w, i] = [sizes.width as f64, sizes.inner as f64];
        let [q, k] = [(sizes.heads * sizes.head) as f64, (sizes.kv_heads * sizes.head) as f64];
        let low = self.low();
        let cast = if self.bf16 { 6.0 } else { 0.0 };
        let attention = low * (2.0 * q + 2.0 * k + 2.0 * q);
        let products: f64 = sizes.maps.iter().map(|map| low * (map.inputs + map.outputs) as f64).sum();
        let add = (low + 8.0) * w;
        if !sizes.pre_norm {
            let norm = 8.0 * w;
            return products + attention + 2.0 * (add + norm) + 2.0 * i * low + 4.0 * w * cast;
        }
        let norm = 28.0;
        let turn = 40.0 * (q + k);
        let heads = if sizes.head_norm { norm * (q + k) } else { 0.0 };
        let norms = if sizes.post_norm { 4.0 } else { 2.0 };
        products + attention + 2.0 * add + norms * norm * w + turn + heads + 5.0 * i * low + 5.0 * w * cast
    }

    /// Bytes kept by the graph of a chunk.
    pub fn graph(&self, chunk: &Chunk) -> f64 {
        let sizes = &self.outline.sizes;
        let w = sizes.width as f64;
        let ends = if sizes.pre_norm { 8.0 * w } else { 4.0 * w } + 24.0;
        // on a CPU, our own layers and attention compute their masks again
        let masks = match self.dropout && !sizes.pre_norm {
            true if self.gpu => w * (1.0 + 2.0 * self.depth()),
            true => w,
            false => 0.0,
        };
        let texts = chunk.texts * 12.0 * self.outline.dimensions as f64;
        chunk.tokens * (self.depth() * self.saved() + ends + masks) + texts
    }

    /// Copies of the weights in bf16 kept by each graph.
    pub fn casts(&self) -> f64 {
        if self.bf16 { 2.0 * self.matrices() } else { 0.0 }
    }

    /// Bytes of the weights in panels of our own products, which train on a CPU. In bf16 there are two copies of half the size.
    pub fn panels(&self) -> f64 {
        if self.gpu { 0.0 } else { 4.0 * self.matrices() }
    }

    /// Bytes kept by autograd per token and layer.
    fn saved(&self) -> f64 {
        let sizes = &self.outline.sizes;
        let [w, i] = [sizes.width as f64, sizes.inner as f64];
        let [q, k] = [(sizes.heads * sizes.head) as f64, (sizes.kv_heads * sizes.head) as f64];
        let low = self.low();
        let full = self.lora.is_none();
        // measured: a linear map keeps its input with or without a gradient of its own
        let inputs = |group: usize| {
            let kept = sizes.maps.iter().filter(|map| map.group == group);
            let (count, width) = kept.fold((0.0, 0.0), |(count, _), map| (count + 1.0, map.inputs as f64));
            // each cast of an input is a separate copy
            width * if self.bf16 { 2.0 * count } else { 4.0 }
        };
        let inputs: f64 = (0..4).map(inputs).sum();
        // libtorch's attention keeps a copy of its result
        let fused = !self.gpu;
        let attention = low * (if fused { 1.0 } else { 2.0 } * q + 2.0 * k) + 4.0 * sizes.heads as f64;
        if !sizes.pre_norm {
            // a fused layer computes the activation and the norms' statistics again
            let (statistics, activated) = if fused { (0.0, 0.0) } else { (8.0, low * i) };
            return inputs + attention + 2.0 * (4.0 * w + statistics) + activated;
        }
        let norm = if full { 8.0 } else { 4.0 };
        let heads = if sizes.head_norm { (4.0 + low) * (q + k) } else { 0.0 };
        let norms = if sizes.post_norm { 4.0 } else { 2.0 };
        inputs + attention + norms * norm * w + heads + 3.0 * low * i
    }

    /// Bytes that a forward pass needs beside its graph, and a backward pass beside the gradients.
    pub fn working(&self, chunk: &Chunk) -> f64 {
        let sizes = &self.outline.sizes;
        let wide = if sizes.pre_norm { 3.0 } else { 2.0 };
        chunk.tokens * (wide * self.low() * sizes.inner as f64 + 12.0 * sizes.width as f64)
    }

    /// Bytes of temporary gradients before they are accumulated; the largest is that of the embedding.
    pub fn fresh_gradient(&self) -> f64 {
        let largest = self.outline.sizes.maps.iter().map(|map| (map.inputs * map.outputs) as f64).fold(0.0, f64::max);
        if self.lora.is_some() { 0.0 } else { 4.0 * self.embeddings().max(largest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{bert_base, outline};
    use souk_nn::encoder::Outline;

    fn chunk(texts: f64, length: f64, layers: f64) -> Chunk {
        Chunk { texts, tokens: texts * length, seen: layers * texts * length * length, lengths: 1.0 }
    }

    #[test]
    fn bert_base_costs_what_a_pencil_says() {
        let bert = bert_base();
        let model = ModelCost::new(&bert, None, false, false, false);
        // the published number of parameters, minus the pooler that an encoder does not compute: 768 * 768 + 768
        assert_eq!(model.parameters, 109_482_240.0 - 590_592.0);
        // 12 layers of 4 * 768^2 + 2 * 768 * 3072 entries, twice; attention over 128 tokens: 4 * 768 * 128 a layer
        let forward = model.forward(&chunk(1.0, 128.0, 12.0)).flops / 128.0;
        assert_eq!(forward, 2.0 * 84_934_656.0 + 12.0 * 4.0 * 768.0 * 128.0);
        let backward = model.backward(&chunk(1.0, 128.0, 12.0)).flops / 128.0;
        assert_eq!(backward, 4.0 * 84_934_656.0 + 12.0 * 10.0 * 768.0 * 128.0);
        // a token keeps 8 rows of 768 and one of 3072 in each layer, and 12 log-sums
        assert_eq!(model.saved(), 4.0 * (8.0 * 768.0 + 3072.0 + 12.0));
        assert_eq!(model.panels(), 4.0 * 84_934_656.0);
        // on a GPU, 9 rows of 768 and 2 of 3072, and 4 statistics
        let model = ModelCost::new(&bert, None, false, false, true);
        assert_eq!(model.saved(), 4.0 * (9.0 * 768.0 + 2.0 * 3072.0 + 12.0 + 4.0));
        assert_eq!(model.panels(), 0.0);
        assert_eq!(model.moved(), 4.0 * (26.0 * 768.0 + 4.0 * 3072.0));
    }

    #[test]
    fn an_adapter_trains_little_and_saves_a_third_of_the_products() {
        let lora = Lora { rank: 8, alpha: 16.0, dropout: 0.0, targets: vec!["query".into()], rank_stabilized: false };
        let bert = bert_base();
        let [full, adapted] = [None, Some(&lora)].map(|lora| ModelCost::new(&bert, lora, false, false, false));
        assert_eq!(adapted.trained, 12.0 * 8.0 * 2.0 * 768.0);
        assert_eq!(adapted.parameters, full.parameters + adapted.trained);
        let chunk = chunk(1.0, 16.0, 12.0);
        let spared = full.backward(&chunk).flops - adapted.backward(&chunk).flops;
        assert_eq!(spared, 16.0 * (2.0 * 84_934_656.0 - 4.0 * adapted.trained));
        assert_eq!((adapted.graph(&chunk), adapted.fresh_gradient()), (full.graph(&chunk), 0.0));
    }

    #[test]
    fn a_decoder_counts_groups_of_heads_and_gates() {
        let qwen: Outline = outline(
            r#"{"model_type": "qwen2", "hidden_size": 2048, "intermediate_size": 11008, "vocab_size": 151936,
            "num_attention_heads": 16, "num_key_value_heads": 2, "num_hidden_layers": 36,
            "max_position_embeddings": 32768, "tie_word_embeddings": true}"#,
        );
        let model = ModelCost::new(&qwen, None, true, false, true);
        // as in the model card: 3.09 B, of which 2.77 B without the embedding
        assert_eq!(model.parameters, 3_085_938_688.0);
        assert_eq!(model.matrices(), 36.0 * (2.0 * 2048.0 * 2048.0 + 2.0 * 2048.0 * 256.0 + 3.0 * 2048.0 * 11008.0));
        // in bf16: 3 + 2 casts of x, one of the context, one of the product; q, k, v, out; two norms in f32; gate, up, silu
        let rows = 2.0 * (5.0 * 2048.0 + 2048.0 + 11008.0) + 2.0 * (2.0 * 2048.0 + 2.0 * 256.0) + 64.0;
        assert_eq!(model.saved(), rows + 2.0 * 8.0 * 2048.0 + 6.0 * 11008.0);
    }
}
