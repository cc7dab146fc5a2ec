//! What it takes to read one text by soft tokens (`encoder.refine`): operations, and bytes that are kept of it meanwhile.

use super::load::{Chunk, seen};
use super::model::Model;
use crate::encoder::Outline;

/// One text of `tokens`, with `steps` soft tokens behind it; none: one plain pass.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub tokens: u64,
    pub steps: u64,
    /// Keys and values are kept; otherwise all is read again for each soft token.
    pub cached: bool,
}

impl Reading {
    /// Operations of products, in one pass without gradients.
    pub fn flops(&self, outline: &Outline) -> f64 {
        let model = Model::new(outline, None, (false, false, false));
        let pass = |tokens: u64, seen: f64| {
            model.forward(&Chunk { texts: 0.0, tokens: tokens as f64, seen, lengths: 1.0 }).flops
        };
        let whole = |tokens: u64| pass(tokens, seen(outline, tokens));
        // the scores of all words, and the mixture of them
        let word = 4.0 * (outline.sizes.vocab * outline.sizes.width) as f64;
        let soft = |step: u64| match (self.cached, self.tokens + step) {
            (true, length) => pass(1, (length * outline.sizes.num_layers()) as f64),
            (false, length) => whole(length),
        };
        whole(self.tokens) + (1..=self.steps).map(|step| word + soft(step)).sum::<f64>()
    }

    /// Keys and values, in numbers of so many bytes.
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
        let of = |steps, cached| Reading { tokens: 3, steps, cached }.flops(&tiny);
        let (matrices, pair) = (2.0 * 2.0 * 832.0, 2.0 * 4.0 * 8.0);
        let plain = 3.0 * matrices + 6.0 * pair;
        assert_eq!(of(0, true), plain);
        let words = 2.0 * 4.0 * 80.0;
        assert_eq!(of(2, true), plain + words + 2.0 * matrices + (4.0 + 5.0) * pair);
        assert_eq!(of(2, false), plain + words + (4.0 + 5.0) * matrices + (10.0 + 15.0) * pair);
        let kept = |steps, cached| Reading { tokens: 3, steps, cached }.kept_bytes(&tiny, 4);
        assert_eq!((kept(2, true), kept(2, false), kept(0, true)), (2 * 5 * 2 * 8 * 4, 0, 0));
    }

    /// GIRCSE's Table 6, on the models that it names: five cached soft tokens behind 512 are nearly free.
    #[test]
    fn five_cached_soft_tokens_are_nearly_free() {
        for (name, json) in crate::plan::KNOWN_WRITERS {
            let model = outline(json);
            let of = |steps, cached| Reading { tokens: 512, steps, cached }.flops(&model);
            let (cached, again) = (of(5, true) / of(0, true), of(5, false) / of(0, true));
            assert!(cached < 1.1 && again > 5.5, "{name}: {cached} cached, {again} without");
        }
    }
}
