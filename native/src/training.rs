//! Linear layers in training: libtorch records their gradients, and the forward pass uses copies of the weights that are packed
//! once for all batches between two steps of the optimizer. Products have factors in f32 or in bf16; everything else is in f32.

use crate::ffi::{self, SoukTrainedLinear, pointer};
use crate::linear::{check_epilogue, check_weight, code};
use crate::tensor::{bad, matrix};
use crate::{Activation, Epilogue, NativeError, NativeResult, Norm};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

/// One or more linear layers with the same input, as one.
pub struct TrainedLinear {
    /// The weights in panels, for forward; backward reads them as they are, or `paired`.
    panels: Tensor,
    /// Each weight, rounded to bf16 across pairs of rows; empty for products in f32.
    paired: Vec<Tensor>,
    /// Biases of all layers; `None` if none has one.
    bias: Option<Tensor>,
    weights: Vec<Tensor>,
    biases: Vec<Option<Tensor>>,
    /// Versions of the parameters when they were packed.
    versions: Vec<i64>,
    in_features: i64,
    out_features: i64,
}

impl std::fmt::Debug for TrainedLinear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrainedLinear")
            .field("in_features", &self.in_features)
            .field("out_features", &self.out_features)
            .finish_non_exhaustive()
    }
}

impl TrainedLinear {
    /// Packs weights `[out, in]`, whose outputs are put side by side, and their biases `[out]`. `factors` is the kind in which
    /// rows and weights are multiplied: `Float`, or `BFloat16` where [`supports_bf16`] is true.
    pub fn pack(weights: &[&Tensor], biases: &[Option<&Tensor>], factors: Kind) -> NativeResult<Self> {
        let bf16 = match factors {
            Kind::Float => false,
            Kind::BFloat16 if supports_bf16() => true,
            Kind::BFloat16 => {
                return Err(NativeError::Unsupported("bf16 products need a processor with avx512_bf16; use f32"));
            }
            other => return bad("factors", format!("are of kind {other:?}: use Float or BFloat16")),
        };
        if weights.is_empty() || weights.len() != biases.len() {
            return bad("biases", format!("are {} for {} weights", biases.len(), weights.len()));
        }
        let sizes = weights.iter().zip(biases).map(|(weight, bias)| check_weight(weight, *bias));
        let sizes = sizes.collect::<NativeResult<Vec<(i64, i64)>>>()?;
        let in_features = sizes[0].1;
        if sizes.iter().any(|(_, inputs)| *inputs != in_features) {
            return bad("weights", "must have the same number of inputs");
        }
        let pointers: Vec<*const C_tensor> = weights.iter().map(|weight| weight.as_ptr()).collect();
        // SAFETY: the weights were checked, and the shim writes one tensor on success.
        let panels = ffi::tensor(|out| unsafe {
            ffi::souk_pack_training(pointers.as_ptr(), sizes.len() as i64, bf16.into(), out)
        })?;
        let pair = |weight: &&Tensor| {
            // SAFETY: as above.
            ffi::tensor(|out| unsafe { ffi::souk_pair_rows(weight.as_ptr(), out) })
        };
        let paired = if bf16 { weights.iter().map(pair).collect::<NativeResult<_>>()? } else { Vec::new() };
        let _no_grad = tch::no_grad_guard();
        let bias = biases.iter().any(Option::is_some).then(|| {
            let parts = sizes.iter().zip(biases).map(|((outputs, _), bias)| match bias {
                Some(bias) => bias.detach(),
                None => Tensor::zeros([*outputs], (Kind::Float, Device::Cpu)),
            });
            Tensor::cat(&parts.collect::<Vec<_>>(), 0)
        });
        let mut packed = Self {
            panels,
            paired,
            bias,
            weights: weights.iter().map(|weight| weight.shallow_clone()).collect(),
            biases: biases.iter().map(|bias| bias.map(Tensor::shallow_clone)).collect(),
            versions: Vec::new(),
            in_features,
            out_features: sizes.iter().map(|(outputs, _)| outputs).sum(),
        };
        packed.versions = packed.current_versions();
        Ok(packed)
    }

    /// False once a parameter has changed in place, as it does in a step of the optimizer, or for products of other factors.
    pub fn is_current(&self, factors: Kind) -> bool {
        self.factors() == factors && self.versions == self.current_versions()
    }

    fn factors(&self) -> Kind {
        if self.paired.is_empty() { Kind::Float } else { Kind::BFloat16 }
    }

    /// Output columns.
    pub fn out_features(&self) -> i64 {
        self.out_features
    }

    /// `x * weight^T + bias` for `x` `[T, in]`, contiguous f32, or the norm of its sum with a residual; returns `[T, out]`.
    pub fn forward(&self, x: &Tensor, norm: Option<Norm>) -> NativeResult<Tensor> {
        run(&[self], None, x, norm)
    }

    fn current_versions(&self) -> Vec<i64> {
        self.weights.iter().chain(self.biases.iter().flatten()).map(Tensor::internal_version).collect()
    }
}

