//! libtorch's autocast to bf16: matrix products of f32 tensors run in bf16, operations that need precision stay in f32, and
//! gradients of f32 leaves are f32.

use crate::NativeResult;
use crate::ffi::{self, SoukAutocast};
use crate::tensor::bad;
use std::cell::Cell;
use std::marker::PhantomData;
use tch::Device;

thread_local! {
    /// Number of live guards for the CPU and for GPUs.
    static ON: [Cell<usize>; 2] = const { [Cell::new(0), Cell::new(0)] };
}

/// Enables autocast on this thread until dropped.
///
/// libtorch caches the casts of weights until the outermost guard is dropped. So start one guard per step, or later casts miss
/// the optimizer's changes. Also use one guard per pass if one pass records gradients and another does not: cached casts from a
/// pass without gradients do not propagate any. Weights without gradients are cast again by every product, so frequent users
/// should keep a bf16 copy.
#[derive(Debug)]
#[must_use = "autocast ends when the guard is dropped"]
pub struct Autocast {
    before: SoukAutocast,
    cuda: bool,
    /// The switches are thread-local.
    _stays: PhantomData<*const ()>,
}

impl Autocast {
    /// Enables autocast for one device type.
    pub fn start(device: Device) -> NativeResult<Self> {
        let cuda = match device {
            Device::Cpu => false,
            Device::Cuda(_) => true,
            other => return bad("device", format!("has no autocast here: {other:?}")),
        };
        let mut before = SoukAutocast::default();
        // SAFETY: the shim writes one struct of plain numbers, and changes switches of this thread.
        ffi::check(unsafe { ffi::souk_autocast_start(i32::from(cuda), &mut before) })?;
        ON.with(|on| on[usize::from(cuda)].update(|guards| guards + 1));
        Ok(Self { before, cuda, _stays: PhantomData })
    }

    /// True if a guard of this thread is live for the device type.
    pub fn is_on(device: Device) -> bool {
        ON.with(|on| on[usize::from(device != Device::Cpu)].get() > 0)
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        ON.with(|on| on[usize::from(self.cuda)].update(|guards| guards - 1));
        // SAFETY: restores the state that `start` saved, on the same thread, because the guard is not `Send`.
        unsafe { ffi::souk_autocast_end(&self.before) }
    }
}
