//! Attention within the segments of a packed batch.

use crate::NativeResult;
use crate::ffi::{self, SoukGpuTexts, SoukSegments, pointer};
use crate::tensor::{bad, heads, matrix, segments, share};
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

/// Mask within a segment; default: every token sees all of its segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Visibility {
    /// Causal: no later tokens.
    pub causal: bool,
    /// Sliding window: only tokens less than this far away.
    pub window: Option<i64>,
}

/// How products of queries and keys become weights: times a factor, plus a bias, and after the softmax with dropout.
#[derive(Debug, Clone, Copy)]
pub struct Scores<'a> {
    /// Factor.
    pub scale: f64,
    /// `[Hq, 2 n - 1]`, contiguous f32: for each head, the bias of each key position minus query position, from `1 - n` to
    /// `n - 1`. No segment may be longer than `n`.
    pub bias: Option<&'a Tensor>,
    /// Share of the weights that is set to zero; at least 0 and below 1. libtorch's generator decides which ones.
    pub dropout: f64,
}

impl From<f64> for Scores<'_> {
    fn from(scale: f64) -> Self {
        Self { scale, bias: None, dropout: 0.0 }
    }
}

/// `softmax(q k^T * scale + bias) v` within each segment; returns `[T, Hq * D]`. libtorch records the gradients.
///
/// `q` is `[T, Hq, D]`, `k` and `v` are `[T, Hkv, D]`, f32, possibly views of a fused projection.
pub fn attention<'a>(
    [q, k, v]: [&Tensor; 3],
    starts: &[i64],
    visible: Visibility,
    scores: impl Into<Scores<'a>>,
) -> NativeResult<Tensor> {
    let [tokens, query, dim] = heads("q", q)?;
    let [_, shared, _] = heads("k", k)?;
    if heads("k", k)? != [tokens, shared, dim] {
        return bad("k", "must have the tokens and the head size of q");
    }
    if heads("v", v)? != [tokens, shared, dim] {
        return bad("v", "must have the shape of k");
    }
    let qkv = [pointer(Some(q)), pointer(Some(k)), pointer(Some(v))];
    run(qkv, [tokens, query, shared, dim], starts, visible, scores.into())
}

/// The same for a projection `[T, (Hq + 2 * Hkv) * D]` that holds queries, keys and values side by side; its gradient is one
/// tensor, too.
pub fn joined_attention<'a>(
    qkv: &Tensor,
    [query, shared]: [i64; 2],
    starts: &[i64],
    visible: Visibility,
    scores: impl Into<Scores<'a>>,
) -> NativeResult<Tensor> {
    let (tokens, width) = matrix("qkv", qkv)?;
    let all = query + 2 * shared;
    if query < 1 || shared < 1 || width % all != 0 {
        return bad(
            "qkv",
            format!("must have columns for {query} heads of queries and 2 * {shared} others, has {width}"),
        );
    }
    let null = std::ptr::null();
    run([pointer(Some(qkv)), null, null], [tokens, query, shared, width / all], starts, visible, scores.into())
}

/// The tensors must fit the sizes: tokens, heads of queries, heads of keys and values, width of a head.
fn run(
    [q, k, v]: [*const C_tensor; 3],
    [tokens, query, shared, dim]: [i64; 4],
    starts: &[i64],
    visible: Visibility,
    scores: Scores,
) -> NativeResult<Tensor> {
    if dim == 0 || shared == 0 || query % shared != 0 {
        return bad("k", "must have a number of heads that divides that of q");
    }
    let segments = segments(starts, tokens)?;
    if visible.window.is_some_and(|w| w < 1) {
        return bad("window", "must be at least 1");
    }
    if let Some(bias) = scores.bias {
        let (heads, width) = matrix("bias", bias)?;
        let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        if heads != query || width % 2 == 0 || width < 2 * longest - 1 {
            return bad(
                "bias",
                format!("must be [{query}, 2 n - 1] with n of at least {longest}, is [{heads}, {width}]"),
            );
        }
    }
    share("dropout", scores.dropout)?;
    // no segment is longer than the batch, so this is no limit, and sums with it do not overflow
    let window = visible.window.map_or(tokens, |w| w.min(tokens)).max(1);
    let Scores { scale, bias, dropout } = scores;
    let (causal, bias) = (i32::from(visible.causal), pointer(bias));
    let segments = SoukSegments { starts: starts.as_ptr(), segments, window, causal, scale, bias, dropout };
    // SAFETY: tensors and offsets were checked, and the shim writes one tensor on success.
    ffi::tensor(|out| unsafe { ffi::souk_attention(q, k, v, query, shared, &segments, out) })
}

/// The texts of a packed batch on a GPU, made once for all layers.
#[derive(Debug)]
pub struct GpuTexts {
    /// Offsets, i32, on the GPU.
    starts: Tensor,
    longest: i64,
}

impl GpuTexts {
    /// Copies the offsets `[0, l0, l0 + l1, ..., T]` to a GPU.
    pub fn new(starts: &[i64], device: Device) -> Self {
        let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        Self { starts: Tensor::from_slice(starts).to_kind(Kind::Int).to_device(device), longest }
    }
}

/// Attention on a GPU, `[T, Hq * D]`, by libtorch's kernels for texts of different lengths, with `dropout` of the weights. `q` is
/// `[T, Hq, D]`, `k` and `v` are `[T, Hkv, D]`, all bf16 or f16, or all f32 without a window; `D` is a multiple of 8, at most 256.
/// libtorch records the gradients.
pub fn gpu_attention(
    [q, k, v]: [&Tensor; 3],
    texts: &GpuTexts,
    visible: Visibility,
    scale: f64,
    dropout: f64,
) -> NativeResult<Tensor> {
    let texts = SoukGpuTexts {
        starts: texts.starts.as_ptr(),
        longest: texts.longest,
        window: visible.window.unwrap_or(0),
        causal: i32::from(visible.causal),
        scale,
        dropout,
    };
    // SAFETY: all pointers are valid for the call; libtorch checks shapes, kinds and devices; one tensor is written on success.
    ffi::tensor(|out| unsafe { ffi::souk_gpu_attention(q.as_ptr(), k.as_ptr(), v.as_ptr(), &texts, out) })
}
