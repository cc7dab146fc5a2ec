//! The search service as a program of its own, for containers; same as `souk serve`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use souk::config::{Change, Config};
use souk_native_allocator as _;

/// Serve a shop's search: POST /search, /embed, /v1/embeddings; the console at /
#[derive(Parser)]
#[command(name = "souk-search")]
struct Arguments {
    /// TOML file with [search] and [model]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one configuration value, for example --set search.bounds.max_requests=100
    #[arg(long = "set", value_name = "NAME=VALUE")]
    sets: Vec<String>,
}

impl Arguments {
    fn run(&self) -> anyhow::Result<()> {
        let changes = self.sets.iter().map(|set| Change::parse(set)).collect::<souk::Result<Vec<_>>>()?;
        let file = self.config.clone();
        souk_search::serve(
            move || Config::load(file.as_deref(), &changes),
            |_| (),
            |endpoint, generation| {
                let version = &generation.record().version;
                Ok(writeln!(std::io::stdout(), "{version} answers on {endpoint}")?)
            },
        )
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _telemetry = souk::telemetry::start();
    souk_http::exit_code("souk-search", arguments.run())
}
