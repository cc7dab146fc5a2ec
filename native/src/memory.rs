//! Memory that was used and is not any more.

/// Gives what is free back to the system: an allocator keeps it for the next who asks, and after large work none may come.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
