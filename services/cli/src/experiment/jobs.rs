//! Experiment scheduler. Takes a plan, makes one command per model and per evaluation, and runs several in parallel in
//! order of their dependencies. An output file marks a command as done. A failed command ends the experiment with its
//! log's path.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use souk::error::Error;

use super::arguments::{evaluate_args, fit_args, rewrite_args, train_args};
use super::paths::{ExperimentPaths, text};
use super::plan::{ExperimentPlan, ExperimentRow, RowChannel, RowKind};

/// File of a finished evaluation.
const METRICS: &str = "metrics.json";
const POLL: Duration = Duration::from_millis(100);

/// One command.
struct Job {
    /// Display name.
    name: String,
    args: Vec<String>,
    /// Output file that exists once the command is done.
    output: PathBuf,
    /// File with the command that made the output; another command is an error.
    record: PathBuf,
    log: PathBuf,
    /// Output files of other jobs that must exist first.
    needs: Vec<PathBuf>,
    /// Folder where commands that measure the same model leave its vectors of the catalogue. Not in the record: it changes no result.
    vectors: Option<PathBuf>,
}

pub struct Jobs(Vec<Job>);

/// Options of all commands.
#[derive(Default)]
pub struct JobOptions {
    pub device: Option<String>,
    /// Precision in which encoders are trained.
    pub precision: Option<String>,
}

impl Jobs {
    pub fn new(plan: &ExperimentPlan, out: &Path, options: &JobOptions) -> Self {
        let paths = ExperimentPaths::new(plan, out);
        let mut jobs = Self(Vec::new());
        jobs.add_shop(plan, &paths);
        let mut hybrid = HybridRuns::new();
        for row in &plan.row {
            let seeds =
                if row.is_seeded(plan) { plan.experiment.seeds.as_slice() } else { &plan.experiment.seeds[..1] };
            for seed in seeds {
                jobs.add_row(plan, &paths, (row, *seed), &mut hybrid);
            }
        }
        jobs.0.iter_mut().for_each(|job| job.add(options));
        jobs.share_vectors(&paths.vectors());
        jobs
    }

    /// Lets the commands share the vectors of models that more than one of them measures.
    fn share_vectors(&mut self, folder: &Path) {
        let mut uses: HashMap<String, usize> = HashMap::new();
        for model in self.0.iter().filter_map(Job::measured_model) {
            *uses.entry(model.to_owned()).or_default() += 1;
        }
        for job in &mut self.0 {
            job.vectors = job.measured_model().filter(|model| uses[*model] > 1).map(|_| folder.to_owned());
        }
    }

