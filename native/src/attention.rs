//! Attention within the segments of a packed batch.

use crate::NativeResult;
use crate::ffi;
use crate::tensor::{bad, heads, segments};
use tch::Tensor;

/// Mask within a segment; default: every token sees all of its segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Visibility {
    /// Causal: no later tokens.
    pub causal: bool,
    /// Sliding window: only tokens less than this far away.
    pub window: Option<i64>,
}

/// `softmax(q k^T * scale) v` within each segment; returns `[T, Hq * D]`.
///
/// `q` is `[T, Hq, D]`, `k` and `v` are `[T, Hkv, D]`, f32, possibly views of a fused projection.
pub fn attention([q, k, v]: [&Tensor; 3], starts: &[i64], visible: Visibility, scale: f64) -> NativeResult<Tensor> {
    let [tokens, query, dim] = heads("q", q)?;
    let [_, shared, _] = heads("k", k)?;
    if heads("k", k)? != [tokens, shared, dim] {
        return bad("k", "must have the tokens and the head size of q");
    }
    if heads("v", v)? != [tokens, shared, dim] {
        return bad("v", "must have the shape of k");
    }
    if dim == 0 || shared == 0 || query % shared != 0 {
        return bad("k", "must have a number of heads that divides that of q");
    }
    let count = segments(starts, tokens)?;
    if visible.window.is_some_and(|w| w < 1) {
        return bad("window", "must be at least 1");
    }
    // no segment is longer than the batch, so this is no limit, and sums with it do not overflow
    let window = visible.window.map_or(tokens, |w| w.min(tokens)).max(1);
    // SAFETY: tensors and offsets were checked, and the shim writes one tensor on success.
    ffi::tensor(|out| unsafe {
        ffi::souk_attention(
            q.as_ptr(),
            k.as_ptr(),
            v.as_ptr(),
            starts.as_ptr(),
            count,
            i32::from(visible.causal),
            window,
            scale,
            out,
        )
    })
}
