//! `souk index`: encodes a catalogue and builds a vector index of it, as a folder or a Milvus collection.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use souk::config::Config;
use souk::import::{Column, ItemFiles};
use souk::indexing::{IndexJob, IndexProgress, IndexTarget, Throughput};
use souk::search::IndexBackend;

use crate::output::print;
use crate::progress::ProgressDisplay;
use crate::{GlobalArgs, ModelArgs};

/// Encode a catalogue and build a vector index
///
/// The index stores the fingerprint of its model; queries of another model are an error. The catalogue
/// is encoded in shards, kept next to --out until all are complete: after a crash, the same command
/// encodes only the missing ones. Several processes can share the work: set torchrun's variables or
/// run `souk launch --nproc N -- index ...`; all of them must see the folder of --out.
///
/// Examples:
///   souk index --model RUN --data SHOP --out INDEX
///   souk index --model RUN --from s3://BUCKET/catalogue --out RUN/index
///   souk index --config configs/search-milvus.toml --model RUN --from items.parquet \
///       --out WORK --collection autumn
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct IndexCommand {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    catalogue: CatalogueArgs,
    /// Column mapping, for columns without a standard name: id=sku,title=name,text=description
    #[arg(long, value_name = "FIELD=COLUMN", value_delimiter = ',', conflicts_with = "data")]
    columns: Vec<Column>,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Milvus collection to create (in the Milvus of [search.index]) instead of an index folder
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// Milvus alias to assign to the collection once it is complete
    #[arg(long, value_name = "NAME", requires = "collection")]
    alias: Option<String>,
    /// Shard size: the work lost by a crash
    #[arg(long, value_name = "MB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    shard_mb: u64,
}

/// Catalogue source.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct CatalogueArgs {
    /// Data folder with corpus.jsonl, one {"_id", "title", "text"} per line
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File or folder of .jsonl, .parquet or .arrow files: a local path, s3://, gs:// or az://
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
}

impl IndexCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(self.model.changes())?;
        let target = self.target(&config)?;
        let address = match (&self.catalogue.from, &self.catalogue.data) {
            (Some(from), _) => from.clone(),
            (None, Some(data)) => config.open_data(data)?.corpus().display().to_string(),
            (None, None) => anyhow::bail!("no catalogue: give --data DIR or --from ADDRESS"),
        };
        let files = ItemFiles::open(&address, self.columns.clone())?;
        let (index, limits, shard_bytes) = (config.index.clone(), config.worker, self.shard_mb << 20);
        let made_with = format!("{:?}", config.model.precision).to_lowercase();
        let job = IndexJob { files: &files, out: &self.out, target, index, shard_bytes, limits, made_with };
        let encoder = config.open_encoder()?.for_search()?.freeze()?;
        let progress = ProgressDisplay::start("items", Some(0));
        let done = job.run(encoder, &mut |event| show(&progress, &event))?;
        progress.finish();
        let Some(done) = done else { return Ok(()) };
        let place = match &done.collection {
            Some(name) => format!("collection {name}"),
            None => self.out.display().to_string(),
        };
        let (items, dimensions) = (done.num_items, done.dimensions);
        let mut text = format!("indexed {items} items of {dimensions} dimensions in {place}");
        if done.shards_before > 0 {
            text += &format!("\n{} of {} shards reused from an earlier run", done.shards_before, done.num_shards);
        }
        if done.throughput.items > 0 {
            text += &format!("\nencoded {}", speed(&done.throughput));
        }
        // fields of the manifest stay at the top level
        let mut json = done.manifest.as_ref().map_or_else(|| Ok(serde_json::json!({})), serde_json::to_value)?;
        for (name, value) in serde_json::to_value(&done)?.as_object().context("the result is a JSON object")? {
            if name != "manifest" {
                json[name] = value.clone();
            }
        }
        print(globals, &json, &text)
    }

    fn target(&self, config: &Config) -> anyhow::Result<IndexTarget> {
        let Some(collection) = self.collection.clone() else { return Ok(IndexTarget::Folder) };
        match &config.search.index {
            IndexBackend::Milvus(settings) => {
                Ok(IndexTarget::Milvus { settings: settings.clone(), collection, alias: self.alias.clone() })
            }
            IndexBackend::Embedded {} => {
                let problem = "needs Milvus in the configuration: give --config configs/search-milvus.toml, or --set \
                     'search.index={type=\"milvus\", address=\"http://HOST:PORT\"}'";
                Err(souk::Error::config("--collection", problem).into())
            }
        }
    }
}

fn speed(throughput: &Throughput) -> String {
    let (rate, days) = (throughput.items_per_second, throughput.billion_days);
    let billion = if days < 2.0 { format!("{:.1} hours", days * 24.0) } else { format!("{days:.0} days") };
    format!("{rate:.0} items/s; a billion items would take {billion}")
}

fn show(progress: &ProgressDisplay, event: &IndexProgress<'_>) {
    match event {
        IndexProgress::Note(note) => print_note(note),
        IndexProgress::Encoding(throughput) => {
            let ((done, total), (bytes, all)) = (throughput.shards, throughput.bytes);
            let expected = throughput.expected().unwrap_or(0).max(throughput.items);
            let percent = 100.0 * bytes as f64 / all.max(1) as f64;
            let what = format!("items, {done} of {total} shards ({percent:.0} %)");
            progress.show(throughput.items, expected, what);
        }
        IndexProgress::Waiting(missing) => progress.show(0, *missing as u64, "remaining shards of other ranks"),
        IndexProgress::Joining { items, of } => progress.show(*items, *of, "items added to the HNSW graph"),
    }
}

#[expect(clippy::print_stderr, reason = "notes go to standard error")]
pub fn print_note(note: &str) {
    eprintln!("{note}");
}
