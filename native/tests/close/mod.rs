//! Shared test code: random tensors, comparison of results and gradients, attention by its formula, instruction sets.
#![allow(dead_code)]

use souk_native::testing::{Isa, force};
use souk_native::{NativeResult, Scores, Visibility};
use tch::{Device, Kind, Tensor};

/// Instruction sets of this processor; each is active on this thread during its iteration.
pub fn forced_isas() -> impl Iterator<Item = Isa> {
    [Isa::Baseline, Isa::Avx2, Isa::Avx512, Isa::Vnni, Isa::Amx].into_iter().filter(|&isa| force(isa))
}

pub fn randn(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu))
}

pub fn largest(t: &Tensor) -> f64 {
    if t.numel() == 0 {
        return 0.0;
    }
    t.abs().max().double_value(&[])
}

/// Compares with `tolerance`, relative to the largest element if that exceeds 1.
#[track_caller]
pub fn assert_close(ours: &Tensor, want: &Tensor, tolerance: f64) {
    assert_eq!(ours.size(), want.size());
    let error = largest(&(ours - want)) / largest(want).max(1.0);
    assert!(error <= tolerance, "off by {error} at size {:?}", ours.size());
}

pub fn learned(t: Tensor) -> Tensor {
    t.set_requires_grad(true)
}

/// Gradients of a weighted sum of `y`, the same sum for every result of one shape.
pub fn gradients(y: &Tensor, of: &[&Tensor]) -> Vec<Tensor> {
    let weights = Tensor::arange(y.numel() as i64, (Kind::Float, Device::Cpu)).square().sin().view_as(y);
    Tensor::run_backward(&[(y * weights).sum(Kind::Float)], of, true, false)
}

/// Compares a result and its gradients with those of plain tch, relative to their size.
#[track_caller]
pub fn assert_same(ours: NativeResult<Tensor>, plain: &Tensor, of: &[&Tensor]) {
    let ours = ours.expect("the shapes fit");
    assert_close(&ours, plain, 1e-5);
    for (ours, plain) in gradients(&ours, of).iter().zip(gradients(plain, of)) {
        let scale = plain.abs().max().double_value(&[]).max(1e-3);
        assert_close(&(ours / scale), &(plain / scale), 2e-5);
    }
}

/// Attention of one segment at a time, by the formula.
pub fn by_segment(qkv: [&Tensor; 3], starts: &[i64], seen: Visibility, scores: Scores) -> Tensor {
    by_segment_with(qkv, starts, seen, scores, &|_, weights| weights)
}

/// The same with a change of the weights of each segment.
pub fn by_segment_with(
    qkv: [&Tensor; 3],
    starts: &[i64],
    seen: Visibility,
    scores: Scores,
    change: &dyn Fn(&[i64], Tensor) -> Tensor,
) -> Tensor {
    let ([q, k, v], Scores { scale, bias, .. }) = (qkv, scores);
    let group = q.size()[1] / k.size()[1];
    let one = |pair: &[i64]| {
        let length = pair[1] - pair[0];
        let heads = |x: &Tensor| x.narrow(0, pair[0], length).transpose(0, 1);
        let shared = |x: &Tensor| heads(x).repeat_interleave_self_int(group, 0, None);
        let scores = heads(q).matmul(&shared(k).transpose(1, 2)) * scale;
        let at = Tensor::arange(length, (Kind::Int64, Device::Cpu));
        let distance = at.unsqueeze(1) - at.unsqueeze(0);
        let mut hidden = distance.abs().ge(seen.window.unwrap_or(length));
        if seen.causal {
            hidden = hidden.logical_or(&distance.lt(0));
        }
        let scores = match bias {
            None => scores,
            Some(bias) => {
                let places = (at.unsqueeze(0) - at.unsqueeze(1) + bias.size()[1] / 2).flatten(0, 1);
                scores + bias.index_select(1, &places).view([-1, length, length])
            }
        };
        let weights = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float);
        change(pair, weights).matmul(&shared(v)).transpose(0, 1).flatten(1, 2)
    };
    Tensor::cat(&starts.windows(2).map(one).collect::<Vec<_>>(), 0)
}

pub const LENGTHS: [i64; 8] = [1, 5, 16, 33, 64, 129, 200, 301];

pub fn starts() -> Vec<i64> {
    let mut starts = vec![0];
    for length in LENGTHS {
        starts.push(starts[starts.len() - 1] + length);
    }
    starts
}

pub fn visibilities() -> [Visibility; 4] {
    let of = |causal, window| Visibility { causal, window };
    [of(false, None), of(true, None), of(false, Some(20)), of(true, Some(70))]
}
