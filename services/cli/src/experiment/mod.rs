//! `souk experiment`: runs a table of experiments. Takes a file of rows and seeds, trains and evaluates each row with
//! ordinary `souk` commands, and writes tables and figures. Finished commands never run again.

mod arguments;
mod jobs;
mod paths;
mod plan;
mod results;

use std::path::PathBuf;

use clap::Args;

use self::jobs::{JobOptions, Jobs};
use self::paths::ExperimentPaths;
use self::plan::ExperimentPlan;
use crate::GlobalArgs;
use crate::output::print;
use crate::stop::{end, listen};

/// Run an experiment: train and evaluate every row, and write tables
///
/// The file lists rows (base model, configuration, overrides), seeds and tables. Each row runs as ordinary `souk`
/// commands; OUT/ROW/SEED holds its model, evaluation, commands and logs. After a stop or a crash, the same command
/// continues where it left off. Writes results.html, results.md and results.json.
///
/// Example: souk experiment --config configs/experiment-market.toml --out EXPERIMENT
#[derive(Args)]
pub struct ExperimentCommand {
    /// Output folder: new, or of an experiment to continue
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Data folder, if the file does not name one
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Number of parallel commands (default: one per core, each with one thread)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Device of all commands: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Precision in which encoders are trained: f32 or bf16
    #[arg(long, value_name = "PRECISION")]
    precision: Option<String>,
    /// Print the commands without running them
    #[arg(long)]
    dry_run: bool,
}

impl ExperimentCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let missing = || souk::Error::input("no experiment file: run `souk experiment --config FILE --out DIR`");
        let file = globals.config.as_ref().ok_or_else(missing)?;
        let plan = ExperimentPlan::load(file, &globals.sets, self.data.as_deref())?;
        let options = JobOptions { device: self.device.clone(), precision: self.precision.clone() };
        let jobs = Jobs::new(&plan, &self.out, &options);
        if self.dry_run {
            let commands = jobs.commands();
            return print(globals, &serde_json::json!(commands), &commands.join("\n"));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let stop = listen(end)?;
        jobs.run(self.jobs.unwrap_or(cores).clamp(1, cores), &stop)?;
        // they are large, and nothing is measured any more
        drop(std::fs::remove_dir_all(ExperimentPaths::new(&plan, &self.out).vectors()));
        let results = results::gather(&plan, &self.out)?;
        let text = results.write(&self.out)?;
        print(globals, &serde_json::json!(results.tables), text.trim_end())
    }
}
