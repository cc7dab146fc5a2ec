//! The work of an experiment as commands, each with the file that says that it is done. Runs several at a time, in an
//! order in which what a command needs is there; a command that fails ends the experiment and says where its output is.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use souk::error::Error;

use super::plan::{Kind, Plan, Row};

const POLL: Duration = Duration::from_millis(100);

/// One command.
struct Job {
    /// What the user is told.
    name: String,
    args: Vec<String>,
    /// There once it is done.
    proof: PathBuf,
    /// Says which command made it: another one is refused.
    record: PathBuf,
    log: PathBuf,
    /// Proofs of other jobs.
    needs: Vec<PathBuf>,
}

pub struct Jobs(Vec<Job>);

/// Where an experiment keeps what.
pub struct Places<'a> {
    plan: &'a Plan,
    out: &'a Path,
}

impl<'a> Places<'a> {
    pub fn new(plan: &'a Plan, out: &'a Path) -> Self {
        Self { plan, out }
    }

    pub fn data(&self) -> PathBuf {
        match &self.plan.experiment.data {
            Some(data) => data.clone(),
            None => self.out.join("shop"),
        }
    }

    fn home(&self, row: &Row, seed: u64) -> PathBuf {
        let seed = if row.is_seeded(self.plan) { format!("seed-{seed}") } else { "all".into() };
        self.out.join(&row.id).join(seed)
    }

    pub fn model(&self, row: &Row, seed: u64) -> PathBuf {
        match (&row.from, row.other(self.plan)) {
            (Some(_), Some(other)) if row.kind == Kind::Model => self.model(other, seed),
            (Some(from), None) if row.kind == Kind::Model => from.into(),
            _ => self.home(row, seed).join("model"),
        }
    }

    pub fn run(&self, row: &Row, seed: u64) -> PathBuf {
        self.home(row, seed).join("run")
    }

    /// The relevance model that judges what is measured: one for all seeds, or nothing could be compared.
    fn judge(&self) -> Option<PathBuf> {
        Some(self.model(self.plan.judge()?, self.plan.experiment.seeds[0]))
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl Jobs {
    pub fn of(plan: &Plan, out: &Path) -> anyhow::Result<Self> {
        let places = Places::new(plan, out);
        let mut jobs = Self(Vec::new());
        jobs.shop(plan, &places);
        for row in &plan.row {
            let seeds =
                if row.is_seeded(plan) { plan.experiment.seeds.as_slice() } else { &plan.experiment.seeds[..1] };
            for seed in seeds {
                jobs.row(plan, &places, (row, *seed));
            }
        }
        Ok(jobs)
    }

    /// The simulated shop and the examples of its log.
    fn shop(&mut self, plan: &Plan, places: &Places) {
        let Some(market) = &plan.experiment.market else { return };
        let shop = places.data();
        let numbers = [("--seed", market.seed), ("--items", market.items), ("--queries", market.queries)];
        let mut args = vec!["market".to_owned()];
        args.extend(numbers.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]));
        args.extend(["--out".into(), text(&shop)]);
        let manifest = shop.join("market.json");
        self.push("the shop", args, (manifest.clone(), places.out.join("shop")), Vec::new());
        let args = ["ingest", "--from", &text(&shop.join("logs.ndjson")), "--data", &text(&shop)];
        let proof = (places.out.join("shop.ingested"), places.out.join("shop-log"));
        self.push("the shop's log", args.map(str::to_owned).to_vec(), proof, vec![manifest]);
    }

