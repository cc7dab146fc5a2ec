//! Attention over packed or padded tokens, with grouped-query heads, causal or bidirectional, with or without a sliding
//! window, with or without a bias by distance: `softmax(q kᵀ / √e + bias) v`. Packed tokens run in our own kernel on the CPU in
//! f32, and in libtorch's kernels for texts of different lengths on a GPU, in training too. Everything else uses libtorch's
//! `scaled_dot_product_attention`, with texts grouped by length so that no padding is computed.

pub(super) use souk_native::Visibility;
use souk_native::{Autocast, GpuTexts, Scores};
use tch::{Device, Kind, Tensor};

use souk_io::error::Result;

/// Attention layout and mask of one batch; built once per forward pass and kind of layer.
pub(super) enum AttentionPlan<'a> {
    Packed {
        starts: &'a [i64],
        seen: Visibility,
        on_gpu: Option<GpuTexts>,
        /// `[h, 2 n - 1]`, by key position minus query position, from `1 - n` to `n - 1`.
        bias: Option<Tensor>,
    },
    /// `[b, 1, l, s]`, true where a query may attend to a key; or `[b, h, l, s]`, added to the scores.
    Padded { mask: Tensor },
}

impl<'a> AttentionPlan<'a> {
    pub(super) fn packed(starts: &'a [i64], seen: Visibility, device: Device) -> Self {
        let on_gpu = matches!(device, Device::Cuda(_)).then(|| GpuTexts::new(starts, device));
        Self::Packed { starts, seen, on_gpu, bias: None }
    }

    /// Builds the mask; `mask` `[b, s]` covers the cached tokens and the `num_new` tokens at its end.
    pub(super) fn padded(mask: &Tensor, num_new: i64, seen: Visibility) -> Self {
        let slots = mask.size()[1];
        let all = Tensor::arange(slots, (Kind::Int64, mask.device()));
        let from = all.narrow(0, slots - num_new, num_new).unsqueeze(1);
        let distance = &from - &all.unsqueeze(0);
        let mut allowed = mask.unsqueeze(1).logical_and(&is_visible(&distance, seen).unsqueeze(0));
        // a padding token attends to itself: a row without any key would be 0/0 and spread NaN
        allowed = allowed.logical_or(&distance.eq(0));
        Self::Padded { mask: allowed.unsqueeze(1) }
    }

    /// Adds the bias `[h, 2 n - 1]` to the scores: by key position minus query position, from `1 - n` to `n - 1`, where no text
    /// is longer than `n`. The plan must be bidirectional and without a window.
    pub(super) fn with_bias(self, bias: &Tensor) -> Self {
        match self {
            Self::Packed { starts, seen, on_gpu, .. } => {
                Self::Packed { starts, seen, on_gpu, bias: Some(bias.shallow_clone()) }
            }
            Self::Padded { mask } => {
                let bias = bias_square(bias, mask.size()[2]).unsqueeze(0);
                Self::Padded { mask: bias.masked_fill(&mask.logical_not(), f64::NEG_INFINITY) }
            }
        }
    }
}

/// Bias of each query and key of a text, `[h, l, l]`, from the bias by distance.
fn bias_square(bias: &Tensor, length: i64) -> Tensor {
    let at = Tensor::arange(length, (Kind::Int64, bias.device()));
    let places = at.unsqueeze(0) - at.unsqueeze(1) + bias.size()[1] / 2;
    bias.index_select(1, &places.flatten(0, 1)).view([-1, length, length])
}

/// Boolean mask by distance (query position minus key position): causal order and sliding window.
fn is_visible(distance: &Tensor, seen: Visibility) -> Tensor {
    let mut allowed = distance.ones_like().to_kind(Kind::Bool);
    if seen.causal {
        allowed = allowed.logical_and(&distance.ge(0));
    }
    if let Some(window) = seen.window {
        allowed = allowed.logical_and(&distance.abs().lt(window));
    }
    allowed
}

/// Factor of the scores and dropout of the weights.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    /// `1 / √e` if not set.
    pub scale: Option<f64>,
    pub dropout: f64,
}

impl Softmax {
    pub(super) fn plain(dropout: f64) -> Self {
        Self { scale: None, dropout }
    }

    /// For heads of `width`, without a bias.
    fn scores(self, width: i64) -> Scores<'static> {
        let scale = self.scale.unwrap_or(1.0 / (width as f64).sqrt());
        Scores { scale, bias: None, dropout: self.dropout }
    }
}

