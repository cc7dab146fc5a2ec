//! `souk export-vectors`: writes an index's vectors as files that another search engine loads.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap::builder::PossibleValuesParser;
use souk::index::Snapshot;
use souk::vector_export::{DEFAULT_FIELD, DEFAULT_NAME, ExportReport, VectorExport, VectorFormat};

use crate::GlobalArgs;
use crate::output::print;
use crate::progress::ProgressDisplay;

/// Export an index's vectors for another engine
///
/// Writes a new folder: the vectors, the definition of an index that holds them, and souk.json with
/// the model's fingerprint and the dimensions. Bulk files of OpenSearch and Elasticsearch, and
/// Vespa's feed, add a field to documents that exist and create the others. Every document names the
/// model in `souk_model`: query vectors of another model do not fit. docs/integrations.md has the
/// requests.
///
/// Examples:
///   souk export-vectors --index INDEX --to parquet --out VECTORS
///   souk export-vectors --index INDEX --to opensearch-bulk --field souk_vector_2 --out VECTORS
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct ExportVectorsCommand {
    /// Index folder, from `souk index`
    #[arg(long, value_name = "DIR")]
    index: PathBuf,
    /// Format
    #[arg(long, value_parser = PossibleValuesParser::new(VectorFormat::ALL.map(VectorFormat::name)))]
    to: String,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Field or column of the vectors
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FIELD)]
    field: String,
    /// Name of the index or document type in the engine
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    name: String,
    /// Also write each item's title, text and other fields
    #[arg(long)]
    with_items: bool,
}

impl ExportVectorsCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let format = VectorFormat::ALL.into_iter().find(|format| format.name() == self.to);
        let format = format.context("clap accepts the names of formats only")?;
        let snapshot = Snapshot::open_any(&self.index)?;
        let num_items = snapshot.num_items() as u64;
        let export = VectorExport {
            snapshot: &snapshot,
            format,
            field: &self.field,
            name: &self.name,
            with_items: self.with_items,
        };
        let progress = ProgressDisplay::start("items", Some(num_items));
        let report = export.write(&self.out, &mut |done| progress.show(done, num_items, "items"))?;
        progress.finish();
        let text =
            format!("wrote the vectors of {num_items} items to {}\n{}", self.out.display(), self.how_to_load(&report));
        print(globals, &serde_json::to_value(&report)?, text.trim_end())
    }

    /// Commands that load the files.
    fn how_to_load(&self, report: &ExportReport) -> String {
        let (out, name) = (self.out.display(), &self.name);
        let json = "-H 'Content-Type: application/json'";
        match report.format {
            VectorFormat::Parquet | VectorFormat::Jsonl => String::new(),
            VectorFormat::OpensearchBulk | VectorFormat::Elasticsearch => format!(
                "load them, with the engine's address in HOST:\n  \
                 curl -X PUT HOST/{name} {json} --data-binary @{out}/index.json    # a new index\n  \
                 for f in {out}/bulk-*; do curl HOST/{name}/_bulk {json} --data-binary @$f; done"
            ),
            VectorFormat::Qdrant => format!(
                "load them, with the engine's address in HOST:\n  \
                 curl -X PUT HOST/collections/{name} {json} --data-binary @{out}/collection.json\n  \
                 for f in {out}/points-*; do curl -X PUT HOST/collections/{name}/points {json} --data-binary @$f; done"
            ),
            VectorFormat::Vespa => {
                format!(
                    "load them, once the application has the fields of {out}/{name}.sd:\n  vespa feed {out}/feed.jsonl"
                )
            }
        }
    }
}
