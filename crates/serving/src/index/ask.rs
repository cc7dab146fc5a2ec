//! What is searched for, and how far a walk through a graph looks around for it.

/// A walk looks around for so many more than it is asked for, and for so many at least.
const MARGIN: usize = 4;
const MIN_REACH: usize = 100;
/// Rows that a walk looks at for each that it reaches, roughly: where that were all, all are looked at in their order.
const LOOKS: usize = 20;
/// A walk that met too few items that are kept looks around so many times further.
const FURTHER: usize = 4;

#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// Of unit length.
    pub vector: &'a [f32],
    pub k: usize,
    /// How many items a walk through the graph looks around for; by default as many as are usually enough.
    pub reach: Option<usize>,
}

impl<'a> Ask<'a> {
    pub fn new(vector: &'a [f32], k: usize) -> Self {
        Self { vector, k, reach: None }
    }

    /// What walks of more and more reach come to, of `num` items of which `num_kept` count; nothing where a look at all that
    /// count is the shorter way.
    pub(super) fn widening(
        &self,
        num: usize,
        num_kept: usize,
        mut walk: impl FnMut(usize) -> Vec<(f32, usize)>,
    ) -> Option<Vec<(f32, usize)>> {
        let usual = MIN_REACH.max(self.k.saturating_add(self.k / MARGIN));
        // as many are met among all as make up for those that are passed over
        let wanted = self.reach.unwrap_or(usual).max(self.k).saturating_mul(num) / num_kept.max(1);
        let mut reach = wanted.max(self.k.min(num_kept));
        while reach.saturating_mul(LOOKS) < num_kept {
            let best = walk(reach);
            // a part of the graph that nothing leads out of must not hide the rest, nor those that are near and passed over
            if best.len() == self.k {
                return Some(best);
            }
            reach = reach.saturating_mul(FURTHER);
        }
        None
    }
}
