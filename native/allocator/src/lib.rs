//! jemalloc for Rust and libtorch. With glibc's allocator, tensors of varying sizes fragment the heap, and a long-running
//! trainer grows for months (`docs/reliability.md`). A background thread of jemalloc returns memory that has been free for ten
//! seconds.
//!
//! A program links this crate with `use souk_native_allocator as _;`. Libraries do not, because a process of another language, such
//! as Python, has an allocator already.

use std::ffi::c_char;
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static MEMORY: Jemalloc = Jemalloc;

/// Read by jemalloc when the program starts. By default it returns blocks from 8 MiB on to the system at once, and the kernel
/// clears their pages again for the next step's tensors: a tenth of a training step.
// SAFETY: jemalloc declares this symbol as a pointer to a zero-terminated string, which this is.
#[unsafe(export_name = "malloc_conf")]
static SETTINGS: Option<&'static c_char> = {
    const TEXT: &[u8] = b"oversize_threshold:0\0";
    // SAFETY: `TEXT` has at least one byte and lives as long as the program.
    Some(unsafe { &*TEXT.as_ptr().cast::<c_char>() })
};
