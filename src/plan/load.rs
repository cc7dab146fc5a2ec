//! Texts that one process encodes per batch, split into chunks as `train` does. Takes lengths, returns
//! counts; never sees a text.

use serde::Serialize;

use souk_io::error::{Error, Result};
use souk_nn::encoder::Outline;

/// Text lengths of a shop.
#[derive(Clone, Debug)]
pub struct TextLengths {
    /// Sampled token counts of queries and items, ascending.
    queries: Vec<u64>,
    items: Vec<u64>,
    /// Distinct items per pair of a batch.
    pub distinct: f64,
    /// Number of training pairs.
    pub pairs: Option<u64>,
}

impl TextLengths {
    /// From samples of token counts; an error if a sample is empty or a text has no tokens.
    pub fn new(mut queries: Vec<u64>, mut items: Vec<u64>, distinct: f64, pairs: Option<u64>) -> Result<Self> {
        if queries.iter().chain(&items).any(|tokens| *tokens == 0) || queries.is_empty() || items.is_empty() {
            return Err(Error::input("a text has at least 1 token: use how many a query and an item have"));
        }
        queries.sort_unstable();
        items.sort_unstable();
        Ok(Self { queries, items, distinct, pairs })
    }

    /// Mean tokens of a query and of an item.
    pub fn mean_tokens(&self) -> [f64; 2] {
        [&self.queries, &self.items].map(|all| all.iter().sum::<u64>() as f64 / all.len() as f64)
    }
}

/// Texts that go through the model together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    pub texts: f64,
    /// Tokens of all texts.
    pub tokens: f64,
    /// Token pairs that attention computes, summed over layers.
    pub seen: f64,
    /// Number of different lengths; attention is launched once for each.
    pub lengths: f64,
}

/// Texts that one process encodes per batch.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Load {
    /// Queries.
    pub queries: u64,
    /// Items.
    pub items: u64,
    /// Tokens of all texts.
    pub tokens: f64,
    /// Forward passes.
    #[serde(skip)]
    pub chunks: Vec<Chunk>,
    /// Number of forward passes.
    pub num_chunks: usize,
    /// The first chunks run once, and their graphs are kept; the others run twice.
    pub kept: usize,
    /// Tokens whose graphs are kept.
    pub kept_tokens: f64,
}

impl Load {
    /// Load of the process with the most texts.
    pub fn of(texts: &TextLengths, outline: &Outline, counts: [u64; 2], chunk: usize, keep: usize) -> Self {
        let [queries, items] = counts;
        let mut lengths = spread(&texts.queries, queries);
        lengths.extend(spread(&texts.items, items));
        lengths.sort_unstable();
        let mut load = Self { queries, items, ..Self::default() };
        let mut last = 0;
        for length in lengths {
            let fits = load.chunks.last().is_some_and(|open| open.tokens + length as f64 <= chunk as f64);
            if !fits {
                load.chunks.push(Chunk::default());
                last = 0;
            }
            let open = load.chunks.last_mut().expect("one was pushed");
            open.texts += 1.0;
            open.tokens += length as f64;
            open.seen += seen(outline, length);
            open.lengths += f64::from(u8::from(length != last));
            last = length;
        }
        for chunk in &load.chunks {
            load.tokens += chunk.tokens;
            if load.tokens <= keep as f64 {
                load.kept += 1;
                load.kept_tokens = load.tokens;
            }
        }
        load.num_chunks = load.chunks.len();
        load
    }

    /// Chunks whose graphs are kept, and those that run twice.
    pub fn split(&self) -> (&[Chunk], &[Chunk]) {
        self.chunks.split_at(self.kept)
    }
}

/// Draws lengths with the distribution of the sample.
fn spread(sample: &[u64], count: u64) -> Vec<u64> {
    let place = |i: u64| ((i as f64 + 0.5) / count as f64 * sample.len() as f64) as usize;
    (0..count).map(|i| sample[place(i).min(sample.len() - 1)]).collect()
}

/// Token pairs of one text, over all layers. A causal kernel skips half of them; one with a sliding-window mask computes all.
/// computes all.
pub(super) fn seen(outline: &Outline, length: u64) -> f64 {
    let square = (length * length) as f64;
    let depth = outline.sizes.windows.len() - outline.skip_layers as usize;
    let layer = |window: &Option<u64>| {
        let masked = window.is_some_and(|window| window < length);
        if outline.causal && !masked { (square + length as f64) / 2.0 } else { square }
    };
    outline.sizes.windows[..depth].iter().map(layer).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::bert_base;

    #[test]
    fn chunks_are_filled_in_order_of_length_and_the_first_are_kept() {
        let texts = TextLengths::new(vec![3], vec![10], 1.0, None).unwrap();
        // lengths 3 3 3 3 10 10, chunks of at most 16: [3 3 3 3], [10], [10]
        let load = Load::of(&texts, &bert_base(), [4, 2], 16, 25);
        let tokens: Vec<f64> = load.chunks.iter().map(|chunk| chunk.tokens).collect();
        assert_eq!((tokens, load.kept, load.kept_tokens), (vec![12.0, 10.0, 10.0], 2, 22.0));
        assert_eq!((load.tokens, load.chunks[0].lengths, load.chunks[0].texts), (32.0, 1.0, 4.0));
        assert_eq!(load.chunks[0].seen, 12.0 * 4.0 * 9.0);
        assert_eq!(load.split().1.len(), 1);
    }

    #[test]
    fn a_sample_is_stretched_to_any_number() {
        assert_eq!(spread(&[1, 2, 3], 6), [1, 1, 2, 2, 3, 3]);
        assert_eq!(spread(&[1, 2, 3], 1), [2]);
        assert_eq!(spread(&[7], 0), [0; 0]);
        assert!(TextLengths::new(vec![0], vec![1], 1.0, None).is_err());
    }
}
