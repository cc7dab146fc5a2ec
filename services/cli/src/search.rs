//! `souk search`: a query in, hits out.

use std::path::PathBuf;

use clap::Args;
use souk::domain::TextKind;
use souk::error::Error;
use souk::index::{Snapshot, VectorQuery};

use crate::output::print;
use crate::{ModelArgs, Shared};

/// Find the items nearest to a query
///
/// Example: souk search --model DIR --index DIR "desk for a small room" -k 5
#[derive(Args)]
pub struct Search {
    #[command(flatten)]
    model: ModelArgs,
    /// A folder that `souk index` wrote with the same model
    #[arg(long, value_name = "DIR")]
    index: PathBuf,
    /// What the shopper typed
    query: String,
    /// Hits to print
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// How many items a walk through the graph looks around for; more find more and take longer
    #[arg(long, value_name = "N")]
    reach: Option<usize>,
}

impl Search {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let encoder = shared.load(self.model.changes())?.open_encoder()?.for_search()?.freeze()?;
        let index = Snapshot::open(&self.index, &encoder.fingerprint()?, encoder.dimensions())?;
        let text = encoder.reader().read(&self.query, Some(TextKind::Query))?;
        let vectors = encoder.vectors(&[&text])?;
        let vector = vectors.first().ok_or_else(|| Error::device("the query has no vector"))?;
        let hits = index.search(&VectorQuery { ef: self.reach, ..VectorQuery::new(vector, self.k) })?;
        let lines: Vec<String> =
            hits.iter().map(|hit| format!("{:>3}  {:.4}  {}  {}", hit.rank, hit.score, hit.id, hit.title)).collect();
        let json = serde_json::json!({"query": self.query, "model": index.manifest().model, "hits": hits});
        print(shared, &json, &lines.join("\n"))
    }
}
