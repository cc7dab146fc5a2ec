//! `souk search`: a query in, hits out.

use std::path::PathBuf;

use clap::Args;
use souk::domain::TextKind;
use souk::error::Error;
use souk::index::Index;

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
}

impl Search {
    #[expect(clippy::print_stdout, reason = "the result of the verb")]
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let mut config = shared.load(&self.model.flags())?;
        config.encoder.normalize = Some(true);
        let encoder = config.open_encoder()?.freeze()?;
        let index = Index::open(&self.index, &encoder.fingerprint()?)?;
        let text = encoder.reader().read(&self.query, Some(TextKind::Query))?;
        let vectors = encoder.vectors(&[&text])?;
        let vector = vectors.first().ok_or_else(|| Error::device("the query has no vector"))?;
        let hits = index.search(vector, self.k)?;
        if shared.json {
            let model = &index.manifest().model;
            println!("{}", serde_json::json!({"query": self.query, "model": model, "hits": hits}));
            return Ok(());
        }
        for hit in hits {
            println!("{:>3}  {:.4}  {}  {}", hit.rank, hit.score, hit.id, hit.title);
        }
        Ok(())
    }
}
