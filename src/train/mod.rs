//! The training loop. A stage takes pairs and gives a better encoder: `run` repeats an algorithm's step (`algorithms`), logs it,
//! keeps checkpoints and survives being killed; `context` is what a step is made of. The trainer knows no algorithm, and an algorithm
//! knows neither files nor how many steps there are.

mod algorithms;
mod batch;
mod catalogue_candidates;
mod context;
mod evaluate_settings;
mod evaluator;
mod event_file;
mod frozen;
mod grad_cache;
mod judge;
mod judge_context;
mod judged_items;
mod lookahead;
mod metrics;
mod policy_metrics;
mod rationale_metrics;
mod resume_check;
mod run;
mod settings;
mod stage;
mod stage_record;
mod step_log;
#[cfg(test)]
mod tests;
mod tracking;
mod writer;

pub use self::algorithms::{Algorithm, Preparation, perplexity};
pub use self::batch::Batch;
pub use self::context::{EncodedBatch, Outcome, StageContext, StepContext, StepSchedule};
pub use self::evaluate_settings::{EvaluateSettings, EvaluationMetric};
pub use self::metrics::{Evaluation, PhaseSeconds, Progress, StageSummary, StepMetrics, StepReport};
pub use self::policy_metrics::{PolicyMetrics, Spread};
pub use self::rationale_metrics::RationaleMetrics;
pub use self::resume_check::ContentHashes;
pub use self::run::Run;
pub use self::settings::{MAX_PAIRS, MicroBatch, TrainSettings};
pub use self::stage::{FrozenEncoders, Stage, StageRewards};
pub use self::tracking::{MlflowSettings, WandbSettings};
pub use self::writer::WriterSettings;
