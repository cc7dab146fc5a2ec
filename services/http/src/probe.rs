//! Whether something works: a look that costs as much as a request, and that everybody may ask for. One look answers all
//! who ask within a second.

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
    /// What was found within the last second, or what `look` finds now. Who asks meanwhile waits for that.
    pub async fn found(&self, look: impl Future<Output = T>) -> T {
        let mut last = self.last.lock().await;
        if let Some((when, found)) = &*last
            && when.elapsed() < FRESH
        {
            return found.clone();
        }
        let found = look.await;
        *last = Some((Instant::now(), found.clone()));
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn one_look_answers_all_who_ask() {
        let (probe, looks) = (Probe::default(), AtomicU32::new(0));
        let look = async || {
            tokio::task::yield_now().await;
            looks.fetch_add(1, Ordering::Relaxed)
        };
        assert_eq!(tokio::join!(probe.found(look()), probe.found(look()), probe.found(look())), (0, 0, 0));
        tokio::time::sleep(FRESH).await;
        assert_eq!(probe.found(look()).await, 1);
    }
}
