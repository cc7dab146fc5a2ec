//! Work on all cores.

use std::thread;

/// Results of `0..num`, in order, each computed by one of as many threads as there are cores.
pub fn on_all_cores<T: Send>(num: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    on_threads(thread::available_parallelism().map_or(1, usize::from), num, work)
}

fn on_threads<T: Send>(threads: usize, num: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let share = num.div_ceil(threads).max(1);
    if share == num {
        return (0..num).map(work).collect();
    }
    let work = &work;
    thread::scope(|scope| {
        let starts = (0..num).step_by(share);
        let threads: Vec<_> =
            starts.map(|start| scope.spawn(move || (start..num.min(start + share)).map(work).collect())).collect();
        let parts = threads
            .into_iter()
            .flat_map(|thread| -> Vec<T> { thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) });
        parts.collect()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn results_are_in_order_for_any_number_of_threads() {
        for threads in [1, 2, 3, 7, 100] {
            for num in [0, 1, 2, 6, 7, 8, 50] {
                let squares: Vec<usize> = (0..num).map(|at| at * at).collect();
                assert_eq!(on_threads(threads, num, |at| at * at), squares, "{num} on {threads} threads");
            }
        }
    }

    #[test]
    fn work_is_split_over_the_threads() {
        let seen = Mutex::new(HashSet::new());
        on_threads(3, 9, |_| seen.lock().unwrap().insert(thread::current().id()));
        assert_eq!(seen.into_inner().unwrap().len(), 3);
    }

    #[test]
    #[should_panic(expected = "at 5")]
    fn a_panic_reaches_the_caller() {
        on_threads(3, 9, |at| assert_ne!(at, 5, "at 5"));
    }
}
