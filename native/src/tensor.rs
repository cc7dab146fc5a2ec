//! Checks of tensors and offsets before they reach the shim.

use crate::ffi::{self, SoukLayout};
use crate::{NativeError, NativeResult};
use tch::Tensor;

/// `at::ScalarType` values of accepted tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Element {
    F32 = 6,
    I64 = 4,
}

pub(crate) fn bad<T>(name: &'static str, problem: impl Into<String>) -> NativeResult<T> {
    let problem = problem.into();
    Err(NativeError::Argument { name, problem })
}

fn layout(name: &'static str, t: &Tensor, element: Element) -> NativeResult<SoukLayout> {
    let mut layout = SoukLayout::default();
    // SAFETY: both pointers are valid for the call; the shim handles undefined and exotic tensors.
    ffi::check(unsafe { ffi::souk_layout(t.as_ptr(), &mut layout) })?;
    if layout.dense == 0 {
        return bad(name, "is not a dense tensor on the CPU");
    }
    if layout.kind != element as i32 {
        let code = layout.kind;
        return bad(name, format!("must be {element:?}, has scalar type {code}"));
    }
    Ok(layout)
}

fn rank(name: &'static str, layout: &SoukLayout, expected: i64) -> NativeResult<()> {
    if layout.dims != expected {
        return bad(name, format!("must have {expected} dimensions, has {}", layout.dims));
    }
    Ok(())
}

fn contiguous(name: &'static str, layout: &SoukLayout, rank: usize) -> NativeResult<()> {
    let mut step = 1;
    for d in (0..rank).rev() {
        if layout.sizes[d] != 1 && layout.strides[d] != step {
            return bad(name, "must be contiguous");
        }
        step *= layout.sizes[d].max(1);
    }
    Ok(())
}

/// Contiguous `[n]`.
pub(crate) fn vector(name: &'static str, t: &Tensor, element: Element) -> NativeResult<i64> {
    let layout = layout(name, t, element)?;
    rank(name, &layout, 1)?;
    contiguous(name, &layout, 1)?;
    Ok(layout.sizes[0])
}

/// Contiguous f32 `[n]` of a given length.
pub(crate) fn vector_of(name: &'static str, t: &Tensor, length: i64) -> NativeResult<()> {
    let found = vector(name, t, Element::F32)?;
    if found != length {
        return bad(name, format!("must have {length} elements, has {found}"));
    }
    Ok(())
}

/// Contiguous f32 `[rows, columns]`.
pub(crate) fn matrix(name: &'static str, t: &Tensor) -> NativeResult<(i64, i64)> {
    let layout = layout(name, t, Element::F32)?;
    rank(name, &layout, 2)?;
    contiguous(name, &layout, 2)?;
    Ok((layout.sizes[0], layout.sizes[1]))
}

/// f32 `[tokens, heads, dim]` with a contiguous last dimension.
pub(crate) fn heads(name: &'static str, t: &Tensor) -> NativeResult<[i64; 3]> {
    let layout = layout(name, t, Element::F32)?;
    rank(name, &layout, 3)?;
    if layout.sizes[2] > 1 && layout.strides[2] != 1 {
        return bad(name, "the last dimension must be contiguous");
    }
    Ok([layout.sizes[0], layout.sizes[1], layout.sizes[2]])
}

/// Checks that offsets rise from 0 to `tokens`; returns the number of segments.
pub(crate) fn segments(starts: &[i64], tokens: i64) -> NativeResult<i64> {
    if starts.first() != Some(&0) || starts.last() != Some(&tokens) {
        return bad("starts", format!("must begin with 0 and end with {tokens}"));
    }
    if starts.windows(2).any(|pair| pair[0] > pair[1]) {
        return bad("starts", "must not fall");
    }
    Ok(starts.len() as i64 - 1)
}

/// Checks that a share is at least 0 and below 1.
pub(crate) fn share(name: &'static str, value: f64) -> NativeResult<()> {
    if (0.0..1.0).contains(&value) { Ok(()) } else { bad(name, format!("is {value}: must be at least 0 and below 1")) }
}