    /// Adds the commands that generate the simulated shop and ingest its log.
    fn add_shop(&mut self, plan: &ExperimentPlan, paths: &ExperimentPaths) {
        let Some(market) = &plan.experiment.market else { return };
        let shop = paths.data();
        let numbers = [("--seed", market.seed), ("--items", market.items), ("--queries", market.queries)];
        let mut args = vec!["market".to_owned()];
        args.extend(numbers.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]));
        args.extend(["--out".into(), text(&shop)]);
        let manifest = shop.join("market.json");
        self.0.push(Job::new("simulated shop", args, manifest.clone(), &paths.out.join("shop"), Vec::new()));
        let args = ["ingest", "--from", &text(&shop.join("logs.ndjson")), "--data", &text(&shop)];
        let (args, output) = (args.map(str::to_owned).to_vec(), paths.out.join("shop.ingested"));
        let stem = paths.out.join("shop-log");
        self.0.push(Job::new("search log of the simulated shop", args, output, &stem, vec![manifest]));
    }

    /// Adds the commands that train, fit and evaluate a row.
    fn add_row(
        &mut self,
        plan: &ExperimentPlan,
        paths: &ExperimentPaths,
        of: (&ExperimentRow, u64),
        hybrid: &mut HybridRuns,
    ) {
        let (row, seed) = of;
        let (home, model) = (paths.home(row, seed), paths.model(row, seed));
        let mut needs: Vec<PathBuf> = Vec::new();
        if plan.experiment.market.is_some() {
            needs.push(paths.out.join("shop.ingested"));
        }
        needs.extend(plan.rows(row.needs_models(plan)).map(|row| paths.model(row, seed).join("config.json")));
        let fitted = plan.rows(row.needs_models(plan)).filter(|row| row.fit.is_some());
        needs.extend(fitted.map(|row| paths.fitted(row, seed)));
        needs.extend(plan.rows(row.needs_runs()).map(|row| paths.run(row, seed).join(METRICS)));
        let name = if row.is_seeded(plan) { format!("{} (seed {seed})", row.name) } else { row.name.clone() };
        if !matches!(row.kind, RowKind::Lexical | RowKind::Model) {
            let args = train_args(plan, paths, row, seed);
            self.0.push(Job::new(&name, args, model.join("config.json"), &home.join("train"), needs));
            needs = vec![model.join("config.json")];
        }
        if !row.is_measured() {
            return;
        }
        let metrics = paths.run(row, seed).join(METRICS);
        if row.channel == RowChannel::Hybrid {
            // a model's folder has one set of weights: its hybrid searches are fitted and measured in the order of their rows
            needs.extend(hybrid.insert(model, metrics.clone()));
        }
        if let Some(args) = fit_args(plan, paths, row, seed) {
            let (name, output) = (format!("{name}, fit of hybrid search"), paths.fitted(row, seed));
            self.0.push(Job::new(&name, args, output.clone(), &home.join("fit"), needs));
            needs = vec![output];
        }
        if !row.rewriter.is_empty() {
            let (name, output) = (format!("{name}, rewriting of queries"), paths.rewrites(row, seed));
            let args = rewrite_args(plan, paths, row, seed);
            self.0.push(Job::new(&name, args, output.clone(), &home.join("rewrite"), needs));
            needs = vec![output];
        }
        needs.extend(paths.judge().map(|judge| judge.join("config.json")));
        let args = evaluate_args(plan, paths, row, seed);
        self.0.push(Job::new(&format!("{name}, evaluation"), args, metrics, &home.join("measure"), needs));
    }

    pub fn commands(&self) -> Vec<String> {
        self.0.iter().map(Job::command).collect()
    }

    /// Runs the commands that are not done yet, `num_parallel` at a time.
    pub fn run(&self, num_parallel: usize, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut open: Vec<&Job> = Vec::new();
        for job in &self.0 {
            if !job.is_done()? {
                open.push(job);
            }
        }
        let (all, mut running) = (self.0.len(), Vec::<(&Job, Child, Instant)>::new());
        let (mut failed, mut is_signalled) = (None, false);
        while !running.is_empty() || !open.is_empty() && failed.is_none() && !stop.load(Ordering::Relaxed) {
            if running.len() < num_parallel && failed.is_none() && !stop.load(Ordering::Relaxed) {
                let waiting: HashSet<&Path> = open.iter().map(|job| job.output.as_path()).collect();
                let busy: HashSet<&Path> = running.iter().map(|(job, ..)| job.output.as_path()).collect();
                let free = |path: &PathBuf| !waiting.contains(path.as_path()) && !busy.contains(path.as_path());
                if let Some(at) = open.iter().position(|job| job.needs.iter().all(free)) {
                    let job = open.remove(at);
                    print_progress(&format!("[{}/{all}] {}", all - open.len(), job.name));
                    running.push((job, job.start(num_parallel)?, Instant::now()));
                    continue;
                }
            }
            std::thread::sleep(POLL);
            if stop.load(Ordering::Relaxed) && !is_signalled {
                // only once: a second SIGTERM makes a command exit without a checkpoint
                is_signalled = true;
                for (_, child, _) in &running {
                    // fails only if the command has exited already
                    let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
                }
            }
            let mut at = 0;
            while at < running.len() {
                let Some(status) = running[at].1.try_wait().context("cannot wait for a command")? else {
                    at += 1;
                    continue;
                };
                let (job, _, begin) = running.remove(at);
                if status.success() && job.finish()? {
                    print_progress(&format!("        {}: done in {:.0} s", job.name, begin.elapsed().as_secs_f64()));
                } else if failed.is_none() && !stop.load(Ordering::Relaxed) {
                    failed = Some(job);
                }
            }
        }
        if let Some(job) = failed {
            let log = fs::read_to_string(&job.log).unwrap_or_default();
            let end: Vec<&str> = log.lines().rev().take(5).collect();
            let end: Vec<&str> = end.into_iter().rev().collect();
            bail!("{} failed; its output is in {}:\n{}", job.command(), job.log.display(), end.join("\n"));
        }
        if stop.load(Ordering::Relaxed) {
            bail!("stopped: run the same command again to continue");
        }
        Ok(())
    }
}

/// Last evaluation of hybrid search with a model, by the model's folder.
type HybridRuns = HashMap<PathBuf, PathBuf>;

impl Job {
    /// A job whose record and log are `stem.command` and `stem.log`.
    fn new(name: &str, args: Vec<String>, output: PathBuf, stem: &Path, needs: Vec<PathBuf>) -> Self {
        let (record, log) = (stem.with_extension("command"), stem.with_extension("log"));
        Self { name: name.into(), args, output, record, log, needs, vectors: None }
    }

    /// Folder of the model whose vectors the command computes.
    fn measured_model(&self) -> Option<&str> {
        let is_measuring = matches!(self.args[0].as_str(), "fit-fusion" | "evaluate");
        let at = self.args.iter().position(|arg| arg == "--model").filter(|_| is_measuring)?;
        self.args.get(at + 1).map(String::as_str)
    }

