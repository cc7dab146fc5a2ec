//! Linear layers with a prepacked weight, in f32 or int8, and fused operations that follow them.
//!
//! Int8: weights are symmetric with one scale per output; each input row is quantised to u8 with its own scale and zero point,
//! so a row's result does not depend on the batch.

use crate::ffi::{self, SoukEpilogue, SoukLinear, pointer};
use crate::tensor::{bad, matrix, share, vector_of};
use crate::{NativeError, NativeResult};
use tch::Tensor;

/// The nonlinearity after a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * Phi(x)`.
    Gelu,
    /// GELU's approximation by tanh.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`.
    Silu,
}

/// A residual to add and the LayerNorm over the sum; in training, dropout before.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// `[T, out]`.
    pub residual: &'a Tensor,
    /// `[out]`.
    pub weight: &'a Tensor,
    /// `[out]`.
    pub bias: &'a Tensor,
    /// Added to the variance.
    pub eps: f64,
    /// Share of the product's entries that is set to zero, at least 0 and below 1; 0 for frozen layers. libtorch's generator
    /// decides which ones.
    pub dropout: f64,
}

/// Fused operation on the product.
#[derive(Debug, Clone, Copy)]
pub enum Epilogue<'a> {
    /// Nothing.
    None,
    /// A nonlinearity.
    Activation(Activation),
    /// `LayerNorm(linear(x) + residual)`.
    AddNorm(Norm<'a>),
}

/// Linear layer whose weight is packed for the processor.
pub struct PackedLinear {
    /// The weight in panels, of f32 or int8.
    panels: Tensor,
    bias: Option<Tensor>,
    int8: Option<Int8>,
    in_features: i64,
    out_features: i64,
}

struct Int8 {
    /// Per output.
    scale: Tensor,
    /// Per output: scale times the sum of the quantised weights, to correct for the rows' zero points.
    column: Tensor,
}

impl std::fmt::Debug for PackedLinear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedLinear")
            .field("in_features", &self.in_features)
            .field("out_features", &self.out_features)
            .field("int8", &self.int8.is_some())
            .finish_non_exhaustive()
    }
}

impl PackedLinear {
    /// Packs a weight `[out, in]` and a bias `[out]` in f32.
    pub fn f32(weight: &Tensor, bias: Option<&Tensor>) -> NativeResult<Self> {
        let (out_features, in_features) = check_weight(weight, bias)?;
        // SAFETY: the weight was checked, and the shim writes one tensor on success.
        let panels = ffi::tensor(|out| unsafe { ffi::souk_pack_f32(weight.as_ptr(), out) })?;
        Ok(Self { panels, bias: own(bias)?, int8: None, in_features, out_features })
    }

    /// Packs a weight `[out, in]` and a bias `[out]` in int8.
    pub fn int8(weight: &Tensor, bias: Option<&Tensor>) -> NativeResult<Self> {
        let (out_features, in_features) = check_weight(weight, bias)?;
        let [panels, scale, column] =
            // SAFETY: the weight was checked, and the shim writes three tensors on success.
            ffi::tensors::<3>(|out| unsafe { ffi::souk_pack_int8(weight.as_ptr(), out) })?;
        Ok(Self { panels, bias: own(bias)?, int8: Some(Int8 { scale, column }), in_features, out_features })
    }

    /// Input columns.
    pub fn in_features(&self) -> i64 {
        self.in_features
    }

    /// Output columns.
    pub fn out_features(&self) -> i64 {
        self.out_features
    }

    /// `epilogue(x * weight^T + bias)` for `x` `[T, in]`, contiguous f32; returns `[T, out]`.
    pub fn forward(&self, x: &Tensor, epilogue: Epilogue) -> NativeResult<Tensor> {
        run(&[self.parts()], None, x, epilogue)
    }

