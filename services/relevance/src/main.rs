//! The relevance service by itself, as containers run it: `souk relevance serve` is the same.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use souk::config::{Change, Config};

/// Answer how well items answer a query: POST /score, /rerank, /v1/rerank
#[derive(Parser)]
#[command(name = "souk-relevance")]
struct Arguments {
    /// A TOML file with [relevance.serve] and [model]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Change one value of the configuration, such as --set relevance.serve.max_items=100
    #[arg(long = "set", value_name = "NAME=VALUE")]
    sets: Vec<String>,
    /// A folder that `souk relevance train` wrote
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
