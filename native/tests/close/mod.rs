//! What the tests share: random tensors, a comparison, the instruction sets.
#![allow(dead_code)]

use souk_native::testing::{Isa, force};
use tch::{Device, Kind, Tensor};

/// The sets this processor has, each in force on this thread while the loop is at it.
pub fn forced_isas() -> impl Iterator<Item = Isa> {
    [Isa::Baseline, Isa::Avx2, Isa::Avx512].into_iter().filter(|&isa| force(isa))
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

/// Equal to `tolerance`, relative to the largest element where that exceeds 1.
#[track_caller]
pub fn assert_close(ours: &Tensor, want: &Tensor, tolerance: f64) {
    assert_eq!(ours.size(), want.size());
    let error = largest(&(ours - want)) / largest(want).max(1.0);
    assert!(error <= tolerance, "off by {error} at size {:?}", ours.size());
}
