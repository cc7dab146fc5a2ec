//! Cost of encoding one text with soft tokens (`encoder.refine`): operations, and bytes kept meanwhile.

use super::load::{Chunk, seen};
use super::model::ModelCost;
use souk_nn::encoder::Outline;

/// Decoders of the papers' sizes, as in their `config.json`, for operation counts.
pub const KNOWN_WRITERS: [(&str, &str); 2] = [
    (
        "Qwen2.5-0.5B",
        r#"{"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768,
        "tie_word_embeddings": true}"#,
    ),
    (
        "Qwen2.5-7B",
        r#"{"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 32768,
        "tie_word_embeddings": false}"#,
    ),
];

/// One text of `tokens` with `steps` soft tokens; no steps: one plain pass.
#[derive(Clone, Copy, Debug)]
pub struct ReadingCost {
    /// Tokens of the text.
    pub tokens: u64,
    /// Soft tokens.
    pub steps: u64,
    /// True if keys and values are cached; otherwise every soft token re-encodes the whole text.
    pub cached: bool,
}

impl ReadingCost {
    /// Operations of matrix products, in one pass without gradients.
    pub fn flops(&self, outline: &Outline) -> f64 {
        let model = ModelCost::new(outline, None, false, false, false);
        let pass = |tokens: u64, seen: f64| {
            model.forward(&Chunk { texts: 0.0, tokens: tokens as f64, seen, lengths: 1.0 }).flops
        };
        let whole = |tokens: u64| pass(tokens, seen(outline, tokens));
        // scores of the whole vocabulary, and their mixture
        let word = 4.0 * (outline.sizes.vocab * outline.sizes.width) as f64;
        let soft = |step: u64| match (self.cached, self.tokens + step) {
            (true, length) => pass(1, (length * outline.sizes.num_layers()) as f64),
            (false, length) => whole(length),
        };
        whole(self.tokens) + (1..=self.steps).map(|step| word + soft(step)).sum::<f64>()
    }

    /// Memory of keys and values, with so many bytes per number.
    pub fn kept_bytes(&self, outline: &Outline, number: u64) -> u64 {
        let sizes = &outline.sizes;
        let slots = if self.cached && self.steps > 0 { self.tokens + self.steps } else { 0 };
        2 * slots * sizes.num_layers() * sizes.kv_heads * sizes.head * number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::outline;

    /// Two layers of 8 with one head, 24 inside, 10 words: 4·64 + 3·192 = 832 entries each.
    #[test]
    fn a_pencil_finds_the_same() {
        let tiny = outline(
            r#"{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1,
            "intermediate_size": 24, "vocab_size": 10, "max_position_embeddings": 64, "tie_word_embeddings": true}"#,
        );
        let of = |steps, cached| ReadingCost { tokens: 3, steps, cached }.flops(&tiny);
        let (matrices, pair) = (2.0 * 2.0 * 832.0, 2.0 * 4.0 * 8.0);
        let plain = 3.0 * matrices + 6.0 * pair;
        assert_eq!(of(0, true), plain);
        let words = 2.0 * 4.0 * 80.0;
        assert_eq!(of(2, true), plain + words + 2.0 * matrices + (4.0 + 5.0) * pair);
        assert_eq!(of(2, false), plain + words + (4.0 + 5.0) * matrices + (10.0 + 15.0) * pair);
        let kept = |steps, cached| ReadingCost { tokens: 3, steps, cached }.kept_bytes(&tiny, 4);
        assert_eq!((kept(2, true), kept(2, false), kept(0, true)), (2 * 5 * 2 * 8 * 4, 0, 0));
    }

    /// GIRCSE's Table 6 has 1.01 with a cache and 6.02 without, of 7B.
    #[test]
    fn five_soft_tokens_cost_what_the_paper_says() {
        let [small, large] = KNOWN_WRITERS.map(|(_, json)| {
            let model = outline(json);
            let of = |steps, cached| ReadingCost { tokens: 512, steps, cached }.flops(&model);
            (of(5, true) / of(0, true), of(5, false) / of(0, true))
        });
        assert!((large.0 - 1.01).abs() < 0.005 && (large.1 - 6.02).abs() < 0.02, "{large:?}");
        assert!(small.0 < 1.1, "{small:?}: more of a small model is its words");
    }
}
