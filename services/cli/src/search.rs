//! `souk search`: a query in, the hits of an index out.

use std::path::PathBuf;

use clap::Args;
use souk::domain::TextKind;
use souk::error::Error;
use souk::index::{Snapshot, VectorQuery};

use crate::output::print;
use crate::{GlobalArgs, ModelArgs};

/// Search an index for the items nearest to a query
///
/// Example: souk search --model DIR --index DIR "desk for a small room" -k 5
#[derive(Args)]
pub struct SearchCommand {
    #[command(flatten)]
    model: ModelArgs,
    /// Index folder, written by `souk index` with the same model
    #[arg(long, value_name = "DIR")]
    index: PathBuf,
    /// Query text
    query: String,
    /// Number of hits
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// HNSW ef: candidates kept during the graph search; more raise recall and take longer (default: the index's
    /// setting)
    #[arg(long, value_name = "N")]
    ef: Option<usize>,
}

impl SearchCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let encoder = globals.load(self.model.changes())?.open_encoder()?.for_search()?.freeze()?;
        let index = Snapshot::open(&self.index, &encoder.fingerprint()?, encoder.dimensions())?;
        let text = encoder.reader().read(&self.query, Some(TextKind::Query))?;
        let vectors = encoder.vectors(&[&text])?;
        let vector = vectors.first().ok_or_else(|| Error::device("the query has no vector"))?;
        let hits = index.search(&VectorQuery { ef: self.ef, ..VectorQuery::new(vector, self.k) })?;
        let lines: Vec<String> =
            hits.iter().map(|hit| format!("{:>3}  {:.4}  {}  {}", hit.rank, hit.score, hit.id, hit.title)).collect();
        let json = serde_json::json!({"query": self.query, "model": index.manifest().model, "hits": hits});
        print(globals, &json, &lines.join("\n"))
    }
}
