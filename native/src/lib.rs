//! Souk's one C++ shim: frozen CPU inference of transformers on packed tokens; what training needs of libtorch (collectives,
//! fused AdamW, autocast); loading the CUDA half of libtorch; files mapped into memory; the products that a walk through a graph
//! of neighbours asks for; which thread goes first; who hands out memory; and a process that ends amid
//! its work.
//!
//! Takes and gives `tch` tensors. Packed means that all texts of a batch are concatenated (`x` is `[T, D]`, no padding) and
//! `starts` says where each begins: `[0, l0, l0 + l1, ..., T]`. A row of a result depends on its own text only. Nothing here
//! records gradients or lets a C++ exception through, and what panics says so. Threads: as many as `tch::get_num_threads()` says.
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
mod memory;
mod priority;
mod products;
mod rows;
mod tensor;

pub use adamw::{AdamW, Moments, fused_adamw};
pub use attention::{Visibility, attention};
pub use autocast::Autocast;
pub use c10d::{GroupPosition, Network, ProcessGroup, Store};
pub use cuda::{load_cuda, torch_version};
pub use leave::leave_at_once;
pub use linear::{Activation, Epilogue, Norm, PackedLinear, feed_forward, supports_int8};
pub use mapping::{Mapping, Number, Numbers};
pub use priority::step_back;
pub use products::{code_products, product, products};
pub use rows::{Embeddings, embed_norm, segment_mean};

/// Why a call was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// An argument has the wrong shape, type, device or layout.
    #[error("{name}: {problem}")]
    Argument {
        /// The argument.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// This processor lacks what the call needs.
    #[error("{0}")]
    Unsupported(&'static str),
    /// libtorch threw; the text is its own.
    #[error("libtorch: {0}")]
    Torch(String),
    /// A shared library could not be loaded; the text is the loader's.
    #[error("cannot load {library}: {reason}")]
    Load {
        /// The library's name.
        library: &'static str,
        /// What the loader said.
        reason: String,
    },
}

/// Result of the calls in this crate.
pub type NativeResult<T> = Result<T, NativeError>;

/// For this crate's tests only.
#[doc(hidden)]
pub mod testing {
    /// The instruction sets that the kernels are compiled for.
    #[derive(Debug, Clone, Copy)]
    pub enum Isa {
        /// What every processor of the architecture has.
        Baseline,
        /// AVX2 with FMA.
        Avx2,
        /// AVX-512 F, BW, VL and DQ.
        Avx512,
    }

    /// Makes the calling thread use one set of kernels; false where the processor lacks it.
    pub fn force(isa: Isa) -> bool {
        // SAFETY: takes a number and touches one thread-local variable of the shim.
        unsafe { crate::ffi::souk_force_isa(isa as i32) == 0 }
    }
}
