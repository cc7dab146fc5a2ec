//! Souk's C++ shim and low-level code: transformers on packed tokens on the CPU, for inference and training; libtorch
//! features for training (collectives, fused AdamW, autocast); loading of CUDA; memory-mapped files; vector products for
//! graph search; quotes in JSON; thread priority; immediate exit.
//!
//! Takes and returns `tch` tensors. Packed means that a batch's texts are concatenated without padding (`x` is `[T, D]`), and
//! `starts` holds their offsets: `[0, l0, l0 + l1, ..., T]`. A row of a result depends on its own text only. Attention and
//! trained layers record gradients, nothing else does. No C++ exception escapes, and functions that can panic document it. Uses
//! `tch::get_num_threads()` threads.
#![deny(missing_docs)]

mod adamw;
mod attention;
mod autocast;
mod c10d;
mod cuda;
mod ffi;
mod leave;
mod linear;
mod mapping;
mod priority;
mod products;
mod quotes;
mod rows;
mod tensor;
mod training;

pub use adamw::{AdamW, Moments, fused_adamw};
pub use attention::{GpuTexts, Scores, Visibility, attention, gpu_attention, joined_attention};
pub use autocast::Autocast;
pub use c10d::{GroupPosition, Network, ProcessGroup, Store};
pub use cuda::{load_cuda, torch_version};
pub use leave::leave_at_once;
pub use linear::{Activation, Epilogue, Norm, PackedLinear, feed_forward};
pub use mapping::{Mapping, Number, Numbers, bytes_of};
pub use priority::step_back;
pub use products::{code_products, product, products};
pub use quotes::{QuoteMap, plain_quotes};
pub use rows::{Embeddings, embed_norm, segment_mean};
pub use training::{TrainedLinear, packed_products_are_faster, supports_bf16, train_feed_forward};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// An argument has the wrong shape, type, device or layout.
    #[error("{name}: {problem}")]
    Argument {
        /// Name of the argument.
        name: &'static str,
        /// Problem.
        problem: String,
    },
    /// An environment variable has a value that is not known.
    #[error("{name}: {problem}")]
    Setting {
        /// Name of the variable.
        name: &'static str,
        /// Problem.
        problem: String,
    },
    /// The processor lacks a required feature.
    #[error("{0}")]
    Unsupported(&'static str),
    /// libtorch threw an exception; its text.
    #[error("libtorch: {0}")]
    Torch(String),
    /// A shared library could not be loaded.
    #[error("cannot load {library}: {reason}")]
    Load {
        /// Name of the library.
        library: &'static str,
        /// Message of the loader.
        reason: String,
    },
}

/// Result of the calls in this crate.
pub type NativeResult<T> = Result<T, NativeError>;

/// Only for this crate's tests.
#[doc(hidden)]
pub mod testing {
    /// Instruction sets of the compiled kernels.
    #[derive(Debug, Clone, Copy)]
    pub enum Isa {
        /// Baseline of the architecture.
        Baseline,
        /// AVX2 with FMA, and AVX-VNNI where the processor has it.
        Avx2,
        /// AVX-512 F, BW, VL and DQ.
        Avx512,
        /// The same with AVX512_VNNI.
        Vnni,
        /// The same with products of int8 and bf16 in AMX tiles.
        Amx,
    }

    /// Selects the kernels of the calling thread; false if the processor lacks the instructions.
    pub fn force(isa: Isa) -> bool {
        // SAFETY: takes a number and changes one thread-local variable of the shim.
        unsafe { crate::ffi::souk_force_isa(isa as i32) == 0 }
    }
}