    /// Adds the options that the command takes.
    fn add(&mut self, options: &JobOptions) {
        let command = self.args[0].as_str();
        let is_training = matches!(command, "train" | "relevance");
        let is_lexical = self.args.windows(2).any(|pair| pair == ["--channel", "lexical"]);
        let has_model = is_training
            || matches!(command, "fit-fusion" | "evaluate") && !is_lexical
            || command == "rewrite" && self.args.iter().any(|arg| arg == "--model");
        let device = options.device.iter().filter(|_| has_model).map(|device| ["--device", device]);
        let precision =
            options.precision.iter().filter(|_| command == "train").map(|precision| ["--precision", precision]);
        let more: Vec<String> = device.chain(precision).flatten().map(str::to_owned).collect();
        self.args.extend(more);
    }

    /// Command line, quoted for a shell.
    fn command(&self) -> String {
        let quoted = self.args.iter().map(|arg| {
            let plain = arg.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,".contains(c));
            if plain { arg.clone() } else { format!("'{}'", arg.replace('\'', "'\\''")) }
        });
        format!("souk {}", quoted.collect::<Vec<_>>().join(" "))
    }

    /// Text that identifies the result: the command and its configuration file.
    fn record_text(&self) -> anyhow::Result<String> {
        let mut text = self.command() + "\n";
        let config = self.args.iter().position(|arg| arg == "--config").and_then(|at| self.args.get(at + 1));
        if let Some(config) = config {
            let file = Path::new(config);
            let read = fs::read_to_string(file).map_err(Error::store(file, "read the configuration"))?;
            text += &format!("\n{read}");
        }
        Ok(text)
    }

    fn is_done(&self) -> anyhow::Result<bool> {
        let before = fs::read_to_string(&self.record).ok();
        if before.is_some_and(|before| self.record_text().is_ok_and(|now| now != before)) {
            let problem = format!(
                "{} was started with another command or configuration ({}): give a new --out, or delete this output",
                self.name,
                self.record.display()
            );
            return Err(Error::input(problem).into());
        }
        Ok(self.output.exists())
    }

    fn start(&self, num_parallel: usize) -> anyhow::Result<Child> {
        let home = self.record.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(home).map_err(Error::store(home, "make the folder"))?;
        fs::write(&self.record, self.record_text()?).map_err(Error::store(&self.record, "write it"))?;
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.map_err(Error::store(&self.log, "open it"))?;
        let engine = std::env::current_exe().context("cannot find the path of this program")?;
        let mut command = Command::new(engine);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", (cores / num_parallel).max(1).to_string());
        }
        command.args(&self.args).stdin(std::process::Stdio::null());
        command.args(self.vectors.iter().flat_map(|folder| [OsStr::new("--vectors"), folder.as_os_str()]));
        command.stdout(log.try_clone().context("cannot duplicate the log file handle")?).stderr(log);
        command.spawn().with_context(|| format!("cannot start {}", self.command()))
    }

    /// Whether the command wrote its output file.
    fn finish(&self) -> anyhow::Result<bool> {
        if matches!(self.args[0].as_str(), "ingest" | "fit-fusion") {
            // these write into a folder that exists, so their output file is made here
            fs::write(&self.output, "").map_err(Error::store(&self.output, "write it"))?;
        }
        Ok(self.output.exists())
    }
}

#[expect(clippy::print_stderr, reason = "progress goes to standard error")]
fn print_progress(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_share_the_vectors_of_a_model_that_several_measure() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("plan.toml");
        let text = r#"
            experiment = { title = "Small", seeds = [1], data = "shop", depth = 100 }
            row = [
                { id = "bm25", name = "BM25", kind = "lexical" },
                { id = "alone", name = "Alone", kind = "model", from = "one" },
                { id = "dense", name = "Dense", kind = "model", from = "two" },
                { id = "hybrid", name = "Hybrid", kind = "model", from = "dense", channel = "hybrid", fit = { split = "dev" } },
            ]"#;
        fs::write(&file, text).unwrap();
        let plan = ExperimentPlan::load(&file, &[], None).unwrap();
        let jobs = Jobs::new(&plan, Path::new("out"), &JobOptions::default());
        let shared = |job: &Job| job.vectors.as_deref() == Some(Path::new("out/vectors"));
        let found: Vec<(&str, bool)> = jobs.0.iter().map(|job| (job.name.as_str(), shared(job))).collect();
        let expected = [
            ("BM25, evaluation", false),
            ("Alone, evaluation", false),
            ("Dense, evaluation", true),
            ("Hybrid, fit of hybrid search", true),
            ("Hybrid, evaluation", true),
        ];
        assert_eq!(found, expected);
        assert!(jobs.commands().iter().all(|command| !command.contains("--vectors")), "another command for one result");
    }
}
