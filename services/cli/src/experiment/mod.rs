//! `souk experiment`: a whole table at one command. A file names rows and seeds; each row is trained and measured by the
//! verbs that a user would type, and what is done is not done again.

mod jobs;
mod plan;
mod results;

use std::path::PathBuf;

use clap::Args;

use self::jobs::Jobs;
use self::plan::Plan;
use crate::Shared;
use crate::output::print;
use crate::stop::{end, listen};

/// Train, measure and tabulate every row of an experiment
///
/// The file names rows (what each begins with, its configuration, what it changes), seeds and tables. Every row is made by
/// the verbs you would type yourself; OUT/ROW/SEED holds its model, its measurement, its commands and what they said.
/// Stopped or killed, the same command goes on where it was. Writes results.html, results.md and results.json.
///
/// Example: souk experiment --config configs/experiment-market.toml --out EXPERIMENT
#[derive(Args)]
pub struct Experiment {
    /// The experiment's folder: a new one, or one to go on in
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The data folder, where the file names none
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Rows worked on at a time; by default one for each core, each with a thread
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Print the commands and run nothing
    #[arg(long)]
    dry_run: bool,
}

impl Experiment {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let missing = || souk::Error::input("give the experiment's file: souk experiment --config FILE --out DIR");
        let file = shared.config.as_ref().ok_or_else(missing)?;
        let plan = Plan::load(file, &shared.sets, self.data.as_deref())?;
        let jobs = Jobs::of(&plan, &self.out)?;
        if self.dry_run {
            let commands = jobs.commands();
            return print(shared, &serde_json::json!(commands), &commands.join("\n"));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let stop = listen(end)?;
        jobs.run(self.jobs.unwrap_or(cores).clamp(1, cores), &stop)?;
        let results = results::gather(&plan, &self.out)?;
        let text = results.write(&self.out)?;
        print(shared, &serde_json::json!(results.tables), text.trim_end())
    }
}
