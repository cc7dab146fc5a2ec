//! `souk serve`: the search service.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use clap::Args;
use souk::config::Change;
use souk::search::BuildProgress;

use crate::output::print;
use crate::progress::bar;
use crate::{ModelArgs, Shared};

/// Serve a shop over HTTP: POST /search, /embed, /v1/embeddings, and the console at /
///
/// The first start indexes the catalogue of a data folder; later ones open what was served last, whatever --model says, with
/// every change that was acknowledged since. GET /openapi.json describes the routes. Keys come from SOUK_SEARCH_KEYS or
/// [search] key_file; without any, everybody may do all. Ends on Ctrl-C or SIGTERM.
///
/// Example: souk serve --model sentence-transformers/all-MiniLM-L6-v2 --data SHOP
///
/// Example: souk serve --config configs/search-embedded.toml
#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    model: ModelArgs,
    /// Data folder with corpus.jsonl, for the first start
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// The service's own folder: indexes and the journal of changes; by default souk-search
    #[arg(long, value_name = "DIR")]
    state: Option<String>,
    /// Address and port; by default 127.0.0.1:8080
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

impl Serve {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let mut changes = self.model.changes();
        let flags = [
            ("search.data", "--data", &self.data),
            ("search.state", "--state", &self.state),
            ("search.listen", "--listen", &self.listen),
        ];
        let flags = flags.into_iter().filter_map(|(path, flag, text)| Some(Change::text(path, flag, text.as_ref()?)));
        changes.extend(flags);
        let config = shared.load(changes)?;
        souk_search::serve(
            &config,
            |building| drop(thread::spawn(move || watch(&building))),
            |endpoint, generation| {
                let record = generation.record();
                let json = serde_json::json!({
                    "address": endpoint.address.to_string(), "model": record.version, "index": record.generation,
                });
                print(shared, &json, &format!("{} answers on {endpoint}", record.version))
            },
        )
    }
}

/// Shows how the first index comes along, until nobody builds it any more.
fn watch(building: &Arc<BuildProgress>) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let bar = bar("items indexed", Some(0));
    while Arc::strong_count(building) > 1 {
        bar.set_length(building.of.load(Ordering::Relaxed));
        bar.set_position(building.done.load(Ordering::Relaxed));
        thread::sleep(Duration::from_millis(100));
    }
    bar.finish_and_clear();
}