    fn row(&mut self, plan: &Plan, places: &Places, (row, seed): (&Row, u64)) {
        let (home, model) = (places.home(row, seed), places.model(row, seed));
        let mut needs: Vec<PathBuf> = Vec::new();
        if plan.experiment.market.is_some() {
            needs.push(places.out.join("shop.ingested"));
        }
        for id in row.needs(plan) {
            needs.extend(plan.row(id).map(|row| places.model(row, seed).join("config.json")));
        }
        let name = if row.is_seeded(plan) { format!("{} (seed {seed})", row.name) } else { row.name.clone() };
        if !matches!(row.kind, Kind::Lexical | Kind::Model) {
            let args = train_args(plan, places, (row, seed));
            self.push(&name, args, (model.join("config.json"), home.join("train")), needs);
            needs = vec![model.join("config.json")];
        }
        if row.measure && row.kind != Kind::Relevance {
            let run = places.run(row, seed);
            let args = measure_args(plan, places, (row, seed));
            needs.extend(places.judge().map(|judge| judge.join("config.json")));
            self.push(&format!("{name}, measured"), args, (run.join("metrics.json"), home.join("measure")), needs);
        }
    }

    fn push(&mut self, name: &str, args: Vec<String>, (proof, stem): (PathBuf, PathBuf), needs: Vec<PathBuf>) {
        let (record, log) = (stem.with_extension("command"), stem.with_extension("log"));
        self.0.push(Job { name: name.into(), args, proof, record, log, needs });
    }

    pub fn commands(&self) -> Vec<String> {
        self.0.iter().map(Job::command).collect()
    }

