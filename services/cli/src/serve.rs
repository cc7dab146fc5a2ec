//! `souk serve`: the search service.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use clap::Args;
use souk::config::Change;
use souk::search::BuildProgress;

use crate::output::print;
use crate::progress::ProgressDisplay;
use crate::{GlobalArgs, ModelArgs};

/// Serve search and embeddings over HTTP, with a console
///
/// POST /search, /embed and /v1/embeddings; the console is at /.
///
/// The first start indexes the catalogue of --data. Later starts ignore --model and reopen the last served index with
/// all acknowledged changes. GET /openapi.json describes the routes. API keys come from SOUK_SEARCH_KEYS or [search]
/// key_file; an address that other machines can reach needs them. SIGHUP reads the settings again. Stops on Ctrl-C or
/// SIGTERM.
///
/// Example: souk serve --model sentence-transformers/all-MiniLM-L6-v2 --data SHOP
///
/// Example: souk serve --config configs/search-embedded.toml
#[derive(Args)]
pub struct ServeCommand {
    #[command(flatten)]
    model: ModelArgs,
    /// Data folder with corpus.jsonl; needed for the first start
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// State folder: indexes and the journal of changes (default: souk-search)
    #[arg(long, value_name = "DIR")]
    state: Option<String>,
    /// Address and port (default: 127.0.0.1:8080)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

impl ServeCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let mut changes = self.model.changes();
        let flags = [
            ("search.data", "--data", &self.data),
            ("search.state", "--state", &self.state),
            ("search.listen", "--listen", &self.listen),
        ];
        let flags = flags.into_iter().filter_map(|(path, flag, text)| Some(Change::text(path, flag, text.as_ref()?)));
        changes.extend(flags);
        let load = globals.loader(changes)?;
        souk_search::serve(
            load,
            |progress| drop(thread::spawn(move || show_progress(&progress))),
            |endpoint, generation| {
                let record = generation.record();
                let json = serde_json::json!({
                    "address": endpoint.address.to_string(), "model": record.version, "index": record.generation,
                });
                let text = format!("{} answers on {endpoint}/ (open it in a browser for the console)", record.version);
                print(globals, &json, &text)
            },
        )
    }
}

/// Shows the progress of the first indexing. Ends when the builder drops its handle.
fn show_progress(progress: &Arc<BuildProgress>) {
    let shown = ProgressDisplay::start("items indexed", Some(0));
    while Arc::strong_count(progress) > 1 {
        let [done, total] = [&progress.done, &progress.of].map(|count| count.load(Ordering::Relaxed));
        // 0 until the catalogue is counted
        if total > 0 {
            shown.show(done, total, "items indexed");
        }
        thread::sleep(Duration::from_millis(100));
    }
    shown.finish();
}
