//! AdamW in one pass over parameters, gradients and moments, on the CPU and on CUDA (`at::_fused_adamw_`).
//!
//! For each parameter, with `t` its step: `p -= rate * weight_decay * p`, `m = beta1 m + (1 - beta1) g`,
//! `v = beta2 v + (1 - beta2) g²`, `p -= rate * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)`.

use crate::ffi::{self, SoukAdamW};
use crate::tensor::bad;
use crate::{NativeError, NativeResult};
use tch::{Kind, Tensor};
use torch_sys::C_tensor;

/// Hyperparameters of one step.
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    /// Learning rate.
    pub rate: f64,
    /// Decay of the mean of gradients (β1).
    pub beta1: f64,
    /// Decay of the mean of squared gradients (β2).
    pub beta2: f64,
    /// Added to the root of the mean of squares (ε).
    pub eps: f64,
    /// Decoupled weight decay, per unit of the learning rate.
    pub weight_decay: f64,
}

/// Optimizer state of each parameter.
#[derive(Debug, Clone, Copy)]
pub struct Moments<'a> {
    /// Means of gradients, with the parameters' shape and type; updated in place.
    pub first: &'a [Tensor],
    /// Means of squared gradients; updated in place.
    pub second: &'a [Tensor],
    /// Number of this step for each parameter; the first is 1.
    pub steps: &'a [i64],
}

/// One step, in place. All tensors must be contiguous, on one device, and all f32 or all f64.
pub fn fused_adamw(
    parameters: &[Tensor],
    gradients: &[Tensor],
    moments: Moments,
    settings: &AdamW,
) -> NativeResult<()> {
    let count = parameters.len();
    let Moments { first, second, steps } = moments;
    for (name, length) in
        [("gradients", gradients.len()), ("first", first.len()), ("second", second.len()), ("steps", steps.len())]
    {
        if length != count {
            return bad(name, format!("must be {count}, one for each parameter, are {length}"));
        }
    }
    let Some(model) = parameters.first() else { return Ok(()) };
    for (name, list) in [("parameters", parameters), ("gradients", gradients), ("first", first), ("second", second)] {
        for (i, (tensor, parameter)) in list.iter().zip(parameters).enumerate() {
            fits(tensor, parameter, model).or_else(|problem| bad(name, format!("number {i} {problem}")))?;
        }
    }
    if let Some(step) = steps.iter().find(|step| **step < 1) {
        return bad("steps", format!("count from 1, one is {step}"));
    }
    let device = model.device();
    let steps: Vec<f32> = steps.iter().map(|step| *step as f32).collect();
    let steps =
        Tensor::from_slice(&steps).f_to_device(device).map_err(|error| NativeError::Torch(error.to_string()))?;
    let [parameters, gradients, first, second] = [parameters, gradients, first, second].map(pointers);
    let adamw = SoukAdamW {
        parameters: parameters.as_ptr(),
        gradients: gradients.as_ptr(),
        first: first.as_ptr(),
        second: second.as_ptr(),
        steps: steps.as_ptr(),
        count: count as i64,
        rate: settings.rate,
        beta1: settings.beta1,
        beta2: settings.beta2,
        eps: settings.eps,
        weight_decay: settings.weight_decay,
    };
    // SAFETY: every list has `count` valid tensors of checked shape, kind, device and layout, which outlive the call.
    ffi::check(unsafe { ffi::souk_fused_adamw(&adamw) })
}

/// Checks, because the kernel checks neither type nor layout.
fn fits(tensor: &Tensor, parameter: &Tensor, model: &Tensor) -> Result<(), String> {
    if !tensor.defined() || !parameter.defined() || !model.defined() {
        return Err("is undefined: has backward been called?".to_owned());
    }
    if tensor.is_sparse() || !tensor.is_contiguous() {
        return Err("is not dense and contiguous".to_owned());
    }
    if !matches!(tensor.kind(), Kind::Float | Kind::Double) || tensor.kind() != model.kind() {
        return Err(format!("is {:?}; all must be Float, or all Double", tensor.kind()));
    }
    if tensor.device() != model.device() {
        return Err(format!("is on {:?}, another is on {:?}", tensor.device(), model.device()));
    }
    if tensor.size() != parameter.size() {
        return Err(format!("has shape {:?}, its parameter {:?}", tensor.size(), parameter.size()));
    }
    Ok(())
}

fn pointers(tensors: &[Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr()).collect()
}
