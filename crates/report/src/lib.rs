//! Evaluation: an engine's hits on a split become metrics with confidence intervals, TREC files, HTML reports, and comparisons with
//! paired tests. The same input gives the same output, byte for byte.
//!
//! `task` is the queries and judgements of a split, `engine` retrieves, `measure` evaluates, `metrics` defines the metrics and
//! `significance` the statistics. A `run` is the result, `compare` compares runs, `query_changes` lists the queries that changed most, `gate` decides on promotions, `page`,
//! `compare_page` and `experiment_page` are the reports, and `relevance` is the report on a relevance model's calibration.

mod compare;
mod compare_page;
mod engine;
mod experiment_page;
mod fit_fusion;
mod gate;
mod html;
mod measure;
mod metrics;
mod page;
mod plots;
mod query_changes;
mod relevance;
mod run;
mod run_file;
mod significance;
mod table;
mod task;
mod training_log;

pub use compare::{ComparisonRow, CorrectedPValues, PairComparison, RunComparison};
pub use compare_page::ComparePage;
pub use engine::{Engine, EngineHit, Reranking, pipeline_of};
pub use experiment_page::{ExperimentPage, GroupLog, LoggedCandidate, LoggedGroup};
pub use fit_fusion::{CrossFitted, Fitted, FusionInputs, MIN_QUERIES, fit_fusion, fit_reranker, judged_scores};
pub use gate::{Gain, GateInput, GateSettings, GateSource, GateVerdict};
pub use measure::{Measurement, RUN};
pub use metrics::{
    DEPTH, DETAILS, HitGrades, NDCG, NUM_METRICS, QueryGrades, SHOWN, TOP, Values, WIDE, means, measure, names,
};
pub use page::ReportPage;
pub use query_changes::{QueryChange, QueryChanges};
pub use relevance::relevance_page;
pub use run::{EvaluationRun, MetricSummary, Metrics, OVERALL, QueryRow, RunSettings, Slice, TopHit};
pub use run_file::{RunLine, RunWriter, read_qrels, read_run, write_qrels};
pub use significance::{Interval, PairedTest, bootstrap, holm, paired, randomisation, t_test};
pub use table::{Cell, Contender, ResultsTable, TableRow, TableSettings};
pub use task::{Digests, Task, TaskItem, TaskQuery};
pub use training_log::TrainingLog;
