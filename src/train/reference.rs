//! The policy that a stage began with, frozen. Takes texts with what they are known by, gives their vectors; those it gave
//! before it remembers, for they never change.

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use super::share::{Chunking, Share};
use crate::encoder::{Encoder, Text};
use crate::error::Result;

/// What a text is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Known {
    Query(Box<str>),
    /// By its row in the catalogue.
    Item(u32),
}

/// What may be remembered; when it is full it is forgotten, and fills again with what is in use.
const MOST_BYTES: usize = 2 << 30;
/// Tokens of one forward pass on a GPU.
const CHUNK_TOKENS: usize = 2048;

pub struct Reference {
    encoder: Encoder,
    places: HashMap<Known, usize>,
    /// One vector after another.
    vectors: Vec<f32>,
}

impl Reference {
    pub fn new(encoder: Encoder) -> Result<Self> {
        Ok(Self { encoder: encoder.freeze()?, places: HashMap::new(), vectors: Vec::new() })
    }

    /// `[n, d]` in the order of `known`, on the model's device; `text` is asked for those that are new.
    pub fn vectors(&mut self, known: &[Known], text: impl Fn(usize) -> Result<Text>) -> Result<Tensor> {
        let _guard = tch::no_grad_guard();
        let width = self.encoder.dimensions() as usize;
        if self.vectors.len() * size_of::<f32>() > MOST_BYTES {
            self.places.clear();
            self.vectors.clear();
        }
        let (mut texts, mut next) = (Vec::new(), self.vectors.len() / width);
        for (at, key) in known.iter().enumerate() {
            if !self.places.contains_key(key) {
                texts.push(text(at)?);
                self.places.insert(key.clone(), next);
                next += 1;
            }
        }
        if !texts.is_empty() {
            // alone, a text has the same bits whenever it is asked for, so that a resumed stage goes on with them; a GPU would
            // idle, and is not exact to the bit anyway
            let chunk_tokens = if self.encoder.device() == Device::Cpu { 1 } else { CHUNK_TOKENS };
            let chunking =
                Chunking { chunk_tokens, keep_tokens: 0, steps: false, dropout: false, bf16: false, seed: 0 };
            let (_, fresh) = Share::encode(&self.encoder, texts, chunking)?;
            self.vectors.extend(Vec::<f32>::try_from(fresh.to_kind(Kind::Float).contiguous().view([-1]))?);
        }
        let mut rows = Vec::with_capacity(known.len() * width);
        for key in known {
            let start = self.places[key] * width;
            rows.extend_from_slice(&self.vectors[start..start + width]);
        }
        Ok(Tensor::from_slice(&rows).view([known.len() as i64, width as i64]).to_device(self.encoder.device()))
    }
}
