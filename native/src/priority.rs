//! Thread priority.

/// Gives the calling thread, and threads it starts later, the lowest priority. This cannot be undone.
pub fn step_back() {
    const LAST: libc::c_int = 19;
    // SAFETY: takes numbers only. On Linux, process 0 is the calling thread.
    let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LAST) };
    debug_assert_eq!(refused, 0, "whoever may run may run later");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority() -> i32 {
        // SAFETY: takes numbers only.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn a_thread_steps_back_with_those_it_starts_and_no_other() {
        let before = priority();
        let work = || {
            step_back();
            std::thread::spawn(priority).join().expect("asks only")
        };
        assert_eq!(std::thread::spawn(work).join().expect("asks only"), 19);
        assert_eq!(priority(), before);
    }
}
