//! An encoder that does not learn: the reference policy π_ref, which is the model that the stage began with, or the guide of InfoNCE. Its
//! vectors never change, so they are cached by text.

use tch::{Device, Kind, Tensor};

use super::batch::Batch;
use super::context::{StageContext, read_items, read_queries};
use super::grad_cache::{Chunking, GradCache};
use souk_io::error::Result;
use souk_nn::collective::gather_rows;
use souk_nn::encoder::{Encoder, Text, VectorCache};

/// Cache key of a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TextKey {
    Query(Box<str>),
    /// A row of the catalogue.
    Item(u32),
}

/// Size of the cache.
const MAX_BYTES: usize = 2 << 30;
const CPU_CHUNKING: Chunking =
    Chunking { chunk_tokens: 2048, keep_tokens: 0, steps: false, dropout: false, bf16: false, seed: 0 };

pub struct FrozenEncoder {
    encoder: Encoder,
    cache: VectorCache<TextKey>,
}

impl FrozenEncoder {
    pub fn new(encoder: Encoder) -> Result<Self> {
        let cache = VectorCache::new(encoder.dimensions() as usize, MAX_BYTES);
        Ok(Self { encoder: encoder.freeze()?, cache })
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
        let Self { encoder, cache } = self;
        let vectors = cache.get_or_encode(keys, |missing| {
            // one text a pass gives the same bits in any batch, so that a resumed stage is exact; a GPU would idle, and is not
            // exact to the bit anyway
            let chunking = match encoder.device() {
                Device::Cpu if encoder.is_exact_in_any_batch() => CPU_CHUNKING,
                Device::Cpu => Chunking { chunk_tokens: 1, ..CPU_CHUNKING },
                _ => of_learner,
            };
            let (_, fresh) = GradCache::encode(encoder, read(missing)?, chunking)?;
            Ok(Vec::<f32>::try_from(fresh.to_kind(Kind::Float).contiguous().view([-1]))?)
        })?;
        let size = [keys.len() as i64, encoder.dimensions()];
        Ok(Tensor::from_slice(&vectors).view(size).to_device(encoder.device()))
    }
}
