//! An encoder that does not learn: the reference policy π_ref, which is the model that the stage began with, or the guide of InfoNCE. Its
//! vectors never change, so they are cached by text.

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use super::batch::Batch;
use super::context::{StageContext, read_items, read_queries};
use super::grad_cache::{Chunking, GradCache};
use souk_io::error::Result;
use souk_nn::collective::gather_rows;
use souk_nn::encoder::{Encoder, Text};

/// Cache key of a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TextKey {
    Query(Box<str>),
    /// A row of the catalogue.
    Item(u32),
}

/// Size of the cache; a full cache is cleared.
const MAX_BYTES: usize = 2 << 30;
const CPU_CHUNKING: Chunking =
    Chunking { chunk_tokens: 2048, keep_tokens: 0, steps: false, dropout: false, bf16: false, seed: 0 };

pub struct FrozenEncoder {
    encoder: Encoder,
    places: HashMap<TextKey, usize>,
    /// Concatenated.
    vectors: Vec<f32>,
}

impl FrozenEncoder {
    pub fn new(encoder: Encoder) -> Result<Self> {
        Ok(Self { encoder: encoder.freeze()?, places: HashMap::new(), vectors: Vec::new() })
    }

    /// Vectors of the queries of this process `[b, d]` and of the items of all processes `[n, d]`.
    pub fn encode(&mut self, stage: &StageContext, batch: &Batch) -> Result<(Tensor, Tensor)> {
        let (reader, chunking) = (self.encoder.reader(), stage.inference_chunking());
        let pairs = &batch.pairs[stage.own_pairs(batch)];
        let keys: Vec<TextKey> = pairs.iter().map(|pair| TextKey::Query(pair.query.into())).collect();
        let queries = self.vectors(&keys, chunking, |fresh| {
            read_queries(&reader, &fresh.iter().map(|at| pairs[*at].query).collect::<Vec<_>>())
        })?;
        let rows = &batch.items[stage.own_items(batch)];
        let keys: Vec<TextKey> = rows.iter().map(|row| TextKey::Item(*row)).collect();
        let items = self.vectors(&keys, chunking, |fresh| {
            read_items(stage.catalogue, &reader, &fresh.iter().map(|at| rows[*at]).collect::<Vec<_>>())
        })?;
        Ok((queries, gather_rows(stage.collective, &items)?.all))
    }

    /// `[n, d]` in the order of `keys`, on the model's device; `read` reads the texts of the keys that are not cached, by their places.
    /// A GPU encodes in chunks as those of the model that learns, with the same rounding.
    fn vectors(
        &mut self,
        keys: &[TextKey],
        of_learner: Chunking,
        read: impl FnOnce(&[usize]) -> Result<Vec<Text>>,
    ) -> Result<Tensor> {
        let _guard = tch::no_grad_guard();
        let width = self.encoder.dimensions() as usize;
        if self.vectors.len() * size_of::<f32>() > MAX_BYTES {
            self.places.clear();
            self.vectors.clear();
        }
        let (mut missing, mut next) = (Vec::new(), self.vectors.len() / width);
        for (at, key) in keys.iter().enumerate() {
            if !self.places.contains_key(key) {
                missing.push(at);
                self.places.insert(key.clone(), next);
                next += 1;
            }
        }
        if !missing.is_empty() {
            // one text a pass gives the same bits in any batch, so that a resumed stage is exact; a GPU would idle, and is not
            // exact to the bit anyway
            let chunking = match self.encoder.device() {
                Device::Cpu if self.encoder.is_exact_in_any_batch() => CPU_CHUNKING,
                Device::Cpu => Chunking { chunk_tokens: 1, ..CPU_CHUNKING },
                _ => of_learner,
            };
            let (_, fresh) = GradCache::encode(&self.encoder, read(&missing)?, chunking)?;
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
