//! The `souk` command line, one file per command. Exit codes: 0 success, 2 usage or configuration, 1 failure.
//! Results go to standard output, everything else to standard error.

mod average;
mod backup;
mod compare;
mod config;
mod db;
mod doctor;
mod embed;
mod evaluate;
mod experiment;
mod export;
mod export_vectors;
mod fit_fusion;
mod help;
mod import;
mod index;
mod ingest;
mod init;
mod items;
mod judgements;
mod launch;
mod lines;
mod market;
mod output;
mod plan;
mod produce;
mod progress;
mod relevance;
mod rewrite;
mod search;
mod serve;
mod start;
mod stop;
mod train;
mod trainer;
mod translations;
mod vectors;
mod version;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, FromArgMatches, Parser, Subcommand};
use souk::config::{Change, Config};
use souk_native_allocator as _;

#[derive(Parser)]
#[command(name = "souk", about = "Train, evaluate and serve dense retrieval for product search", long_about = None)]
#[command(
    disable_version_flag = true,
    after_help = "Run `souk <command> --help` for all flags.\nExit code: 0 success, 2 usage or configuration, 1 failure"
)]
struct Souk {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print the versions of souk and libtorch, the device and the number of threads
    #[arg(short = 'V', long)]
    version: bool,
    #[command(flatten)]
    globals: GlobalArgs,
}

/// Flags of every command.
#[derive(Args)]
pub struct GlobalArgs {
    /// Configuration file in TOML; configs/ has tested ones
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override one configuration value, such as --set encoder.dimensions=128; repeatable
    #[arg(long = "set", global = true, value_name = "NAME=VALUE")]
    sets: Vec<String>,
    /// Print results as JSON
    #[arg(long, global = true)]
    json: bool,
}

impl GlobalArgs {
    /// Configuration: file, then `--set`, then the command's own flags.
    fn load(&self, flags: Vec<Change>) -> souk::Result<Config> {
        self.loader(flags)?()
    }

    /// Loads the configuration each time it is called, for services that read it again.
    fn loader(&self, flags: Vec<Change>) -> souk::Result<impl Fn() -> souk::Result<Config> + Send + 'static> {
        let mut changes = self.sets.iter().map(|set| Change::parse(set)).collect::<souk::Result<Vec<_>>>()?;
        changes.extend(flags);
        let file = self.config.clone();
        Ok(move || Config::load(file.as_deref(), &changes))
    }
}

/// Model, precision and device.
#[derive(Args)]
pub struct ModelArgs {
    /// Model folder (Hugging Face or sentence-transformers layout) or Hugging Face hub name (owner/model)
    #[arg(long, value_name = "DIR")]
    model: Option<String>,
    /// Precision: f32, bf16 or int8 (CPU only)
    #[arg(long)]
    precision: Option<String>,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long)]
    device: Option<String>,
}

impl ModelArgs {
    fn is_given(&self) -> bool {
        self.model.is_some()
    }

    fn changes(&self) -> Vec<Change> {
        let flags = [
            ("model.path", "--model", &self.model),
            ("model.precision", "--precision", &self.precision),
            ("model.device", "--device", &self.device),
        ];
        flags.into_iter().filter_map(|(path, flag, text)| Some(Change::text(path, flag, text.as_ref()?))).collect()
    }
}

#[derive(Subcommand)]
enum Command {
    Average(average::AverageCommand),
    Backup(backup::BackupCommand),
    Compare(compare::CompareCommand),
    Config(config::ConfigCommand),
    Db(db::DbCommand),
    Doctor(doctor::DoctorCommand),
    Embed(embed::EmbedCommand),
    Evaluate(evaluate::EvaluateCommand),
    Experiment(experiment::ExperimentCommand),
    Export(export::ExportCommand),
    ExportVectors(export_vectors::ExportVectorsCommand),
    FitFusion(fit_fusion::FitFusionCommand),
    Import(import::ImportCommand),
    Index(index::IndexCommand),
    Ingest(ingest::IngestCommand),
    Init(init::InitCommand),
    Items(items::ItemsCommand),
    Judgements(judgements::JudgementsCommand),
    Launch(launch::LaunchCommand),
    Market(market::MarketCommand),
    Plan(plan::PlanCommand),
    Produce(produce::ProduceCommand),
    Relevance(relevance::RelevanceCommand),
    Restore(backup::RestoreCommand),
    Rewrite(rewrite::RewriteCommand),
    Search(search::SearchCommand),
    Serve(serve::ServeCommand),
    Start(start::StartCommand),
    Train(train::TrainCommand),
    Trainer(trainer::TrainerCommand),
}

fn main() -> ExitCode {
    let matches = help::command().get_matches();
    let souk = Souk::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let _telemetry = souk::telemetry::start();
    let globals = &souk.globals;
    if let Err(error) = launch::die_with_launcher() {
        return report(&error);
    }
    let outcome = match &souk.command {
        _ if souk.version => version::run(globals),
        Some(Command::Average(command)) => command.run(globals),
        Some(Command::Backup(command)) => command.run(globals),
        Some(Command::Compare(command)) => command.run(globals),
        Some(Command::Config(command)) => command.run(globals),
        Some(Command::Db(command)) => command.run(globals),
        Some(Command::Doctor(command)) => command.run(globals),
        Some(Command::Embed(command)) => command.run(globals),
        Some(Command::Evaluate(command)) => command.run(globals),
        Some(Command::Experiment(command)) => command.run(globals),
        Some(Command::Export(command)) => command.run(globals),
        Some(Command::ExportVectors(command)) => command.run(globals),
        Some(Command::FitFusion(command)) => command.run(globals),
        Some(Command::Import(command)) => command.run(globals),
        Some(Command::Index(command)) => command.run(globals),
        Some(Command::Ingest(command)) => command.run(globals),
        Some(Command::Init(command)) => command.run(globals),
        Some(Command::Items(command)) => command.run(globals),
        Some(Command::Judgements(command)) => command.run(globals),
        Some(Command::Launch(command)) => command.run(globals),
        Some(Command::Market(command)) => command.run(globals),
        Some(Command::Plan(command)) => command.run(globals),
        Some(Command::Produce(command)) => command.run(globals),
        Some(Command::Relevance(command)) => command.run(globals),
        Some(Command::Restore(command)) => command.run(globals),
        Some(Command::Rewrite(command)) => command.run(globals),
        Some(Command::Search(command)) => command.run(globals),
        Some(Command::Serve(command)) => command.run(globals),
        Some(Command::Start(command)) => command.run(globals),
        Some(Command::Train(command)) => command.run(globals),
        Some(Command::Trainer(command)) => command.run(globals),
        None => help::run(globals),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

#[expect(clippy::print_stderr, reason = "errors go to standard error")]
fn report(error: &anyhow::Error) -> ExitCode {
    use souk::Error::{Config, Input};
    // broken pipe: the reader closed our output, which is no failure
    let closed = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(closed) {
        return ExitCode::SUCCESS;
    }
    eprintln!("souk: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
    if let Some(rank) = error.downcast_ref::<launch::RankFailure>() {
        return ExitCode::from(rank.code);
    }
    let code = if matches!(error.downcast_ref(), Some(Config { .. } | Input { .. })) { 2 } else { 1 };
    ExitCode::from(code)
}
