//! `souk trainer`: the continuous training daemon.

use clap::Args;
use souk::config::Change;

use crate::ingest::LogArgs;
use crate::output::print;
use crate::{GlobalArgs, ModelArgs};

/// Train on the log continuously, publish models that pass the gate
///
/// Configuration: [trainer] sets the stages of a round, its pace and its gate; [log] the source of
/// searches and clicks; [store] the ledger shared with `souk serve`, which deploys published
/// models. GET /status reports the state, /metrics the counters. Crash-safe: a restart continues
/// where it left off. Ctrl-C or SIGTERM stops after the current step.
///
/// Example: souk trainer --config configs/trainer-market.toml --from SHOP/logs.ndjson --data SHOP
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct TrainerCommand {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Data folder with corpus.jsonl, queries.jsonl and the judgements for evaluating candidate models
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// State folder (default: souk-trainer)
    #[arg(long, value_name = "DIR")]
    state: Option<String>,
    /// Address and port (default: 127.0.0.1:8070)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

impl TrainerCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let mut changes = self.model.changes();
        changes.extend(self.log.changes());
        let flags = [
            ("trainer.data", "--data", &self.data),
            ("trainer.state", "--state", &self.state),
            ("trainer.listen", "--listen", &self.listen),
        ];
        let flags = flags.into_iter().filter_map(|(path, flag, text)| Some(Change::text(path, flag, text.as_ref()?)));
        changes.extend(flags);
        let config = globals.load(changes)?;
        souk_trainer::serve(&config, |endpoint| {
            let json = serde_json::json!({"address": endpoint.address.to_string()});
            print(globals, &json, &format!("trainer status: {endpoint}/status"))
        })
    }
}
