//! Cached health checks. A check costs as much as a request and anyone may trigger it, so its result is reused for a second.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

const FRESH: Duration = Duration::from_secs(1);

pub struct Probe<T> {
    last: Mutex<Option<(Instant, T)>>,
}

impl<T> Default for Probe<T> {
    fn default() -> Self {
        Self { last: Mutex::default() }
    }
}

impl<T: Clone> Probe<T> {
    /// The result of the last second, or of `check` now. Concurrent callers wait for it.
    pub async fn get(&self, check: impl Future<Output = T>) -> T {
        let mut last = self.last.lock().await;
        if let Some((when, found)) = &*last
            && when.elapsed() < FRESH
        {
            return found.clone();
        }
        let found = check.await;
        *last = Some((Instant::now(), found.clone()));
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn concurrent_callers_share_a_check() {
        let (probe, looks) = (Probe::default(), AtomicU32::new(0));
        let look = async || {
            tokio::task::yield_now().await;
            looks.fetch_add(1, Ordering::Relaxed)
        };
        assert_eq!(tokio::join!(probe.get(look()), probe.get(look()), probe.get(look())), (0, 0, 0));
        tokio::time::sleep(FRESH).await;
        assert_eq!(probe.get(look()).await, 1);
    }
}
