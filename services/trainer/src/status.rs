//! Current state of the trainer: its threads write it, `/status` shows it. An alarm is logged once when it is raised and once when
//! it is cleared.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::rounds::RoundOutcome;
use serde::Serialize;
use souk::dataset::IngestProgress;
use souk::telemetry::TRAINER;
use souk::time;
use souk::train::StepReport;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    #[default]
    Opening,
    /// Reading what is in the log already, before the first round.
    Reading,
    /// Waiting until a stage is due.
    Waiting,
    /// Waiting until the search service serves the offered version.
    Offering,
    Training,
    Measuring,
    Publishing,
}

impl Activity {
    fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Reading => "reading",
            Self::Waiting => "waiting",
            Self::Offering => "offering",
            Self::Training => "training",
            Self::Measuring => "measuring",
            Self::Publishing => "publishing",
        }
    }
}

/// Body of `/status`. Times are seconds since 1970.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StatusReport {
    pub doing: Activity,
    pub served: Option<String>,
    pub round: Option<u64>,
    pub stage: Option<String>,
    /// Step of the current stage.
    pub step: u64,
    pub steps: u64,
    pub loss: Option<f64>,
    pub texts_per_second: Option<f64>,
    /// Progress of each stage towards its next run.
    pub stages: Vec<StageWait>,
    /// Counts since the log was last opened.
    pub log: IngestProgress,
    pub last_message_at: i64,
    pub last_round: Option<LastRound>,
    pub alarms: BTreeMap<&'static str, Alarm>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StageWait {
    pub stage: String,
    /// Examples it has not been trained on, and how many make it due.
    pub fresh: u64,
    pub examples: u64,
    /// Seconds since its last run ended, and how many make it due if there are at least `min_examples`.
    pub since: u64,
    pub seconds: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct LastRound {
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
    shown: Mutex<StatusReport>,
    heartbeat: Mutex<Heartbeat>,
}

/// Times of the last events.
struct Heartbeat {
    message: Instant,
    step: Instant,
    /// Time up to which `account` has counted.
    accounted: Instant,
}

impl Status {
    pub fn new() -> Self {
        let now = Instant::now();
        let heartbeat = Mutex::new(Heartbeat { message: now, step: now, accounted: now });
        Self {
            shown: Mutex::new(StatusReport { last_message_at: seconds_now(), ..StatusReport::default() }),
            heartbeat,
        }
    }

    pub fn shown(&self) -> StatusReport {
        self.lock().clone()
    }

    pub fn doing(&self, doing: Activity) {
        self.account();
        let mut shown = self.lock();
        if shown.doing != doing {
            tracing::info!(doing = doing.name(), round = shown.round, "activity changed");
        }
        if doing != Activity::Training {
            (shown.stage, shown.loss, shown.texts_per_second) = (None, None, None);
        }
        shown.doing = doing;
    }

    /// Adds the time since the last call to the metric of the current activity.
    pub fn account(&self) {
        let doing = self.lock().doing;
        let mut heartbeat = unpoisoned(&self.heartbeat);
        TRAINER.seconds.with_label_values(&[doing.name()]).inc_by(heartbeat.accounted.elapsed().as_secs_f64());
        heartbeat.accounted = Instant::now();
    }

    pub fn change(&self, change: impl FnOnce(&mut StatusReport)) {
        change(&mut self.lock());
    }

    pub fn begin_stage(&self, round: u64, stage: &str) {
        self.doing(Activity::Training);
        let mut shown = self.lock();
        (shown.round, shown.stage) = (Some(round), Some(stage.into()));
        (shown.step, shown.steps) = (0, 0);
        unpoisoned(&self.heartbeat).step = Instant::now();
    }

    pub fn end_step(&self, step: &StepReport) {
        let mut shown = self.lock();
        (shown.step, shown.steps) = (step.step, step.steps);
        (shown.loss, shown.texts_per_second) = (Some(step.metrics.loss), Some(step.texts_per_second));
        unpoisoned(&self.heartbeat).step = Instant::now();
    }

    /// Records progress in reading the log.
    pub fn read(&self, progress: &IngestProgress) {
        let mut shown = self.lock();
        if progress.counts.messages != shown.log.counts.messages {
            shown.last_message_at = seconds_now();
            unpoisoned(&self.heartbeat).message = Instant::now();
        }
        // once is enough: a log that is opened again was read before
        let is_caught_up = shown.log.is_caught_up || progress.is_caught_up;
        shown.log = IngestProgress { is_caught_up, ..progress.clone() };
    }

    pub fn since_message(&self) -> Duration {
        unpoisoned(&self.heartbeat).message.elapsed()
    }

    /// Time since the last step; none if no stage is training.
    pub fn since_step(&self) -> Option<Duration> {
        (self.lock().doing == Activity::Training).then(|| unpoisoned(&self.heartbeat).step.elapsed())
    }

    /// Records how far distributions have drifted, and raises an alarm above the limit.
    pub fn drift(&self, alarm: &'static str, moved: &[(&'static str, f64)], limit: f64) {
        let mut problems = Vec::new();
        for (what, moved) in moved {
            TRAINER.drift.with_label_values(&[what]).set(*moved);
            if *moved > limit && limit > 0.0 {
                problems.push(format!("the distribution of {what} has changed by {moved:.2}"));
            }
        }
        let problem = || format!("{}: inspect the log before you trust the round", problems.join(", "));
        self.alarm(alarm, (!problems.is_empty()).then(problem));
    }

    /// Raises an alarm, or clears it if `problem` is none.
    pub fn alarm(&self, name: &'static str, problem: Option<String>) {
        let mut shown = self.lock();
        TRAINER.alarms.with_label_values(&[name]).set(i64::from(problem.is_some()));
        match problem {
            Some(problem) => {
                let alarm = shown.alarms.entry(name).or_insert_with(|| {
                    tracing::error!(alarm = name, problem, "alarm raised");
                    Alarm { problem: String::new(), since: seconds_now() }
                });
                alarm.problem = problem;
            }
            None => {
                if shown.alarms.remove(name).is_some() {
                    tracing::warn!(alarm = name, "alarm cleared");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, StatusReport> {
        unpoisoned(&self.shown)
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn seconds_now() -> i64 {
    time::now() / 1000
}
