//! The trainer as its own program, for containers. Equivalent to `souk trainer`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use souk::config::{Change, Config};
use souk_native_allocator as _;

/// Train continuously on a shop's search log, and offer better models to the search service
#[derive(Parser)]
#[command(name = "souk-trainer")]
struct Arguments {
    /// TOML file with [trainer], [log] and [model]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override one configuration value, for example --set trainer.pace.examples=5000
    #[arg(long = "set", value_name = "NAME=VALUE")]
    sets: Vec<String>,
}

impl Arguments {
    fn run(&self) -> anyhow::Result<()> {
        let changes = self.sets.iter().map(|set| Change::parse(set)).collect::<souk::Result<Vec<_>>>()?;
        let config = Config::load(self.config.as_deref(), &changes)?;
        souk_trainer::serve(&config, |endpoint| Ok(writeln!(std::io::stdout(), "status on {endpoint}/status")?))
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _telemetry = souk::telemetry::start();
    souk_http::exit_code("souk-trainer", arguments.run())
}
