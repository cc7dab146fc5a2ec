//! A graph over vectors of unit length that finds most of a query's nearest without looking at all (HNSW, of `hnsw_rs`).
//! Built by one thread in the order of the rows, so that the same vectors make the same graph.

use std::sync::atomic::{AtomicBool, Ordering};

use hnsw_rs::prelude::{DistDot, Hnsw};

/// Neighbours of a row on each layer above the lowest, which has twice as many.
const LINKS: usize = 16;
/// Rows looked at for the links of a new one.
const BUILD_REACH: usize = 200;
const LAYERS: usize = 16;
/// A search looks at so many times the rows that are asked for, and at so many at least: recall stays above 0.99.
const SEARCH_REACH: (usize, usize) = (8, 256);
/// Vectors are kept and asked for at this length: a product that rounding takes above 1 would end the program (`DistDot`).
const LENGTH: f32 = 1.0 - 1e-5;

pub struct Graph {
    hnsw: Hnsw<'static, f32, DistDot>,
}

impl Graph {
    /// Builds a graph of unit vectors of `width` entries, stored one after another. `stop` ends it early with the rows so far.
    pub fn build(flat: &[f32], width: usize, stop: &AtomicBool) -> Self {
        let hnsw = Hnsw::new(LINKS, flat.len() / width, LAYERS, BUILD_REACH, DistDot {});
        let mut shorter = vec![0.0; width];
        for (row, vector) in flat.chunks_exact(width).enumerate() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            shorter.iter_mut().zip(vector).for_each(|(to, from)| *to = from * LENGTH);
            hnsw.insert_slice((&shorter, row));
        }
        Self { hnsw }
    }

    /// For each query, of unit length, up to `k` rows with their products, nearest first; queries are shared among threads.
    pub fn nearest(&self, queries: &[Vec<f32>], k: usize) -> Vec<Vec<(f32, usize)>> {
        let (times, least) = SEARCH_REACH;
        let shorter: Vec<Vec<f32>> = queries.iter().map(|query| query.iter().map(|x| x * LENGTH).collect()).collect();
        let found = self.hnsw.parallel_search(&shorter, k, least.max(times * k));
        let hits = |hits: Vec<hnsw_rs::prelude::Neighbour>| {
            hits.into_iter().map(|hit| ((1.0 - hit.distance) / (LENGTH * LENGTH), hit.d_id)).collect()
        };
        found.into_iter().map(hits).collect()
    }
}
