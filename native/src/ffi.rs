//! The functions of `csrc/`, and the conversion of their results to a `NativeResult`. Callers check all arguments.

use crate::{NativeError, NativeResult};
use std::ffi::{CStr, c_char, c_int};
use tch::Tensor;
use torch_sys::C_tensor;

#[repr(C)]
pub(crate) struct SoukLinear {
    pub panels: *const C_tensor,
    pub bias: *const C_tensor,
    pub scale: *const C_tensor,
    pub column: *const C_tensor,
    pub depth: i64,
    pub width: i64,
}

#[repr(C)]
pub(crate) struct SoukEpilogue {
    pub activation: i32,
    pub residual: *const C_tensor,
    pub weight: *const C_tensor,
    pub bias: *const C_tensor,
    pub eps: f64,
    pub dropout: f64,
}

#[repr(C)]
pub(crate) struct SoukTrainedLinear {
    pub panels: *const C_tensor,
    pub bias: *const C_tensor,
    pub weights: *const *const C_tensor,
    pub biases: *const *const C_tensor,
    pub paired: *const *const C_tensor,
    pub parts: i64,
    pub depth: i64,
    pub width: i64,
}

#[repr(C)]
pub(crate) struct SoukSegments {
    pub starts: *const i64,
    pub segments: i64,
    pub window: i64,
    pub causal: i32,
    pub scale: f64,
    pub bias: *const C_tensor,
    pub dropout: f64,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct SoukLayout {
    pub dense: i32,
    pub kind: i32,
    pub dims: i64,
    pub sizes: [i64; 4],
    pub strides: [i64; 4],
}

/// Connection to a TCPStore; opaque to Rust.
#[repr(C)]
pub(crate) struct SoukStore {
    _opaque: [u8; 0],
}

/// ProcessGroupGloo with an optional ProcessGroupNCCL; opaque to Rust.
#[repr(C)]
pub(crate) struct SoukGroup {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct SoukGroupOptions {
    pub prefix: *const c_char,
    pub rank: i32,
    pub size: i32,
    pub interface: *const c_char,
    pub address: *const c_char,
    pub timeout_ms: i64,
}

#[repr(C)]
pub(crate) struct SoukAdamW {
    pub parameters: *const *const C_tensor,
    pub gradients: *const *const C_tensor,
    pub first: *const *const C_tensor,
    pub second: *const *const C_tensor,
    pub steps: *const C_tensor,
    pub count: i64,
    pub rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
}

#[repr(C)]
pub(crate) struct SoukGpuTexts {
    pub starts: *const C_tensor,
    pub longest: i64,
    /// 0: none.
    pub window: i64,
    pub causal: i32,
    pub scale: f64,
    pub dropout: f64,
}

#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct SoukAutocast {
    pub device: i32,
    pub enabled: i32,
    pub cache: i32,
    pub kind: i32,
}

unsafe extern "C" {
    pub(crate) fn souk_fused_adamw(adamw: *const SoukAdamW) -> c_int;
    pub(crate) fn souk_autocast_start(cuda: i32, before: *mut SoukAutocast) -> c_int;
    pub(crate) fn souk_autocast_end(before: *const SoukAutocast);

    pub(crate) fn souk_store_open(
        address: *const c_char,
        port: u16,
        serve: i32,
        timeout_ms: i64,
        out: *mut *mut SoukStore,
    ) -> c_int;
    pub(crate) fn souk_store_free(store: *mut SoukStore);
    pub(crate) fn souk_store_set(store: *const SoukStore, key: *const c_char, data: *const u8, length: i64) -> c_int;
    pub(crate) fn souk_store_set_if_absent(
        store: *const SoukStore,
        key: *const c_char,
        data: *const u8,
        length: i64,
        found: *mut *const u8,
        found_length: *mut i64,
    ) -> c_int;
    pub(crate) fn souk_store_get(
        store: *const SoukStore,
        key: *const c_char,
        found: *mut *const u8,
        found_length: *mut i64,
    ) -> c_int;
    pub(crate) fn souk_group_open(
        store: *const SoukStore,
        options: *const SoukGroupOptions,
        out: *mut *mut SoukGroup,
    ) -> c_int;
    pub(crate) fn souk_group_join_nccl(
        group: *mut SoukGroup,
        store: *const SoukStore,
        options: *const SoukGroupOptions,
        library: *const c_char,
    ) -> c_int;
    pub(crate) fn souk_group_free(group: *mut SoukGroup);
    pub(crate) fn souk_group_all_gather(group: *const SoukGroup, x: *const C_tensor, out: *mut *mut C_tensor) -> c_int;
    pub(crate) fn souk_group_all_reduce(group: *const SoukGroup, x: *const C_tensor) -> c_int;
    pub(crate) fn souk_group_reduce_scatter(group: *const SoukGroup, out: *const C_tensor, x: *const C_tensor)
    -> c_int;
    pub(crate) fn souk_group_broadcast(group: *const SoukGroup, x: *const C_tensor, root: i32) -> c_int;
    pub(crate) fn souk_group_barrier(group: *const SoukGroup) -> c_int;

    pub(crate) fn souk_last_error() -> *const c_char;
    pub(crate) fn souk_show_config() -> *const c_char;
    pub(crate) fn souk_force_isa(isa: c_int) -> c_int;
    pub(crate) fn souk_supports_bf16() -> c_int;
    pub(crate) fn souk_layout(t: *const C_tensor, out: *mut SoukLayout) -> c_int;
    pub(crate) fn souk_pack_f32(weight: *const C_tensor, out: *mut *mut C_tensor) -> c_int;
    pub(crate) fn souk_pack_int8(weight: *const C_tensor, out: *mut *mut C_tensor) -> c_int;
    pub(crate) fn souk_forward(
        layers: *const SoukLinear,
        num_layers: i64,
        between: i32,
        x: *const C_tensor,
        epilogue: *const SoukEpilogue,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn souk_pack_training(
        weights: *const *const C_tensor,
        parts: i64,
        bf16: i32,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn souk_pair_rows(weight: *const C_tensor, out: *mut *mut C_tensor) -> c_int;
    pub(crate) fn souk_train_linear(
        layers: *const SoukTrainedLinear,
        num_layers: i64,
        between: i32,
        x: *const C_tensor,
        epilogue: *const SoukEpilogue,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn souk_attention(
        q: *const C_tensor,
        k: *const C_tensor,
        v: *const C_tensor,
        heads: i64,
        shared: i64,
        segments: *const SoukSegments,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn souk_gpu_attention(
        q: *const C_tensor,
        k: *const C_tensor,
        v: *const C_tensor,
        texts: *const SoukGpuTexts,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn souk_embed_norm(
        ids: *const C_tensor,
        positions: *const C_tensor,
        word: *const C_tensor,
        position: *const C_tensor,
        token_type: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        eps: f64,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn souk_segment_mean(
        x: *const C_tensor,
        starts: *const i64,
        skip: *const i64,
        segments: i64,
        out: *mut *mut C_tensor,
    ) -> c_int;
}

/// Null for `None`.
pub(crate) fn pointer(t: Option<&Tensor>) -> *const C_tensor {
    t.map_or(std::ptr::null(), Tensor::as_ptr)
}

/// Result of a call that returned `code`; must run on the thread that made the call.
pub(crate) fn check(code: c_int) -> NativeResult<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the shim returns a zero-terminated string of this thread, which lives until this thread's next call.
    let text = unsafe { CStr::from_ptr(souk_last_error()) };
    Err(NativeError::Torch(text.to_string_lossy().into_owned()))
}

/// Runs a call that writes `N` tensors on success.
pub(crate) fn tensors<const N: usize>(call: impl FnOnce(*mut *mut C_tensor) -> c_int) -> NativeResult<[Tensor; N]> {
    let mut out = [std::ptr::null_mut(); N];
    check(call(out.as_mut_ptr()))?;
    // SAFETY: on success every entry is a tensor that the shim made with `new` and gives away.
    Ok(out.map(|t| unsafe { Tensor::from_ptr(t) }))
}

/// The same for one tensor.
pub(crate) fn tensor(call: impl FnOnce(*mut *mut C_tensor) -> c_int) -> NativeResult<Tensor> {
    let [t] = tensors::<1>(call)?;
    Ok(t)
}