/// Attends with `q [.., h, e]`, `k` and `v` `[.., h', e]`, h a multiple of h'; returns `[.., h·e]`.
pub(super) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, plan: &AttentionPlan, softmax: Softmax) -> Result<Tensor> {
    let scores = softmax.scores(q.size().last().copied().unwrap_or(1));
    match plan {
        AttentionPlan::Padded { mask } => {
            let heads = |x: &Tensor| x.transpose(1, 2);
            let out = attend_heads([&heads(q), &heads(k), &heads(v)], Some(mask), false, softmax);
            Ok(out.transpose(1, 2).flatten(-2, -1))
        }
        AttentionPlan::Packed { seen, on_gpu: Some(texts), bias: None, .. }
            if has_gpu_kernel(q, *seen, softmax.dropout) =>
        {
            let kind = gpu_kind(q);
            let [q, k, v] = [q, k, v].map(|x| x.to_kind(kind));
            Ok(souk_native::gpu_attention([&q, &k, &v], texts, *seen, scores.scale, scores.dropout)?)
        }
        AttentionPlan::Packed { starts, seen, bias, .. } => {
            // under autocast, q and k are f32 after the rotation, but v is not
            if [q, k, v].iter().all(|x| has_kernel(x)) {
                let scores = Scores { bias: bias.as_ref(), ..scores };
                return Ok(souk_native::attention([q, k, v], starts, *seen, scores)?);
            }
            Ok(attend_by_length([q, k, v], starts, *seen, bias.as_ref(), softmax))
        }
    }
}

/// The same for a projection `[.., 3·h·e]` that holds queries, keys and values of h heads side by side.
pub(super) fn attend_joined(qkv: &Tensor, heads: i64, plan: &AttentionPlan, softmax: Softmax) -> Result<Tensor> {
    if let AttentionPlan::Packed { starts, seen, bias, .. } = plan
        && has_kernel(qkv)
    {
        let scores = Scores { bias: bias.as_ref(), ..softmax.scores(qkv.size()[1] / (3 * heads)) };
        return Ok(souk_native::joined_attention(qkv, [heads, heads], starts, *seen, scores)?);
    }
    let parts = qkv.chunk(3, -1);
    let [q, k, v] = [0, 1, 2].map(|i| parts[i].unflatten(-1, [heads, -1]));
    attend(&q, &k, &v, plan, softmax)
}

fn has_kernel(x: &Tensor) -> bool {
    x.device() == Device::Cpu && x.kind() == Kind::Float
}

/// Kind that attention on a GPU computes in.
fn gpu_kind(q: &Tensor) -> Kind {
    if Autocast::is_on(q.device()) { Kind::BFloat16 } else { q.kind() }
}

/// In f32, training with the kernel's dropout made the loss rise (`docs/gpu-checks.md`).
fn has_gpu_kernel(q: &Tensor, seen: Visibility, dropout: f64) -> bool {
    let width = q.size()[2];
    let in_f32 = seen.window.is_none() && dropout == 0.0;
    width % 8 == 0 && width <= 256 && (gpu_kind(q) != Kind::Float || in_f32)
}

/// Attends per run of neighbouring texts of equal length, each a rectangle without padding; sorted batches have few runs.
fn attend_by_length(
    qkv: [&Tensor; 3],
    starts: &[i64],
    seen: Visibility,
    bias: Option<&Tensor>,
    softmax: Softmax,
) -> Tensor {
    let device = qkv[0].device();
    let lengths: Vec<i64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let runs: Vec<(i64, i64)> = lengths.chunk_by(|a, b| a == b).map(|run| (run.len() as i64, run[0])).collect();
    let sizes: Vec<i64> = runs.iter().map(|(texts, length)| texts * length).collect();
    // one split: its gradient is one concatenation, while a view per run would sum that many full-size gradients
    let [q, k, v] = qkv.map(|x| x.split_with_sizes(&sizes[..], 0));
    let run = |(at, &(texts, length)): (usize, &(i64, i64))| {
        let heads = |x: &[Tensor]| x[at].unflatten(0, [texts, length]).transpose(1, 2);
        let windowed = seen.window.filter(|&w| w < length).map(|_| {
            let at = Tensor::arange(length, (Kind::Int64, device));
            is_visible(&(at.unsqueeze(1) - at.unsqueeze(0)), seen)
        });
        let mask = bias.map(|bias| bias_square(bias, length).to_kind(qkv[0].kind())).or(windowed);
        let causal = seen.causal && mask.is_none();
        let out = attend_heads([&heads(&q), &heads(&k), &heads(&v)], mask.as_ref(), causal, softmax);
        out.transpose(1, 2).flatten(-2, -1).flatten(0, 1)
    };
    let pieces: Vec<Tensor> = runs.iter().enumerate().map(run).collect();
    Tensor::cat(&pieces, 0)
}

fn attend_heads(qkv: [&Tensor; 3], mask: Option<&Tensor>, causal: bool, softmax: Softmax) -> Tensor {
    let [q, k, v] = qkv;
    let grouped = q.size()[1] != k.size()[1];
    Tensor::scaled_dot_product_attention(q, k, v, mask, softmax.dropout, causal, softmax.scale, grouped)
}