    fn parts(&self) -> SoukLinear {
        let int8 = self.int8.as_ref();
        SoukLinear {
            panels: self.panels.as_ptr(),
            bias: pointer(self.bias.as_ref()),
            scale: pointer(int8.map(|i| &i.scale)),
            column: pointer(int8.map(|i| &i.column)),
            depth: self.in_features,
            width: self.out_features,
        }
    }
}

/// `epilogue(down(activation(up(x))))`, equal to two calls of `forward`, but the wide intermediate rows stay in the cache.
pub fn feed_forward(
    x: &Tensor,
    up: &PackedLinear,
    activation: Activation,
    down: &PackedLinear,
    epilogue: Epilogue,
) -> NativeResult<Tensor> {
    if up.out_features != down.in_features {
        let (wide, expected) = (up.out_features, down.in_features);
        return bad("down", format!("must take the {wide} columns of up, takes {expected}"));
    }
    run(&[up.parts(), down.parts()], Some(activation), x, epilogue)
}

/// The layers' widths must match; their pointers come from layers that the caller holds.
fn run(layers: &[SoukLinear], between: Option<Activation>, x: &Tensor, epilogue: Epilogue) -> NativeResult<Tensor> {
    let (depth, width) = (layers[0].depth, layers[layers.len() - 1].width);
    let (rows, columns) = matrix("x", x)?;
    if columns != depth {
        return bad("x", format!("must have {depth} columns, has {columns}"));
    }
    let epilogue = check_epilogue(rows, width, epilogue)?;
    if epilogue.dropout != 0.0 {
        return bad("dropout", "is for layers in training: set it to 0");
    }
    let between = between.map_or(0, code);
    // SAFETY: all tensors were checked to be dense, f32, contiguous and of matching shape; the layers' tensors are those
    // that the shim packed; everything outlives the call, which writes one tensor on success.
    ffi::tensor(|out| unsafe {
        ffi::souk_forward(layers.as_ptr(), layers.len() as i64, between, x.as_ptr(), &epilogue, out)
    })
}

/// Value of `souk::Activation` in the kernels.
pub(crate) fn code(activation: Activation) -> i32 {
    match activation {
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
        Activation::Silu => 4,
    }
}

pub(crate) fn check_epilogue(rows: i64, width: i64, epilogue: Epilogue) -> NativeResult<SoukEpilogue> {
    let null = std::ptr::null();
    let mut plain = SoukEpilogue { activation: 0, residual: null, weight: null, bias: null, eps: 0.0, dropout: 0.0 };
    match epilogue {
        Epilogue::None => {}
        Epilogue::Activation(activation) => plain.activation = code(activation),
        Epilogue::AddNorm(norm) => {
            let found = matrix("residual", norm.residual)?;
            if found != (rows, width) {
                return bad("residual", format!("must be {:?}, is {found:?}", (rows, width)));
            }
            vector_of("norm weight", norm.weight, width)?;
            vector_of("norm bias", norm.bias, width)?;
            share("dropout", norm.dropout)?;
            plain.residual = norm.residual.as_ptr();
            plain.weight = norm.weight.as_ptr();
            plain.bias = norm.bias.as_ptr();
            plain.eps = norm.eps;
            plain.dropout = norm.dropout;
        }
    }
    Ok(plain)
}

pub(crate) fn check_weight(weight: &Tensor, bias: Option<&Tensor>) -> NativeResult<(i64, i64)> {
    let (out_features, in_features) = matrix("weight", weight)?;
    if out_features == 0 || in_features == 0 {
        return bad("weight", "is empty");
    }
    if let Some(bias) = bias {
        vector_of("bias", bias, out_features)?;
    }
    Ok((out_features, in_features))
}

/// Copies a bias, so that later changes to the caller's tensor do not affect a frozen layer.
fn own(bias: Option<&Tensor>) -> NativeResult<Option<Tensor>> {
    bias.map(|b| b.f_detach_copy()).transpose().map_err(|e| NativeError::Torch(e.to_string()))
}
