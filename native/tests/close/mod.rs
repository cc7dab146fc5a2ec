//! Shared test code: random tensors, comparison, instruction sets.
#![allow(dead_code)]

use souk_native::testing::{Isa, force};
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
