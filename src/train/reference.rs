//! The frozen reference policy π_ref: the model that the stage began with. Its vectors never change, so they are cached by text.

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use super::grad_cache::{Chunking, GradCache};
use souk_io::error::Result;
use souk_nn::encoder::{Encoder, Text};

/// Cache key of a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TextKey {
    Query(Box<str>),
    /// A row of the catalogue.
    Item(u32),
}

/// Size of the cache; a full cache is cleared.
const MAX_BYTES: usize = 2 << 30;
/// Tokens of one forward pass.
const CHUNK_TOKENS: usize = 2048;

pub struct Reference {
    encoder: Encoder,
    places: HashMap<TextKey, usize>,
    /// Concatenated.
    vectors: Vec<f32>,
}

impl Reference {
    pub fn new(encoder: Encoder) -> Result<Self> {
        Ok(Self { encoder: encoder.freeze()?, places: HashMap::new(), vectors: Vec::new() })
    }

    /// `[n, d]` in the order of `keys`, on the model's device; `text` is called for texts that are not cached.
    pub fn vectors(&mut self, keys: &[TextKey], text: impl Fn(usize) -> Result<Text>) -> Result<Tensor> {
        let _guard = tch::no_grad_guard();
        let width = self.encoder.dimensions() as usize;
        if self.vectors.len() * size_of::<f32>() > MAX_BYTES {
            self.places.clear();
            self.vectors.clear();
        }
        let (mut texts, mut next) = (Vec::new(), self.vectors.len() / width);
        for (at, key) in keys.iter().enumerate() {
            if !self.places.contains_key(key) {
                texts.push(text(at)?);
                self.places.insert(key.clone(), next);
                next += 1;
            }
        }
        if !texts.is_empty() {
            // one text a pass gives the same bits in any batch, so that a resumed stage is exact; a GPU would idle, and is not
            // exact to the bit anyway
            let alone = self.encoder.device() == Device::Cpu && !self.encoder.is_exact_in_any_batch();
            let chunk_tokens = if alone { 1 } else { CHUNK_TOKENS };
            let chunking =
                Chunking { chunk_tokens, keep_tokens: 0, steps: false, dropout: false, bf16: false, seed: 0 };
            let (_, fresh) = GradCache::encode(&self.encoder, texts, chunking)?;
            self.vectors.extend(Vec::<f32>::try_from(fresh.to_kind(Kind::Float).contiguous().view([-1]))?);
        }
        let mut rows = Vec::with_capacity(keys.len() * width);
        for key in keys {
            let start = self.places[key] * width;
            rows.extend_from_slice(&self.vectors[start..start + width]);
        }
        Ok(Tensor::from_slice(&rows).view([keys.len() as i64, width as i64]).to_device(self.encoder.device()))
    }
}
