//! Makes a remote judge resilient: batches the questions, sends several requests at once, retries transient failures, and stops
//! at the deadline. Returns one verdict or none per question, in order. Only problems that need a person (such as a wrong key)
//! are errors.

mod breaker;
mod limits;
mod refusals;
#[cfg(test)]
mod tests;
mod trouble;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use self::limits::{JudgeLimits, within};

use self::breaker::Breaker;
use self::refusals::Refusals;
use self::trouble::Trouble;
use super::wire::{Failure, FailureKind, JudgeClient, JudgeResult};
use super::{Question, RewardSource, Verdict};
use souk_io::error::{Error, Result};
use souk_io::telemetry::REWARD;

/// Longest pause between retries, in seconds.
const MAX_BACKOFF: f64 = 30.0;
/// Polling interval while waiting for a retry.
const GLANCE: Duration = Duration::from_millis(20);

pub struct ResilientJudge {
    client: Box<dyn JudgeClient>,
    limits: JudgeLimits,
    /// Items per request.
    batch: usize,
    breaker: Breaker,
    refusals: Refusals,
    trouble: Trouble,
}

/// State of one call of `judge`, shared by its threads.
struct Call<'a> {
    asked: &'a [Question<'a>],
    /// Indices into `asked`; each request has one query.
    requests: Vec<Vec<usize>>,
    next: AtomicUsize,
    deadline: Instant,
    verdicts: Mutex<Vec<Option<Verdict>>>,
    is_whole: AtomicBool,
    fatal: OnceLock<Failure>,
}

impl ResilientJudge {
    /// `limits` must have been checked, and `batch` must be at least 1.
    pub fn new(client: Box<dyn JudgeClient>, limits: JudgeLimits, batch: usize) -> Self {
        let breaker = Breaker::new(limits.breaker_failures, Duration::from_secs_f64(limits.breaker_seconds));
        let trouble = Trouble::new(client.place());
        Self { client, limits, batch: batch.max(1), breaker, refusals: Refusals::default(), trouble }
    }

    fn work(&self, call: &Call<'_>) {
        while let Some(places) = call.next_request() {
            let asked: Vec<Question<'_>> = places.iter().map(|place| call.asked[*place]).collect();
            match self.request(&asked, call) {
                Ok(Some(verdicts)) => call.keep(places, &verdicts),
                Ok(None) => call.is_whole.store(false, Ordering::Relaxed),
                // keep the first fatal error
                Err(fatal) => drop(call.fatal.set(fatal)),
            }
        }
    }

    /// `None` if there are no verdicts; an error is fatal.
    fn request(&self, asked: &[Question<'_>], call: &Call<'_>) -> std::result::Result<Option<Answers>, Failure> {
        if call.left().is_zero() {
            return Ok(self.unsent("late", "the call's deadline has passed"));
        }
        let Some(pass) = self.breaker.enter(call.deadline) else {
            return Ok(self.unsent("breaker_open", "the circuit breaker is open after repeated failures"));
        };
        let retries = if pass.is_probe() { 0 } else { self.limits.retries };
        let timeout = Duration::from_secs_f64(self.limits.timeout_seconds);
        // a request cut short by the call's deadline does not count against the judge
        let mut was_patient = false;
        let mut attempt = 0;
        loop {
            let patience = timeout.min(call.left());
            if patience.is_zero() {
                return Ok(self.unsent("late", "the call's deadline has passed"));
            }
            was_patient |= patience == timeout;
            let failure = match self.attempt(asked, patience) {
                Ok(verdicts) => {
                    pass.answered();
                    return Ok(Some(self.checked(asked, verdicts)));
                }
                Err(failure) => failure,
            };
            match failure.kind {
                FailureKind::Fatal => return Err(failure),
                FailureKind::Refused => {
                    pass.answered();
                    self.refusals.add(asked.iter(), &failure.problem);
                    self.trouble.failed(failure.problem);
                    return Ok(None);
                }
                FailureKind::Passing if attempt < retries && self.wait(attempt, failure.retry_after, call) => {
                    attempt += 1;
                }
                FailureKind::Passing | FailureKind::Broken => {
                    if was_patient || failure.kind == FailureKind::Broken {
                        pass.failed(failure.retry_after);
                    }
                    self.trouble.failed(failure.problem);
                    return Ok(None);
                }
            }
        }
    }

    fn attempt(&self, asked: &[Question<'_>], patience: Duration) -> JudgeResult {
        let begun = Instant::now();
        let answered = match self.client.ask(asked, patience) {
            Ok(verdicts) if verdicts.len() != asked.len() => {
                let (got, num) = (verdicts.len(), asked.len());
                Err(Failure::broken(format!("returned {got} verdicts for {num} questions")))
            }
            answered => answered,
        };
        REWARD.seconds.observe(begun.elapsed().as_secs_f64());
        let outcome = match answered.as_ref().map_err(|failure| failure.kind) {
            Ok(_) => "answered",
            Err(FailureKind::Passing) => "failed",
            Err(FailureKind::Broken) => "broken",
            Err(FailureKind::Refused) => "refused",
            Err(FailureKind::Fatal) => "fatal",
        };
        REWARD.requests.with_label_values(&[outcome]).inc();
        answered
    }

    fn unsent(&self, outcome: &str, problem: &str) -> Option<Answers> {
        REWARD.requests.with_label_values(&[outcome]).inc();
        self.trouble.unsent(problem);
        None
    }

    /// Records missing verdicts of an answer.
    fn checked(&self, asked: &[Question<'_>], verdicts: Answers) -> Answers {
        let (num, missing) = (verdicts.len(), verdicts.iter().filter(|verdict| verdict.is_none()).count());
        if missing > 0 {
            let without = asked.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_none());
            self.refusals.add(without.map(|(asked, _)| asked), "returned no valid score (0 to 1) or level for it");
            self.trouble.failed(format!("returned no valid score (0 to 1) or level for {missing} of {num} items"));
        }
        verdicts
    }

    /// Waits before the next attempt; `false` if there must not be one.
    fn wait(&self, attempt: u32, retry_after: Option<Duration>, call: &Call<'_>) -> bool {
        let most = (self.limits.backoff_seconds * 2_f64.powi(attempt.min(30) as i32)).min(MAX_BACKOFF);
        let pause = retry_after.unwrap_or_default() + Duration::from_secs_f64(most * chance());
        let until = Instant::now() + pause;
        if until >= call.deadline {
            return false;
        }
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if call.fatal.get().is_some() || self.breaker.is_open() {
                return false;
            }
            thread::sleep(left.min(GLANCE));
        }
        true
    }
}

type Answers = Vec<Option<Verdict>>;

impl RewardSource for ResilientJudge {
    fn id(&self) -> &str {
        self.client.id()
    }

    fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
        let call = Call::new(asked, self.batch, Duration::from_secs_f64(self.limits.deadline_seconds));
        let helpers = self.limits.concurrency.min(call.requests.len()).saturating_sub(1);
        thread::scope(|scope| {
            for _ in 0..helpers {
                let helper = thread::Builder::new().name("souk-judge".into());
                // without another thread, the call only takes longer
                if helper.spawn_scoped(scope, || self.work(&call)).is_err() {
                    break;
                }
            }
            self.work(&call);
        });
        if let Some(fatal) = call.fatal.into_inner() {
            return Err(Error::config(self.client.place(), fatal.problem));
        }
        let verdicts = call.verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
        if call.is_whole.into_inner() && !asked.is_empty() {
            self.trouble.is_over();
        }
        Ok(verdicts)
    }

    fn refusal(&self, asked: &Question<'_>) -> Option<String> {
        self.refusals.why(asked)
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.describe()
    }
}

impl<'a> Call<'a> {
    fn new(asked: &'a [Question<'a>], batch: usize, time: Duration) -> Self {
        Self {
            asked,
            requests: requests(asked, batch),
            next: AtomicUsize::new(0),
            deadline: Instant::now() + time,
            verdicts: Mutex::new(vec![None; asked.len()]),
            is_whole: AtomicBool::new(true),
            fatal: OnceLock::new(),
        }
    }

    fn next_request(&self) -> Option<&[usize]> {
        if self.fatal.get().is_some() {
            return None;
        }
        self.requests.get(self.next.fetch_add(1, Ordering::Relaxed)).map(Vec::as_slice)
    }

    fn keep(&self, places: &[usize], answers: &[Option<Verdict>]) {
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, answer) in places.iter().zip(answers) {
            verdicts[*place] = *answer;
        }
        if answers.iter().any(Option::is_none) {
            self.is_whole.store(false, Ordering::Relaxed);
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// Groups indices by query, in order of first appearance, at most `batch` per group.
fn requests(asked: &[Question<'_>], batch: usize) -> Vec<Vec<usize>> {
    let mut number: HashMap<&str, usize> = HashMap::new();
    let mut by_query: Vec<Vec<usize>> = Vec::new();
    for (place, one) in asked.iter().enumerate() {
        let number = *number.entry(one.query).or_insert_with(|| {
            by_query.push(Vec::new());
            by_query.len() - 1
        });
        by_query[number].push(place);
    }
    by_query.iter().flat_map(|places| places.chunks(batch)).map(<[usize]>::to_vec).collect()
}

/// Random number in [0, 1), for jitter.
fn chance() -> f64 {
    (RandomState::new().build_hasher().finish() >> 11) as f64 / (1_u64 << 53) as f64
}
