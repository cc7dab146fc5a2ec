//! The relevance service as its own binary, for containers; the same as `souk relevance serve`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use souk::config::{Change, Config};
use souk_native_allocator as _;

/// Serve relevance judgements: POST /score, /rerank, /v1/rerank
#[derive(Parser)]
#[command(name = "souk-relevance")]
struct Arguments {
    /// TOML file with [relevance.serve] and [model]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override one setting, such as --set relevance.serve.max_items=100
    #[arg(long = "set", value_name = "NAME=VALUE")]
    sets: Vec<String>,
    /// Folder written by `souk relevance train`
    #[arg(long, value_name = "DIR")]
    model: Option<String>,
    /// Serve the oracle of this simulated shop instead
    #[arg(long, value_name = "SHOP", conflicts_with = "model")]
    oracle: Option<PathBuf>,
    /// Address and port
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

impl Arguments {
    fn run(&self) -> anyhow::Result<()> {
        let mut changes = self.sets.iter().map(|set| Change::parse(set)).collect::<souk::Result<Vec<_>>>()?;
        let flags = [("model.path", "--model", &self.model), ("relevance.serve.listen", "--listen", &self.listen)];
        let flags = flags.into_iter().filter_map(|(path, flag, text)| Some(Change::text(path, flag, text.as_ref()?)));
        changes.extend(flags);
        let config = Config::load(self.config.as_deref(), &changes)?;
        souk_relevance::serve(&config, self.oracle.as_deref(), |endpoint, judge| {
            Ok(writeln!(std::io::stdout(), "{judge} answers on {endpoint}")?)
        })
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _telemetry = souk::telemetry::start();
    souk_http::exit_code("souk-relevance", arguments.run())
}
