//! A nearest-neighbor query, and how wide a graph search for it is (`ef`).

/// Default search width: `k` plus a quarter, and at least `MIN_EF`.
const MARGIN: usize = 4;
const MIN_EF: usize = 100;
/// Approximate number of rows scored per unit of `ef`; if that exceeds the number of items, brute force is faster.
const ROWS_PER_EF: usize = 20;
/// Factor by which a search is widened when too few of its hits are allowed.
const WIDEN: usize = 4;

#[derive(Clone, Copy)]
pub struct VectorQuery<'a> {
    /// Unit vector.
    pub vector: &'a [f32],
    pub k: usize,
    /// Search width in the graph (HNSW ef); chosen automatically if None.
    pub ef: Option<usize>,
}

impl<'a> VectorQuery<'a> {
    pub fn new(vector: &'a [f32], k: usize) -> Self {
        Self { vector, k, ef: None }
    }

    /// Runs graph searches of growing width over `num` items, of which `num_kept` are allowed. Returns None when brute
    /// force over the allowed items would be faster.
    pub(super) fn search_widening(
        &self,
        num: usize,
        num_kept: usize,
        mut search: impl FnMut(usize) -> Vec<(f32, usize)>,
    ) -> Option<Vec<(f32, usize)>> {
        let usual = MIN_EF.max(self.k.saturating_add(self.k / MARGIN));
        // widen in proportion to the items that the filter skips
        let scaled = self.ef.unwrap_or(usual).max(self.k).saturating_mul(num) / num_kept.max(1);
        let mut ef = scaled.max(self.k.min(num_kept));
        while ef.saturating_mul(ROWS_PER_EF) < num_kept {
            let best = search(ef);
            // too few hits: the graph may be disconnected, or the filter skipped the near ones
            if best.len() == self.k {
                return Some(best);
            }
            ef = ef.saturating_mul(WIDEN);
        }
        None
    }
}