    /// Does what is not done yet, `width` commands at a time.
    pub fn run(&self, width: usize, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut open: Vec<&Job> = Vec::new();
        for job in &self.0 {
            if !job.is_done()? {
                open.push(job);
            }
        }
        let (all, mut running) = (self.0.len(), Vec::<(&Job, Child, Instant)>::new());
        let (mut failed, mut asked) = (None, false);
        while !running.is_empty() || !open.is_empty() && failed.is_none() && !stop.load(Ordering::Relaxed) {
            if running.len() < width && failed.is_none() && !stop.load(Ordering::Relaxed) {
                let waiting: HashSet<&Path> = open.iter().map(|job| job.proof.as_path()).collect();
                let busy: HashSet<&Path> = running.iter().map(|(job, ..)| job.proof.as_path()).collect();
                let free = |path: &PathBuf| !waiting.contains(path.as_path()) && !busy.contains(path.as_path());
                if let Some(at) = open.iter().position(|job| job.needs.iter().all(free)) {
                    let job = open.remove(at);
                    tell(&format!("[{}/{all}] {}", all - open.len(), job.name));
                    running.push((job, job.start(width)?, Instant::now()));
                    continue;
                }
            }
            std::thread::sleep(POLL);
            if stop.load(Ordering::Relaxed) && !asked {
                // once: a second time is an order to end with nothing kept
                asked = true;
                for (_, child, _) in &running {
                    // one that is gone already needs no signal
                    let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
                }
            }
            let mut at = 0;
            while at < running.len() {
                let Some(status) = running[at].1.try_wait().context("cannot ask for a command's end")? else {
                    at += 1;
                    continue;
                };
                let (job, _, begin) = running.remove(at);
                if status.success() && job.finish()? {
                    tell(&format!("        {}: done in {:.0} s", job.name, begin.elapsed().as_secs_f64()));
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
            bail!("stopped: the same command goes on from here");
        }
        Ok(())
    }
}

/// The command that makes a row's model.
fn train_args(plan: &Plan, places: &Places, (row, seed): (&Row, u64)) -> Vec<String> {
    let (verb, seeded): (&[&str], &str) = match row.kind {
        Kind::Init => (&["init"], "scratch.seed"),
        Kind::Relevance => (&["relevance", "train"], "relevance.seed"),
        Kind::Train | Kind::Lexical | Kind::Model => (&["train"], "train.seed"),
    };
    let mut args: Vec<String> = verb.iter().map(|word| (*word).to_owned()).collect();
    if let Some(config) = &row.config {
        args.extend(["--config".into(), text(&plan.folder.join(config))]);
    }
    args.extend(["--data".into(), text(&places.data()), "--out".into(), text(&places.model(row, seed))]);
    let mut set = |set: String| args.extend(["--set".into(), set]);
    if let Some(from) = &row.from {
        let from = plan.row(from).map_or(from.clone(), |row| text(&places.model(row, seed)));
        set(format!("model.path={from}"));
    }
    // first, so that a row may say another
    set(format!("{seeded}={seed}"));
    for said in &row.set {
        let with = |said: String, id: &str| match plan.row(id) {
            Some(row) => said.replace(&format!("{{{id}}}"), &text(&places.model(row, seed))),
            None => said,
        };
        set(row.needs(plan).into_iter().fold(said.clone(), with));
    }
    if row.kind == Kind::Train {
        args.push("--resume".into());
    }
    args
}

/// The command that measures it.
fn measure_args(plan: &Plan, places: &Places, (row, seed): (&Row, u64)) -> Vec<String> {
    let settings = &plan.experiment;
    let mut args = vec!["evaluate".to_owned()];
    match row.kind {
        Kind::Lexical => args.push("--lexical".into()),
        _ => args.extend(["--model".into(), text(&places.model(row, seed))]),
    }
    if let Some(rewrites) = &row.rewrites {
        let file = match rewrites.strip_prefix("{data}") {
            Ok(name) => places.data().join(name),
            Err(_) => plan.folder.join(rewrites),
        };
        args.extend(["--rewrites".into(), text(&file)]);
    }
    args.extend(["--data".into(), text(&places.data()), "--split".into(), settings.split.clone()]);
    args.extend(["--depth".into(), settings.depth.to_string(), "--name".into(), row.name.clone()]);
    if let Some(judge) = places.judge() {
        args.extend([
            "--set".into(),
            "judge.type=model".into(),
            "--set".into(),
            format!("judge.path={}", text(&judge)),
        ]);
    }
    if let Some(language) = settings.language.as_ref().filter(|_| row.kind != Kind::Lexical) {
        args.extend(["--language".into(), text(&plan.folder.join(language))]);
    }
    args.extend(row.measured.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
    args.extend(["--out".into(), text(&places.run(row, seed))]);
    args
}

impl Job {
    fn command(&self) -> String {
        let quoted = self.args.iter().map(|arg| {
            let plain = arg.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,".contains(c));
            if plain { arg.clone() } else { format!("'{}'", arg.replace('\'', "'\\''")) }
        });
        format!("souk {}", quoted.collect::<Vec<_>>().join(" "))
    }

    /// What must be the same for the result to be the same: the command, and the configuration it names.
    fn recorded(&self) -> anyhow::Result<String> {
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
        if before.is_some_and(|before| self.recorded().is_ok_and(|now| now != before)) {
            let problem = format!(
                "{} was begun with another command or configuration ({}): give a new --out, or delete what this row made",
                self.name,
                self.record.display()
            );
            return Err(Error::input(problem).into());
        }
        Ok(self.proof.exists())
    }

    fn start(&self, width: usize) -> anyhow::Result<Child> {
        let home = self.record.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(home).map_err(Error::store(home, "make the folder"))?;
        fs::write(&self.record, self.recorded()?).map_err(Error::store(&self.record, "write it"))?;
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.map_err(Error::store(&self.log, "open it"))?;
        let engine = std::env::current_exe().context("cannot tell where this program lies")?;
        let mut command = Command::new(engine);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", (cores / width).max(1).to_string());
        }
        command.args(&self.args).stdin(std::process::Stdio::null());
        command.stdout(log.try_clone().context("a command needs two files")?).stderr(log);
        command.spawn().with_context(|| format!("cannot start {}", self.command()))
    }

    /// Whether the command left what it was to leave.
    fn finish(&self) -> anyhow::Result<bool> {
        if self.args[0] == "ingest" {
            // adds to the shop's own folder, and leaves nothing that says so
            fs::write(&self.proof, "").map_err(Error::store(&self.proof, "write it"))?;
        }
        Ok(self.proof.exists())
    }
}

#[expect(clippy::print_stderr, reason = "progress is told beside the result")]
fn tell(line: &str) {
    eprintln!("{line}");
}
