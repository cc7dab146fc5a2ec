//! jemalloc for Rust and libtorch. With glibc's allocator, tensors of varying sizes fragment the heap, and a long-running
//! trainer grows for months (`docs/reliability.md`). A background thread of jemalloc returns memory that has been free for ten
//! seconds.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static MEMORY: Jemalloc = Jemalloc;
