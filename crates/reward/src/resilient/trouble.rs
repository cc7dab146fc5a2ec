//! `Trouble`: summary of a judge's current outage, for status pages. Logs once when an outage begins and once when it ends.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use souk_io::time;

/// Outage state of one judge.
pub struct Trouble {
    /// Address of the judge.
    place: String,
    now: Mutex<Option<Now>>,
}

struct Now {
    problem: String,
    /// Milliseconds since 1970.
    since: i64,
    num_failed: u64,
    num_unsent: u64,
}

impl Trouble {
    pub fn new(place: &str) -> Self {
        Self { place: place.into(), now: Mutex::default() }
    }

    /// Records a request with missing verdicts.
    pub fn failed(&self, problem: String) {
        let mut now = self.lock();
        let now = self.begin(&mut now, &problem);
        now.problem = problem;
        now.num_failed += 1;
    }

    /// Records a request that was not sent. `problem` is used if no other reason is known.
    pub fn unsent(&self, problem: &str) {
        let mut now = self.lock();
        self.begin(&mut now, problem).num_unsent += 1;
    }

    /// Records that all verdicts arrived.
    pub fn is_over(&self) {
        if let Some(past) = self.lock().take() {
            tracing::warn!(
                judge = self.place,
                failed = past.num_failed,
                unsent = past.num_unsent,
                "the judge has recovered"
            );
        }
    }

    pub fn describe(&self) -> Option<String> {
        let now = self.lock();
        let now = now.as_ref()?;
        let since = time::format(now.since);
        let since = since.get(11..16).unwrap_or(&since);
        let requests = |number: u64| if number == 1 { "1 request".into() } else { format!("{number} requests") };
        let failed = requests(now.num_failed);
        let unsent = match now.num_unsent {
            0 => String::new(),
            number => format!(", {} not sent", requests(number)),
        };
        Some(format!("{}: {}; {failed} failed since {since} UTC{unsent}", self.place, now.problem))
    }

    fn begin<'a>(&self, now: &'a mut Option<Now>, problem: &str) -> &'a mut Now {
        now.get_or_insert_with(|| {
            tracing::warn!(judge = self.place, problem, "the judge returns no verdicts");
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let since = since.map_or(0, |time| time.as_millis() as i64);
            Now { problem: problem.into(), since, num_failed: 0, num_unsent: 0 }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Now>> {
        // no code under this lock panics
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_described_until_it_ends() {
        let trouble = Trouble::new("http://judge:8090/score");
        assert_eq!(trouble.describe(), None);
        trouble.failed("answered 500".into());
        trouble.failed("Connection refused".into());
        trouble.unsent("the breaker is open");
        let said = trouble.describe().unwrap();
        assert!(said.starts_with("http://judge:8090/score: Connection refused; 2 requests failed since "), "{said}");
        assert!(said.ends_with(" UTC, 1 request not sent"), "{said}");
        trouble.is_over();
        assert_eq!(trouble.describe(), None);
    }
}
