//! libtorch's autocast to bf16: products of f32 tensors are computed in bf16, what needs precision stays in f32, and the
//! gradient of an f32 leaf is f32.

use crate::NativeResult;
use crate::ffi::{self, SoukAutocast};
use crate::tensor::bad;
use std::cell::Cell;
use std::marker::PhantomData;
use tch::Device;

thread_local! {
    /// How many guards live, for work on the CPU and for work on GPUs.
    static ON: [Cell<usize>; 2] = const { [Cell::new(0), Cell::new(0)] };
}

/// While it lives, this thread casts to bf16; dropped, everything is as it was before.
///
/// Casts of weights are kept until the outermost guard is dropped. So start one for each step, or an optimizer's changes
/// are not seen; and one for each pass, where one pass records gradients and another does not, or the weights' casts of the
/// pass without lead no gradient back. Weights without gradients are cast anew by every product: whoever passes them often
/// keeps a copy.
#[derive(Debug)]
#[must_use = "autocast ends when the guard is dropped"]
pub struct Autocast {
    before: SoukAutocast,
    cuda: bool,
    /// The switches belong to a thread.
    _stays: PhantomData<*const ()>,
}

impl Autocast {
    /// For work on the device; work on others is not touched.
    pub fn start(device: Device) -> NativeResult<Self> {
        let cuda = match device {
            Device::Cpu => false,
            Device::Cuda(_) => true,
            other => return bad("device", format!("has no autocast here: {other:?}")),
        };
        let mut before = SoukAutocast::default();
        // SAFETY: the shim writes one struct of plain numbers, and touches switches of this thread.
        ffi::check(unsafe { ffi::souk_autocast_start(i32::from(cuda), &mut before) })?;
        ON.with(|on| on[usize::from(cuda)].update(|guards| guards + 1));
        Ok(Self { before, cuda, _stays: PhantomData })
    }

    /// Whether a guard of this thread lives for work on the device.
    pub fn is_on(device: Device) -> bool {
        ON.with(|on| on[usize::from(device != Device::Cpu)].get() > 0)
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        ON.with(|on| on[usize::from(self.cuda)].update(|guards| guards - 1));
        // SAFETY: what `start` wrote, on the thread that called it, for the guard cannot leave it.
        unsafe { ffi::souk_autocast_end(&self.before) }
    }
}
