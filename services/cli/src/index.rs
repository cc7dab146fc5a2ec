//! `souk index`: the vectors of a catalogue.

use std::path::PathBuf;

use clap::Args;
use souk::beir::DataFolder;
use souk::domain::{Item, TextKind};
use souk::encoder::{Worker, encode};
use souk::index::Snapshot;

use crate::output::print;
use crate::progress::bar;
use crate::{ModelArgs, Shared};

/// Encode a catalogue and write an index of it
///
/// The index remembers its model: another model's queries are refused.
#[derive(Args)]
pub struct IndexVerb {
    #[command(flatten)]
    model: ModelArgs,
    /// Data folder with corpus.jsonl, one {"_id", "title", "text"} per line
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl IndexVerb {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let config = shared.load(self.model.changes())?;
        let encoder = config.open_encoder()?.for_search()?.freeze()?;
        let made_by = (encoder.fingerprint()?, encoder.dimensions());
        let mut builder = Snapshot::builder(&self.out, made_by, config.index.clone())?;
        let worker = Worker::start(encoder, config.worker)?;
        let data = DataFolder::open(&self.data)?;
        let corpus = data.corpus();
        let mut num_items = 0;
        for item in data.items()? {
            item?;
            num_items += 1;
        }
        let progress = bar("items", Some(num_items));
        let passage = |(_, item): &(u64, Item)| item.passage();
        let place = |(line, item): &(u64, Item)| format!("{}, line {line}, item `{}`", corpus.display(), item.id);
        encode(&worker, Some(TextKind::Item), data.items()?, (passage, place), |(_, item), vector| {
            builder.add(&item, &vector)?;
            progress.inc(1);
            Ok::<(), anyhow::Error>(())
        })?;
        progress.finish_and_clear();
        let progress = bar("items joined to the graph", Some(num_items));
        let manifest = builder.write(&mut |joined| progress.set_position(joined as u64))?;
        progress.finish_and_clear();
        let (items, dimensions) = (manifest.num_items, manifest.dimensions);
        let text = format!("indexed {items} items of {dimensions} dimensions in {}", self.out.display());
        print(shared, &serde_json::to_value(&manifest)?, &text)
    }
}
