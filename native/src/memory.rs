//! Who hands out memory: jemalloc, to Rust and to libtorch alike. glibc's own allocator keeps the tensors of batches of ever other
//! lengths in pieces that fit nothing, so that a process that trains for months grows for months (`docs/reliability.md`).
//! What is free for ten seconds goes back to the system, by a thread of jemalloc's own.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static MEMORY: Jemalloc = Jemalloc;
