//! Gradient caching (GradCache, Gao et al. 2021): one process's texts in chunks of bounded tokens. The first forward pass gives
//! vectors; once the gradient of every vector is known, each chunk runs again with a graph and back-propagates its part. Graphs of
//! the first `keep_tokens` tokens are kept and need no second pass: with room for all of them this is plain training, with none the
//! batch size is bounded by vectors alone. The gradient is the same either way.

use tch::{Kind, Tensor};

use super::TrainSettings;
use souk_io::error::Result;
use souk_nn::encoder::{Encoder, Text};

/// Chunks of texts, with the random state that makes the second pass of a chunk equal the first.
#[derive(Clone, Copy)]
pub struct Chunking {
    /// Tokens of one chunk; a longer text is a chunk of its own.
    pub chunk_tokens: usize,
    /// Tokens whose graphs are kept after the first pass.
    pub keep_tokens: usize,
    /// The vectors of every soft token, concatenated (GIRCSE).
    pub steps: bool,
    pub dropout: bool,
    pub bf16: bool,
    /// Dropout seed of this step in this process.
    pub seed: u64,
}

impl Chunking {
    pub fn new(settings: &TrainSettings, bf16: bool, seed: u64) -> Self {
        let TrainSettings { chunk_tokens, keep_tokens, dropout, .. } = *settings;
        Self { chunk_tokens, keep_tokens, steps: false, dropout, bf16, seed }
    }
}

/// Texts whose vectors are computed and whose gradients are not.
pub struct GradCache<'a> {
    encoder: &'a Encoder,
    texts: Vec<Text>,
    chunking: Chunking,
    chunks: Vec<Chunk>,
}

struct Chunk {
    /// Places in `texts`.
    places: Vec<usize>,
    /// Vectors with their graph, if it was kept.
    kept: Option<Tensor>,
}

impl<'a> GradCache<'a> {
    /// The vectors `[n, d]` of all texts, without a graph.
    pub fn encode(encoder: &'a Encoder, texts: Vec<Text>, chunking: Chunking) -> Result<(Self, Tensor)> {
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        let chunks = in_chunks(&lengths, chunking.chunk_tokens);
        let chunks = chunks.into_iter().map(|places| Chunk { places, kept: None }).collect();
        let mut cache = Self { encoder, texts, chunking, chunks };
        let (mut parts, mut order, mut tokens) = (Vec::new(), Vec::new(), 0);
        for at in 0..cache.chunks.len() {
            tokens += cache.chunks[at].places.iter().map(|place| cache.texts[*place].ids.len()).sum::<usize>();
            let keep = tokens <= cache.chunking.keep_tokens;
            let vectors = {
                let _guard = (!keep).then(tch::no_grad_guard);
                cache.run(at)?
            };
            parts.push(vectors.detach());
            order.extend(cache.chunks[at].places.iter().map(|place| *place as i64));
            cache.chunks[at].kept = keep.then_some(vectors);
        }
        if parts.is_empty() {
            let width = encoder.dimensions() * cache.steps();
            let none = Tensor::zeros([0, width], (Kind::Float, encoder.device()));
            return Ok((cache, none));
        }
        let back = Tensor::from_slice(&order).argsort(0, false).to_device(encoder.device());
        Ok((cache, Tensor::cat(&parts, 0).index_select(0, &back)))
    }

    /// Number of vectors of each text.
    pub fn steps(&self) -> i64 {
        if self.chunking.steps { self.encoder.num_steps() } else { 1 }
    }

    /// Back-propagates the gradient `[n, d]` of the vectors into the weights.
    pub fn backward(mut self, gradient: &Tensor) -> Result<()> {
        // chunks with graphs first, to free their memory
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
        let vectors = if self.chunking.steps {
            self.encoder.encode_steps(&texts, self.chunking.dropout)?
        } else {
            self.encoder.encode_for_training(&texts, self.chunking.dropout)?
        };
        Ok(vectors.to_kind(Kind::Float))
    }
}

/// Turns bf16 autocast on for the encoder's device until the guard is dropped, if `bf16`.
pub fn autocast(bf16: bool, encoder: &Encoder) -> Result<Option<souk_native::Autocast>> {
    Ok(bf16.then(|| souk_native::Autocast::start(encoder.device())).transpose()?)
}

/// Splits texts into chunks of at most `max_tokens`, sorted by length, so that texts of similar length share a pass.
pub fn in_chunks(lengths: &[usize], max_tokens: usize) -> Vec<Vec<usize>> {
    let mut places: Vec<usize> = (0..lengths.len()).collect();
    places.sort_by_key(|place| lengths[*place]);
    let mut chunks: Vec<Vec<usize>> = Vec::new();
    let mut filled = 0;
    for place in places {
        match chunks.last_mut().filter(|_| filled + lengths[place] <= max_tokens) {
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
