//! The measuring rod: an engine's hits on a split become metrics with intervals, files that other tools read, a page, and
//! comparisons with paired tests. The same input gives the same numbers, to the byte.
//!
//! `task` is what is asked, `engine` who answers, `measure` asks; `metrics` says what is counted and `significance` how
//! much of it is chance. A `run` is what was measured, `compare` holds runs side by side, a `gate` decides by that, `page` shows them; `relevance` shows how far a
//! relevance model can be believed.

mod compare;
mod engine;
mod experiment_page;
mod gate;
mod measure;
mod metrics;
mod page;
mod plots;
mod relevance;
mod run;
mod run_file;
mod significance;
mod table;
mod task;
mod training_log;

pub use compare::{Comparison, Corrected, Pair, Row};
pub use engine::{Engine, Found};
pub use experiment_page::{ExperimentPage, GroupLog, ShownCandidate, ShownGroup};
pub use gate::{Gain, GateSettings, Held, Verdict};
pub use measure::Measurement;
pub use metrics::{DEPTH, NUM_METRICS, SHOWN, Seen, TOP, Values, WIDE, measure, names};
pub use page::Page;
pub use relevance::relevance_page;
pub use run::{Asked, Metrics, OVERALL, QueryRow, Run, Slice, Summary, TopHit};
pub use run_file::{RunLine, RunWriter, read_qrels, read_run, write_qrels};
pub use significance::{Interval, Paired, bootstrap, holm, paired, randomisation, t_test};
pub use table::{Cell, Contender, Table, TableRow, TableSettings};
pub use task::{Digests, Task, TaskItem, TaskQuery};
pub use training_log::TrainingLog;
