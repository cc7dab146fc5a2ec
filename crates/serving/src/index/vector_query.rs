//! A nearest-neighbor query, and how wide a graph search for it is (`ef`).

/// Search width without measured recall: `k` plus a quarter, and at least this.
pub(super) const MIN_EF: usize = 100;
const MARGIN: usize = 4;
/// Rows that brute force scores in the time that a graph search takes per unit of `ef`; it scores fewer, but all over memory.
const ROWS_PER_EF: usize = 60;
/// Least factor by which a search is widened when too few of its hits are allowed.
const WIDEN: usize = 2;

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

    /// Usual search width for `k` hits.
    pub(super) fn usual_ef(k: usize, base_ef: usize) -> usize {
        MIN_EF.max(k.saturating_add(k / MARGIN)).saturating_mul(base_ef) / MIN_EF
    }

    /// Runs graph searches of growing width over `num` items, of which `num_kept` are allowed; `base_ef` is the usual width for
    /// few hits. Returns None when brute force over the allowed items would be faster.
    pub(super) fn search_widening(
        &self,
        num: usize,
        num_kept: usize,
        base_ef: usize,
        mut search: impl FnMut(usize) -> Vec<(f32, usize)>,
    ) -> Option<Vec<(f32, usize)>> {
        let usual = || Self::usual_ef(self.k, base_ef);
        // widen in proportion to the items that the filter skips
        let scaled = self.ef.unwrap_or_else(usual).max(self.k).saturating_mul(num) / num_kept.max(1);
        let mut ef = scaled.max(self.k.min(num_kept));
        while ef.saturating_mul(ROWS_PER_EF) < num_kept {
            let best = search(ef);
            // too few hits: the graph may be disconnected, or the filter skipped the near ones
            if best.len() == self.k {
                return Some(best);
            }
            // the width at which there would be enough, if the allowed items are as rare further out
            ef = (ef.saturating_mul(self.k) / best.len().max(1)).max(ef.saturating_mul(WIDEN));
        }
        None
    }
}
