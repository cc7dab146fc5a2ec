//! `souk trainer`: the daemon that trains for months.

use clap::Args;
use souk::config::Change;

use crate::ingest::LogArgs;
use crate::output::print;
use crate::{ModelArgs, Shared};

/// Read the search log without end, train on what is new, and offer what is better to the search service
///
/// [trainer] of the configuration says what a round is (its stages), when one begins (its pace) and what a candidate has to be
/// (its gate); [log] where searches and clicks come from; [store] the ledger that is shared with `souk serve`, which serves by
/// itself what passed. GET /status says what goes on, /metrics counts it. Killed at any moment it goes on where it was; on
/// Ctrl-C or SIGTERM the step that is being made is finished first.
///
/// Example: souk trainer --config configs/trainer-market.toml --from SHOP/logs.ndjson --data SHOP
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Trainer {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Data folder with corpus.jsonl, queries.jsonl and the judgements that candidates are measured by
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// The trainer's own folder; by default souk-trainer
    #[arg(long, value_name = "DIR")]
    state: Option<String>,
    /// Address and port; by default 127.0.0.1:8090
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

impl Trainer {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let mut changes = self.model.changes();
        changes.extend(self.log.changes());
        let flags = [
            ("trainer.data", "--data", &self.data),
            ("trainer.state", "--state", &self.state),
            ("trainer.listen", "--listen", &self.listen),
        ];
        let flags = flags.into_iter().filter_map(|(path, flag, text)| Some(Change::text(path, flag, text.as_ref()?)));
        changes.extend(flags);
        let config = shared.load(changes)?;
        souk_trainer::serve(&config, |endpoint| {
            let json = serde_json::json!({"address": endpoint.address.to_string()});
            print(shared, &json, &format!("the trainer says what it does on {endpoint}/status"))
        })
    }
}
