//! The command `souk`: one file per verb. Exit code 0: done; 2: usage or configuration; 1: failure.
//! Results go to standard output, everything else to standard error.

mod compare;
mod db;
mod doctor;
mod embed;
mod evaluate;
mod experiment;
mod export;
mod import;
mod index;
mod ingest;
mod init;
mod launch;
mod lines;
mod market;
mod output;
mod plan;
mod produce;
mod progress;
mod relevance;
mod search;
mod serve;
mod stop;
mod train;
mod trainer;
mod version;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use souk::config::{Change, Config};

#[derive(Parser)]
#[command(name = "souk", about = "The dense retriever of an online shop: texts to vectors, queries to items", long_about = None)]
#[command(
    disable_version_flag = true,
    after_help = "Each verb teaches itself: souk VERB --help\nExit code: 0 done, 2 usage or configuration, 1 failure"
)]
struct Souk {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Print the versions of souk and libtorch, and the device
    #[arg(short = 'V', long)]
    version: bool,
    #[command(flatten)]
    shared: Shared,
}

/// What every verb takes.
#[derive(Args)]
pub struct Shared {
    /// A TOML file; configs/ holds vetted ones
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Change one value of the configuration, such as --set encoder.dimensions=128
    #[arg(long = "set", global = true, value_name = "NAME=VALUE")]
    sets: Vec<String>,
    /// Print results as JSON, for machines
    #[arg(long, global = true)]
    json: bool,
}

impl Shared {
    /// The configuration with the verb's own flags on top.
    fn load(&self, flags: Vec<Change>) -> souk::Result<Config> {
        let mut changes = self.sets.iter().map(|set| Change::parse(set)).collect::<souk::Result<Vec<_>>>()?;
        changes.extend(flags);
        Config::load(self.config.as_deref(), &changes)
    }
}

/// Where and in which numbers the model runs.
#[derive(Args)]
pub struct ModelArgs {
    /// Model folder (Hugging Face or sentence-transformers layout) or hub name (owner/model)
    #[arg(long, value_name = "DIR")]
    model: Option<String>,
    /// f32, bf16, or int8 (CPU with VNNI)
    #[arg(long)]
    precision: Option<String>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long)]
    device: Option<String>,
}

impl ModelArgs {
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
enum Verb {
    Compare(compare::Compare),
    Db(db::Db),
    Doctor(doctor::Doctor),
    Embed(embed::Embed),
    Evaluate(evaluate::Evaluate),
    Experiment(experiment::Experiment),
    Export(export::Export),
    Import(import::Import),
    Index(index::IndexVerb),
    Ingest(ingest::IngestVerb),
    Init(init::Init),
    Launch(launch::Launch),
    Market(market::Market),
    Plan(plan::PlanVerb),
    Produce(produce::Produce),
    Relevance(relevance::Relevance),
    Search(search::Search),
    Serve(serve::Serve),
    Train(train::Train),
    Trainer(trainer::Trainer),
}

fn main() -> ExitCode {
    let souk = Souk::parse();
    let _telemetry = souk::telemetry::start();
    let shared = &souk.shared;
    if let Err(error) = launch::follow_launcher() {
        return report(&error);
    }
    let outcome = match &souk.verb {
        _ if souk.version => version::run(shared),
        Some(Verb::Compare(verb)) => verb.run(shared),
        Some(Verb::Db(verb)) => verb.run(shared),
        Some(Verb::Doctor(verb)) => verb.run(shared),
        Some(Verb::Embed(verb)) => verb.run(shared),
        Some(Verb::Evaluate(verb)) => verb.run(shared),
        Some(Verb::Experiment(verb)) => verb.run(shared),
        Some(Verb::Export(verb)) => verb.run(shared),
        Some(Verb::Import(verb)) => verb.run(shared),
        Some(Verb::Index(verb)) => verb.run(shared),
        Some(Verb::Ingest(verb)) => verb.run(shared),
        Some(Verb::Init(verb)) => verb.run(shared),
        Some(Verb::Launch(verb)) => verb.run(shared),
        Some(Verb::Market(verb)) => verb.run(shared),
        Some(Verb::Plan(verb)) => verb.run(shared),
        Some(Verb::Produce(verb)) => verb.run(shared),
        Some(Verb::Relevance(verb)) => verb.run(shared),
        Some(Verb::Search(verb)) => verb.run(shared),
        Some(Verb::Serve(verb)) => verb.run(shared),
        Some(Verb::Train(verb)) => verb.run(shared),
        Some(Verb::Trainer(verb)) => verb.run(shared),
        None => Err(souk::Error::input("say what to do: souk --help lists the verbs").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

#[expect(clippy::print_stderr, reason = "this is where errors meet the user")]
fn report(error: &anyhow::Error) -> ExitCode {
    use souk::Error::{Config, Input};
    // whoever reads our output has left: nothing went wrong
    let closed = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(closed) {
        return ExitCode::SUCCESS;
    }
    eprintln!("souk: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
    if let Some(rank) = error.downcast_ref::<launch::RankFailed>() {
        return ExitCode::from(rank.code);
    }
    let code = if matches!(error.downcast_ref(), Some(Config { .. } | Input { .. })) { 2 } else { 1 };
    ExitCode::from(code)
}
