//! Gradient caching: one process's texts in chunks of bounded tokens. Vectors come first; when the gradient of every
//! vector is known, chunk by chunk is run again with a graph and back-propagates its part. The graphs of the first chunks
//! are kept, as far as memory is given for them, and need no second run: with room for all this is plain training, with
//! room for none the batch is bounded by vectors alone, and the gradient is the same.

use std::sync::Arc;

use tch::{Kind, Tensor};

use super::TrainSettings;
use crate::encoder::{Encoder, Reader, Text};
use crate::error::Result;

/// How texts are cut into chunks, and what makes each run of a chunk the same.
#[derive(Clone, Copy)]
pub struct Chunking {
    /// Tokens of one chunk; a longer text is a chunk of its own.
    pub chunk_tokens: usize,
    /// Tokens whose graphs are kept.
    pub keep_tokens: usize,
    /// All steps of a refined vector, one after the other.
    pub steps: bool,
    pub dropout: bool,
    pub bf16: bool,
    /// Of this step on this process, for dropout.
    pub seed: u64,
}

impl Chunking {
    pub fn of(settings: &TrainSettings, bf16: bool, seed: u64) -> Self {
        let TrainSettings { chunk_tokens, keep_tokens, dropout, .. } = *settings;
        Self { chunk_tokens, keep_tokens, steps: false, dropout, bf16, seed }
    }
}

/// Texts whose vectors were computed and whose gradients are to come.
pub struct Share<'a> {
    encoder: &'a Encoder,
    texts: Vec<Text>,
    chunking: Chunking,
    chunks: Vec<Chunk>,
}

struct Chunk {
    /// Places in `texts`.
    places: Vec<usize>,
    /// The vectors with their graph, if it was kept.
    kept: Option<Tensor>,
}

impl<'a> Share<'a> {
    /// The vectors `[n, d]` of all texts, without a graph.
    pub fn encode(encoder: &'a Encoder, texts: Vec<Text>, chunking: Chunking) -> Result<(Self, Tensor)> {
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        let chunks = in_chunks(&lengths, chunking.chunk_tokens);
        let chunks = chunks.into_iter().map(|places| Chunk { places, kept: None }).collect();
        let mut share = Self { encoder, texts, chunking, chunks };
        let (mut parts, mut order, mut tokens) = (Vec::new(), Vec::new(), 0);
        for at in 0..share.chunks.len() {
            tokens += share.chunks[at].places.iter().map(|place| share.texts[*place].ids.len()).sum::<usize>();
            let keep = tokens <= share.chunking.keep_tokens;
            let vectors = {
                let _guard = (!keep).then(tch::no_grad_guard);
                share.run(at)?
            };
            parts.push(vectors.detach());
            order.extend(share.chunks[at].places.iter().map(|place| *place as i64));
            share.chunks[at].kept = keep.then_some(vectors);
        }
        if parts.is_empty() {
            let width = encoder.dimensions() * share.steps();
            let none = Tensor::zeros([0, width], (Kind::Float, encoder.device()));
            return Ok((share, none));
        }
        let back = Tensor::from_slice(&order).argsort(0, false).to_device(encoder.device());
        Ok((share, Tensor::cat(&parts, 0).index_select(0, &back)))
    }

    pub fn reader(&self) -> Arc<Reader> {
        self.encoder.reader()
    }

    /// Vectors of each text.
    pub fn steps(&self) -> i64 {
        if self.chunking.steps { self.encoder.steps() } else { 1 }
    }

    /// Back-propagates the gradient `[n, d]` of the vectors into the weights.
    pub fn backward(mut self, gradient: &Tensor) -> Result<()> {
        // those that were kept come first, to give their memory back
        for at in 0..self.chunks.len() {
            let vectors = match self.chunks[at].kept.take() {
                Some(vectors) => vectors,
                None => self.run(at)?,
            };
            let places: Vec<i64> = self.chunks[at].places.iter().map(|place| *place as i64).collect();
            let places = Tensor::from_slice(&places).to_device(gradient.device());
            let part = gradient.index_select(0, &places);
            (vectors * part).sum(Kind::Float).f_backward()?;
        }
        Ok(())
    }

    fn run(&self, at: usize) -> Result<Tensor> {
        let _autocast = autocast(self.chunking.bf16, self.encoder)?;
        if self.chunking.dropout {
            tch::manual_seed((self.chunking.seed.wrapping_add(at as u64)) as i64);
        }
        let texts: Vec<&Text> = self.chunks[at].places.iter().map(|place| &self.texts[*place]).collect();
        let vectors = match self.chunking.steps {
            true => self.encoder.encode_steps(&texts, self.chunking.dropout)?,
            false => self.encoder.encode_to_train(&texts, self.chunking.dropout)?,
        };
        Ok(vectors.to_kind(Kind::Float))
    }
}

/// While it lives, products on the encoder's device are in bf16, where that was asked for.
pub fn autocast(bf16: bool, encoder: &Encoder) -> Result<Option<souk_native::Autocast>> {
    Ok(bf16.then(|| souk_native::Autocast::start(encoder.device())).transpose()?)
}

/// Places of texts by their lengths, neighbours in length together, so that their attention is one product.
pub fn in_chunks(lengths: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut places: Vec<usize> = (0..lengths.len()).collect();
    places.sort_by_key(|place| lengths[*place]);
    let mut chunks: Vec<Vec<usize>> = Vec::new();
    let mut filled = 0;
    for place in places {
        match chunks.last_mut().filter(|_| filled + lengths[place] <= most) {
            Some(chunk) => chunk.push(place),
            None => {
                filled = 0;
                chunks.push(vec![place]);
            }
        }
        filled += lengths[place];
    }
    chunks
}
