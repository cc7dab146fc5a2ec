//! `souk index`: the vectors of a catalogue.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use souk::beir::DataFolder;
use souk::config::Config;
use souk::import::{Column, ItemFiles};
use souk::indexing::{IndexJob, IndexProgress, IndexTarget, Throughput};
use souk::search::IndexBackend;

use crate::output::print;
use crate::progress::bar;
use crate::train::Teller;
use crate::{ModelArgs, Shared};

/// Encode a catalogue and write an index of it
///
/// The index remembers its model: another model's queries are refused. The catalogue is encoded in
/// shards, which stay beside --out until all are there: run again after a kill, it goes on with what
/// is missing. Several processes share the work, under torchrun's variables or by
/// `souk launch --nproc N -- index ...`; all must see the folder of --out.
///
/// Examples:
///   souk index --model RUN --data SHOP --out INDEX
///   souk index --model RUN --from s3://BUCKET/catalogue --out RUN/index
///   souk index --config configs/search-milvus.toml --model RUN --from items.parquet \
///       --out WORK --collection autumn
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct IndexVerb {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    catalogue: Catalogue,
    /// Which columns hold what, where their names do not say it: id=sku,title=name,text=description
    #[arg(long, value_name = "FIELD=COLUMN", value_delimiter = ',', conflicts_with = "data")]
    columns: Vec<Column>,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Instead of a folder, a new collection of the Milvus that [search.index] names
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// Given to the collection once it is whole
    #[arg(long, value_name = "NAME", requires = "collection")]
    alias: Option<String>,
    /// Size of a shard: about what a kill costs
    #[arg(long, value_name = "MB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    shard_mb: u64,
}

/// Where the items are.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct Catalogue {
    /// Data folder with corpus.jsonl, one {"_id", "title", "text"} per line
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File or folder of .jsonl, .parquet or .arrow files, here or at s3://, gs:// or az://
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
}

impl IndexVerb {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let config = shared.load(self.model.changes())?;
        let target = self.target(&config)?;
        let address = match (&self.catalogue.from, &self.catalogue.data) {
            (Some(from), _) => from.clone(),
            (None, Some(data)) => DataFolder::open(data)?.corpus().display().to_string(),
            (None, None) => anyhow::bail!("no catalogue: give --data DIR or --from ADDRESS"),
        };
        let files = ItemFiles::open(&address, self.columns.clone())?;
        let (index, limits, shard_bytes) = (config.index.clone(), config.worker, self.shard_mb << 20);
        let made_with = format!("{:?}", config.model.precision).to_lowercase();
        let job = IndexJob { files: &files, out: &self.out, target, index, shard_bytes, limits, made_with };
        let encoder = config.open_encoder()?.for_search()?.freeze()?;
        let mut teller = Told::new();
        let done = job.run(encoder, &mut |progress| teller.tell(&progress))?;
        teller.bar.finish_and_clear();
        let Some(done) = done else { return Ok(()) };
        let place = match &done.collection {
            Some(name) => format!("the collection {name}"),
            None => self.out.display().to_string(),
        };
        let (items, dimensions) = (done.num_items, done.dimensions);
        let mut text = format!("indexed {items} items of {dimensions} dimensions in {place}");
        if done.shards_before > 0 {
            text += &format!("\n{} of {} shards were there from before", done.shards_before, done.num_shards);
        }
        if done.throughput.items > 0 {
            text += &format!("\nencoded {}", speed(&done.throughput));
        }
        // what an index is stands at the top, as its manifest has it
        let mut json = done.manifest.as_ref().map_or_else(|| Ok(serde_json::json!({})), serde_json::to_value)?;
        for (name, value) in serde_json::to_value(&done)?.as_object().context("what is done has names")? {
            if name != "manifest" {
                json[name] = value.clone();
            }
        }
        print(shared, &json, &text)
    }

    fn target(&self, config: &Config) -> anyhow::Result<IndexTarget> {
        let Some(collection) = self.collection.clone() else { return Ok(IndexTarget::Folder) };
        match &config.search.index {
            IndexBackend::Milvus(settings) => {
                Ok(IndexTarget::Milvus { settings: settings.clone(), collection, alias: self.alias.clone() })
            }
            IndexBackend::Embedded {} => {
                let problem = "is for Milvus, which the configuration does not name: give --config configs/search-milvus.toml, or --set \
                     'search.index={type=\"milvus\", address=\"http://HOST:PORT\"}'";
                Err(souk::Error::config("--collection", problem).into())
            }
        }
    }
}

fn speed(pace: &Throughput) -> String {
    let (rate, days) = (pace.items_per_second, pace.billion_days);
    let billion = if days < 2.0 { format!("{:.1} hours", days * 24.0) } else { format!("{days:.0} days") };
    format!("{rate:.0} items/s; a billion would take {billion} so")
}

/// A bar on a terminal; elsewhere a line now and then.
struct Told {
    bar: indicatif::ProgressBar,
    teller: Teller,
}

impl Told {
    fn new() -> Self {
        Self { bar: bar("items", Some(0)), teller: Teller::new(!std::io::stderr().is_terminal()) }
    }

    fn tell(&mut self, progress: &IndexProgress<'_>) {
        match progress {
            IndexProgress::Note(note) => say(note),
            IndexProgress::Encoding(pace) => {
                let ((done, of), (bytes, all)) = (pace.shards, pace.bytes);
                let expected = pace.expected().unwrap_or(0).max(pace.items);
                self.bar.set_length(expected);
                self.bar.set_position(pace.items);
                self.bar.set_message(format!("items, {done} of {of} shards"));
                let share = 100.0 * bytes as f64 / all.max(1) as f64;
                let message = format!("items, {done} of {of} shards ({share:.0} %), {}", speed(pace));
                self.teller.tell((pace.items, expected), &message);
            }
            IndexProgress::Waiting(missing) => {
                self.bar.set_message(format!("items; {missing} shards of other ranks are still missing"));
                self.teller.tell((0, *missing as u64), "shards that other ranks still encode");
            }
            IndexProgress::Joining { items, of } => {
                self.bar.set_length(*of);
                self.bar.set_position(*items);
                self.bar.set_message("items joined to the graph");
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "what is left out is told beside the result")]
fn say(note: &str) {
    eprintln!("{note}");
}
