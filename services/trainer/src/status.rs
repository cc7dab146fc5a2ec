//! What the trainer does just now: written by its threads, read by whoever asks. An alarm is told once when it begins and once
//! when it is over.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::rounds::RoundOutcome;
use serde::Serialize;
use souk::dataset::IngestProgress as Reading;
use souk::telemetry::TRAINER;
use souk::train::StepReport;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    #[default]
    Opening,
    /// For examples, or for time to pass.
    Waiting,
    /// For a search service to serve what was offered.
    Offering,
    Training,
    Measuring,
    Publishing,
}

impl Doing {
    fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Waiting => "waiting",
            Self::Offering => "offering",
            Self::Training => "training",
            Self::Measuring => "measuring",
            Self::Publishing => "publishing",
        }
    }
}

/// What is shown. Times are seconds since 1970.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shown {
    pub doing: Doing,
    pub served: Option<String>,
    pub round: Option<u64>,
    pub stage: Option<String>,
    /// Of the stage that trains.
    pub step: u64,
    pub steps: u64,
    pub loss: Option<f64>,
    pub texts_per_second: Option<f64>,
    /// What each stage waits for.
    pub stages: Vec<Waiting>,
    /// Since the log was last opened.
    pub log: Reading,
    pub last_message_at: i64,
    pub last_round: Option<Last>,
    pub alarms: BTreeMap<&'static str, Alarm>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Waiting {
    pub stage: String,
    /// Examples that it has not been given, and how many make a turn.
    pub fresh: u64,
    pub examples: u64,
    /// Seconds since its last turn ended, and how many make a turn where there are a few examples.
    pub since: u64,
    pub seconds: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Last {
    pub round: u64,
    #[serde(flatten)]
    pub ended: RoundOutcome,
}

#[derive(Clone, Debug, Serialize)]
pub struct Alarm {
    pub problem: String,
    pub since: i64,
}

pub struct Status {
    shown: Mutex<Shown>,
    pulse: Mutex<Pulse>,
}

/// When something last happened.
struct Pulse {
    message: Instant,
    step: Instant,
    /// Up to when the time was accounted for.
    accounted: Instant,
}

impl Status {
    pub fn new() -> Self {
        let now = Instant::now();
        let pulse = Mutex::new(Pulse { message: now, step: now, accounted: now });
        Self { shown: Mutex::new(Shown { last_message_at: seconds_now(), ..Shown::default() }), pulse }
    }

    pub fn shown(&self) -> Shown {
        self.lock().clone()
    }

    pub fn doing(&self, doing: Doing) {
        self.account();
        let mut shown = self.lock();
        if shown.doing != doing {
            tracing::info!(doing = doing.name(), round = shown.round, "the trainer goes on");
        }
        if doing != Doing::Training {
            (shown.stage, shown.loss, shown.texts_per_second) = (None, None, None);
        }
        shown.doing = doing;
    }

    /// Adds the time since it was last called to what is being done.
    pub fn account(&self) {
        let doing = self.lock().doing;
        let mut pulse = unpoisoned(&self.pulse);
        TRAINER.seconds.with_label_values(&[doing.name()]).inc_by(pulse.accounted.elapsed().as_secs_f64());
        pulse.accounted = Instant::now();
    }

    pub fn change(&self, change: impl FnOnce(&mut Shown)) {
        change(&mut self.lock());
    }

    /// A stage begins.
    pub fn stage(&self, round: u64, stage: &str) {
        self.doing(Doing::Training);
        let mut shown = self.lock();
        (shown.round, shown.stage) = (Some(round), Some(stage.into()));
        (shown.step, shown.steps) = (0, 0);
        unpoisoned(&self.pulse).step = Instant::now();
    }

    pub fn learned(&self, learned: &StepReport) {
        let mut shown = self.lock();
        (shown.step, shown.steps) = (learned.step, learned.steps);
        (shown.loss, shown.texts_per_second) = (Some(learned.metrics.loss), Some(learned.texts_per_second));
        unpoisoned(&self.pulse).step = Instant::now();
    }

    /// The log has been read on.
    pub fn read(&self, progress: &Reading) {
        let mut shown = self.lock();
        if progress.counts.messages != shown.log.counts.messages {
            shown.last_message_at = seconds_now();
            unpoisoned(&self.pulse).message = Instant::now();
        }
        shown.log = progress.clone();
    }

    pub fn since_message(&self) -> Duration {
        unpoisoned(&self.pulse).message.elapsed()
    }

    /// How long the stage that trains has taken for its step; none where none trains.
    pub fn since_step(&self) -> Option<Duration> {
        (self.lock().doing == Doing::Training).then(|| unpoisoned(&self.pulse).step.elapsed())
    }

    /// Notes how far mixes have moved, and says so where that is far.
    pub fn drift(&self, alarm: &'static str, moved: &[(&'static str, f64)], most: f64) {
        let mut told = Vec::new();
        for (what, moved) in moved {
            TRAINER.drift.with_label_values(&[what]).set(*moved);
            if *moved > most && most > 0.0 {
                told.push(format!("the mix of {what} has moved by {moved:.2}"));
            }
        }
        let problem = || format!("{}: look before you trust what is learned from it", told.join(", "));
        self.alarm(alarm, (!told.is_empty()).then(problem));
    }

    /// Something is wrong, or is not any more.
    pub fn alarm(&self, name: &'static str, problem: Option<String>) {
        let mut shown = self.lock();
        TRAINER.alarms.with_label_values(&[name]).set(i64::from(problem.is_some()));
        match problem {
            Some(problem) => {
                let alarm = shown.alarms.entry(name).or_insert_with(|| {
                    tracing::error!(alarm = name, problem, "something is wrong");
                    Alarm { problem: String::new(), since: seconds_now() }
                });
                alarm.problem = problem;
            }
            None => {
                if shown.alarms.remove(name).is_some() {
                    tracing::warn!(alarm = name, "is over");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        unpoisoned(&self.shown)
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn seconds_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