/// `down(activation(up(x)))`, or the norm of its sum with a residual, which may be `x`.
pub fn train_feed_forward(
    x: &Tensor,
    up: &TrainedLinear,
    activation: Activation,
    down: &TrainedLinear,
    norm: Option<Norm>,
) -> NativeResult<Tensor> {
    if up.out_features != down.in_features {
        let (wide, expected) = (up.out_features, down.in_features);
        return bad("down", format!("must take the {wide} columns of up, takes {expected}"));
    }
    run(&[up, down], Some(activation), x, norm)
}

fn run(layers: &[&TrainedLinear], between: Option<Activation>, x: &Tensor, norm: Option<Norm>) -> NativeResult<Tensor> {
    let (depth, width) = (layers[0].in_features, layers[layers.len() - 1].out_features);
    let (rows, columns) = matrix("x", x)?;
    if columns != depth {
        return bad("x", format!("must have {depth} columns, has {columns}"));
    }
    let epilogue = check_epilogue(rows, width, norm.map_or(Epilogue::None, Epilogue::AddNorm))?;
    let weights: Vec<Vec<*const C_tensor>> =
        layers.iter().map(|layer| layer.weights.iter().map(|w| w.as_ptr()).collect()).collect();
    let biases: Vec<Vec<*const C_tensor>> =
        layers.iter().map(|layer| layer.biases.iter().map(|b| pointer(b.as_ref())).collect()).collect();
    let paired: Vec<Vec<*const C_tensor>> =
        layers.iter().map(|layer| layer.paired.iter().map(|w| w.as_ptr()).collect()).collect();
    let parts = |i: usize| SoukTrainedLinear {
        panels: layers[i].panels.as_ptr(),
        bias: pointer(layers[i].bias.as_ref()),
        weights: weights[i].as_ptr(),
        biases: biases[i].as_ptr(),
        paired: if paired[i].is_empty() { std::ptr::null() } else { paired[i].as_ptr() },
        parts: weights[i].len() as i64,
        depth: layers[i].in_features,
        width: layers[i].out_features,
    };
    let parts: Vec<SoukTrainedLinear> = (0..layers.len()).map(parts).collect();
    let between = between.map_or(0, code);
    // SAFETY: all tensors were checked to be dense, f32, contiguous and of matching shape; the packed ones are those that the
    // shim made; everything outlives the call, which writes one tensor on success.
    ffi::tensor(|out| unsafe {
        ffi::souk_train_linear(parts.as_ptr(), parts.len() as i64, between, x.as_ptr(), &epilogue, out)
    })
}

/// True if products with factors in bf16 work here.
pub fn supports_bf16() -> bool {
    // SAFETY: takes no arguments and reads the processor's features.
    unsafe { ffi::souk_supports_bf16() != 0 }
}

const PRODUCTS: &str = "SOUK_PRODUCTS";

/// False if libtorch's products of such factors are faster here than the packed ones. Measured once per process and kind, unless
/// the environment variable `SOUK_PRODUCTS` says `packed` or `libtorch`; anything else there is an error.
pub fn packed_products_are_faster(factors: Kind) -> NativeResult<bool> {
    static FASTER: Mutex<[Option<bool>; 2]> = Mutex::new([None; 2]);
    let bf16 = factors == Kind::BFloat16;
    if bf16 && !supports_bf16() {
        return Ok(false);
    }
    match std::env::var_os(PRODUCTS) {
        None => {}
        Some(name) if name == "packed" => return Ok(true),
        Some(name) if name == "libtorch" => return Ok(false),
        Some(name) => {
            let problem = format!("is `{}`: use packed or libtorch, or unset it to measure", name.display());
            return Err(NativeError::Setting { name: PRODUCTS, problem });
        }
    }
    // held meanwhile: two threads that measure at once would disturb each other
    let measured = &mut FASTER.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(bf16)];
    match measured {
        Some(faster) => Ok(*faster),
        None => Ok(*measured.insert(measured_gain(factors)? > MIN_GAIN)),
    }
}

/// Below one, because training with packed products needs less memory and fewer passes over it.
const MIN_GAIN: f64 = 0.9;

/// Duration of libtorch's product relative to the packed one, the best of a few of each in turn. Both start from rows of f32, as in
/// training.
fn measured_gain(factors: Kind) -> NativeResult<f64> {
    let _no_grad = tch::no_grad_guard();
    let ones = |rows: i64| Tensor::ones([rows, 384], (Kind::Float, Device::Cpu));
    let (x, weight) = (ones(768), ones(384));
    let plain_weight = weight.to_kind(factors);
    let packed = TrainedLinear::pack(&[&weight], &[None], factors)?;
    let [mut theirs, mut ours] = [Duration::MAX; 2];
    for _ in 0..7 {
        let begin = Instant::now();
        drop(x.to_kind(factors).linear::<&Tensor>(&plain_weight, None));
        theirs = theirs.min(begin.elapsed());
        let begin = Instant::now();
        drop(packed.forward(&x, None)?);
        ours = ours.min(begin.elapsed());
    }
    Ok(theirs.as_secs_f64() / ours.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gain_is_a_ratio_of_two_durations() {
        for factors in [Kind::Float, Kind::BFloat16] {
            if factors == Kind::Float || supports_bf16() {
                let gain = measured_gain(factors).unwrap();
                assert!((0.01..100.0).contains(&gain), "{gain}");
            }
        }
    }
}
